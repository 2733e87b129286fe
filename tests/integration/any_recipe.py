"""Recipes of keys that are drawn, and what must be true of one whose run has come to its end."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

JOB = """
import argparse, json, os, pathlib, signal, sys, time

parser = argparse.ArgumentParser()
for name, kind, usual in (("lr", float, 0.1), ("depth", int, 1), ("steps", int, 0), ("fails", str, "")):
    parser.add_argument(f"--{name}", type=kind, default=usual)
args = parser.parse_args()
given = os.environ
name, stopped = f"{given['TRAINMASTER_EXPERIMENT']}/{given['TRAINMASTER_TASK']}", []


def mark(kind):
    if "NOTES" in given:  # not on rented machines
        with open(f"{given['NOTES']}/{kind}", "a") as marks:
            marks.write(f"{time.time()} {name}\\n")


signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
for source in (value for key, value in given.items() if key.startswith("TRAINMASTER_DATA_")):
    assert list(pathlib.Path(source).rglob("told.json")), source
while given["TRAINMASTER_ROLE"] == "ps":
    time.sleep(0.05)
    if stopped:
        sys.exit()
is_first = given["TRAINMASTER_INDEX"] == "0"
saved = pathlib.Path(given["TRAINMASTER_CHECKPOINT_DIR"], f"{given['TRAINMASTER_INDEX']}.json")
step = json.loads(saved.read_text()) if saved.exists() else 0
mark("begun")
while step < args.steps and not stopped:
    time.sleep(0.03)
    step += 1
    if is_first:
        print(f"step {step}/{args.steps} loss {1 / (1 + args.lr * step * args.depth):.4f}", flush=True)
    saved.with_suffix(".new").write_text(json.dumps(step))
    saved.with_suffix(".new").rename(saved)
    if args.fails and given["TRAINMASTER_ATTEMPT"] == "1" and step >= args.steps // 2:
        if args.fails == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit(3)
if is_first:
    told = {"step": step, "lr": args.lr, "depth": args.depth}
    pathlib.Path(given["TRAINMASTER_OUTPUT_DIR"], "told.json").write_text(json.dumps(told))
mark("ended")
"""
GRIDS = (
    {},
    {},
    {"lr": [0.05, 0.2]},
    {"lr": [0.05, 0.2], "depth": [1, 3]},
    {"depth": {"range": "1-3", "step": 1}},
)
GANGS = (
    None,
    None,
    {"strategy": "allreduce", "workers": 2},
    {"strategy": "ps-async", "workers": 1, "parameter_servers": 1},
)


def experiment(chance: random.Random, before: list[str]) -> dict[str, Any]:
    """One whose tasks fail at their first attempt at most."""
    found: dict[str, Any] = {"steps": chance.choice([4, 12, 30]), "framework": "plain"}
    command = "python job.py --steps {{steps}}"
    if grid := chance.choice(GRIDS):
        found["parameters"] = grid
        command += "".join(f" --{name} {{{{{name}}}}}" for name in grid)
        if chance.random() < 0.4:
            found["search"] = {"metric": "loss", "goal": "min", "best": chance.choice(["last", "min"])}
            if chance.random() < 0.5:
                found["search"]["pruner"] = chance.choice(["asha", "median", "forecast"])
        if chance.random() < 0.4:
            found["workers"] = chance.randint(1, 2)
    if gang := chance.choice(GANGS):
        found["distributed"] = gang
    if chance.random() < 0.2:
        found["until"] = "loss <= 0.7"
    elif chance.random() < 0.4:  # who fails while it is asked to end has reached its bound all the same
        command += f" --fails {chance.choice(['refused', 'killed'])}"
    found["retries"] = chance.randint(0, 2)
    if chance.random() < 0.5:
        found["checkpoint"] = {"every": chance.choice(["200ms", "1s"]), "keep": chance.randint(1, 2)}
    if chance.random() < 0.2:
        found["require"] = {"metric": "loss", "at_most": 1.0}
    if chance.random() < 0.2:
        found["env"] = {"WORDS": "ü $HOME 'x'"}
    if before and chance.random() < 0.8:
        earlier = chance.choice(before)
        best = {"best": "loss"} if chance.random() < 0.3 else {}
        found |= chance.choice([{"after": earlier}, {"data": {"earlier": {"from": earlier, **best}}}])
    return {**found, "command": command}


def recipe(chance: random.Random) -> dict[str, Any]:
    """Up to three experiments, in any graph."""
    experiments: dict[str, Any] = {}
    for name in chance.sample(["a", "train", "b-2", "Eval", "x_y"], chance.randint(1, 3)):
        experiments[name] = experiment(chance, list(experiments))
    return {"name": "any", "seed": chance.randint(0, 9), "experiments": experiments}


def check_models(content: dict[str, Any], found: dict[str, Any]) -> None:
    """Each task has its model, which was trained to its end with its parameters.

    Args:
        content: the recipe.
        found: the run's status.
    """
    models = {(model["experiment"], model["task"]): model for model in found["models"]}
    for name, given in content["experiments"].items():
        tasks = found["experiments"][name]["tasks"]
        assert tasks["succeeded"] + tasks["pruned"] == tasks["total"], found
        for number in range(tasks["total"]):
            model = models.pop((name, number), None)
            if model is None:
                assert tasks["pruned"], f"{name}/{number} has no model"
                continue
            (file,) = Path(model["uri"].removeprefix("file://")).rglob("told.json")
            told = json.loads(file.read_text())
            assert told["step"] == given["steps"] or "until" in given or tasks["pruned"], (name, number, told)
            for parameter, value in model["parameters"].items():
                assert told[parameter] == value
    assert not models


def check_order(content: dict[str, Any], begun: list[str], ended: list[str]) -> None:
    """What comes after another experiment began after it.

    Args:
        content: the recipe.
        begun: a line ``SECONDS EXPERIMENT/TASK`` for each attempt.
        ended: the same of those that came to their end.
    """

    def times(lines: list[str], experiment: str) -> list[float]:
        told = (line.split() for line in lines)
        return [float(at) for at, task in told if task.partition("/")[0] == experiment]

    for name, given in content["experiments"].items():
        earlier = given.get("after") or given.get("data", {}).get("earlier", {}).get("from")
        if earlier is not None:
            assert max(times(ended, earlier)) <= min(times(begun, name))
