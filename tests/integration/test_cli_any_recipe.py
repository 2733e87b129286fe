"""Recipes of keys that were drawn, ended and killed at any moment: `resume` brings each of them to its end.

Each seed crosses what has tests of its own: graphs, grids and searches, gangs, failures with and without
retries, checkpoints, bounds, data of other experiments, and what a person or a crash does meanwhile.
"""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

JOB = """
import argparse, json, os, pathlib, signal, sys, time

parser = argparse.ArgumentParser()
for name, kind, usual in (("lr", float, 0.1), ("depth", int, 1), ("steps", int, 0), ("fails", str, "")):
    parser.add_argument(f"--{name}", type=kind, default=usual)
args = parser.parse_args()
given = os.environ
name, stopped = f"{given['TRAINMASTER_EXPERIMENT']}/{given['TRAINMASTER_TASK']}", []
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
with open(given["NOTES"] + "/begun", "a") as marks:
    marks.write(f"{time.time()} {name}\\n")
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
with open(given["NOTES"] + "/ended", "a") as marks:
    marks.write(f"{time.time()} {name}\\n")
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
MOMENTS = ("", "killed", "killed", "interrupted", "cancelled")


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


def stop(tm: Any, call: Any, run: str, moment: str) -> None:
    """What happens to a run meanwhile, and then it is over or undriven."""
    if moment == "killed":
        call.kill()
    elif moment == "interrupted":
        call.send(signal.SIGINT)
        call.wait()
    elif moment == "cancelled":
        tm.call("cancel", run)
        call.wait()


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.crossings) for seed in range(2, 40))]
)
def test_any_recipe_comes_to_its_end(tm, seed):
    chance = random.Random(seed)
    content = recipe(chance)
    tm.write("job.py", JOB)
    call = tm.start("run", tm.recipe(content))
    run = call.run_id()
    for moment in chance.choices(MOMENTS, k=2):
        time.sleep(chance.uniform(0.05, 2.5))
        stop(tm, call, run, moment)
        if call.over:
            call = tm.start("resume", run)
    call.wait()
    while (found := tm.status(run))["reason"] != "SUCCEEDED":  # what failed once has no more retries
        assert found["reason"] in ("USER_ERROR", "CANCELLED"), found
        before = found["experiments"]
        tm.call("resume", run, code=None)
        assert tm.status(run)["experiments"] != before, "nothing has changed by a `resume`"
    check(content, found, tm)
    tm.until_quiet()


def check(content: dict[str, Any], found: dict[str, Any], tm: Any) -> None:
    """Each task has its model, trained to its end; and what comes after another began after it."""
    models = {(model["experiment"], model["task"]): model for model in found["models"]}
    begun, ended = ([line.split() for line in tm.marks(name)] for name in ("begun", "ended"))
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
        earlier = given.get("after") or given.get("data", {}).get("earlier", {}).get("from")
        if earlier is not None:
            last = max(float(at) for at, task in ended if task.partition("/")[0] == earlier)
            assert last <= min(float(at) for at, task in begun if task.partition("/")[0] == name)
    assert not models
