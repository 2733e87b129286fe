"""Hyper's user: the recipe of figure 1, a workflow on spot machines that are taken back, and more machines.

In the lab: preprocessing, a sweep and inference over MNIST, on four spot machines of which one breaks and one
is taken back while the sweep runs, beside the same on demand without losses; then equal tasks on one machine
and on four. Prices are the published ones, spot three tenths of them by the lab's own list: that spot is
cheaper is no finding, what losses cost is. The tasks on one and on four only wait: what grows with the
cluster there is how many tasks are under way, not what two cores compute. Then on this machine a sweep of a
booster, and a training for each of 300 folders of a volume: all of them run.
"""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import time
from dataclasses import dataclass
from typing import Any

from claims import Seen, tried
from images import mnist
from jobs.booster import points
from laboratory import RUN_DEADLINE_S, Call, Laboratory
from tables import Report, options

from trainmaster.cluster.member_places import read_places

CLAIMS = {
    "the recipe of figure 1 is read as it is printed": "1000 samples, 100 workers, k80",
    "a recipe of 12 parameters with 2 choices each is read as 4096 tasks": "4096 trainings, run (4.3)",
    "preprocessing, a sweep and inference are one workflow, each after the other": "a graph (2.1)",
    "all tasks are done although spot machines are taken back": "said (3.4), no number",
    "what was lost is done again on another machine with the same arguments": "said (3.4), no number",
    "a training goes on from its newest checkpoint": "said (3.4), no number",
    "machines that are taken back cost under half more than the same without losses": "spot: 2 to 3 x (3.4)",
    "a larger cluster has as many more tasks under way (four machines: over 3.2 times)": "linear (4.3)",
    "a sweep of a booster is run whole, here of 9 parameters with 2 choices each": "4096 trainings (4.3)",
    "folders of a volume are trained on, each by a task of its own": "300 folders on 300 GPUs (4.4)",
}
FIGURE_1 = """
experiments:
  mnist:
    framework: pytorch
    parameters:
      lr:
        range: 0.1-0.3
        sampling: uniform
      samples: 1000
    workers: 100
    hardware:
      gpu: k80
    command:
      - python train.py --lr {{lr}}
"""
BOOSTER = """
name: booster
code: code
experiments:
  train:
    parameters: {PARAMETERS}
    command: python3 -S booster.py ARGUMENTS
"""
#: Both choices of each of its parameters.
CHOICES = {
    "rounds": "10, 20", "rate": "0.1, 0.3", "bins": "4, 8", "rows": "0.7, 1.0", "columns": "0.5, 1.0",
    "l2": "0, 1", "least": "5, 20", "decay": "0.98, 1.0", "seed": "0, 1", "margin": "0, 0.1", "clip": "2, 4",
    "prior": "0, 0.5",
}  # fmt: skip
FOLDERS = """
name: folders
code: code
experiments:
  train:
    data: {folders: {volume: folders}}
    parameters: {folder: {range: 0-LAST, step: 1}}
    command: python3 -S booster.py --data $TRAINMASTER_DATA_FOLDERS/{{folder}}
"""
WORKFLOW = """
name: hyper
code: code
objective: fastest  # on all four, also once it is known that one would be cheaper
experiments:
  prepare:
    workers: 4
    hardware: &machine {instance: t2.medium, spot: SPOT}
    parameters: {part: {range: 0-7, step: 1}}
    command: python3 stages.py prepare --part {{part}}
  train:
    workers: 4
    hardware: *machine
    data: {parts: {from: prepare}}
    parameters: {lr: {range: 0.1-0.3, sampling: uniform}}
    samples: SAMPLES
    checkpoint: {every: 1s}
    grace: 3s
    command: python3 stages.py train --lr {{lr}} --steps STEPS
  infer:
    workers: 4
    hardware: *machine
    data: {parts: {from: prepare}, model: {from: train, best: accuracy}}
    parameters: {part: {range: 0-7, step: 1}}
    command: python3 stages.py infer --part {{part}}
"""
SLEEPS = """
name: scale
code: code
experiments:
  one:
    workers: 1
    hardware: &machine {instance: t2.medium}
    parameters: &tasks {n: {range: 1-TASKS, step: 1}}
    command: sleep 4
  four:
    after: one
    workers: 4
    hardware: *machine
    parameters: *tasks
    command: sleep 4
"""
MACHINES = 4
#: What a spot machine costs in the lab's price list beside the same on demand.
SPOT_SHARE = 0.3
#: Of the images; as many tasks prepare them.
PARTS = 8


@dataclass(frozen=True)
class Attempt:
    """A task's attempt: whose, which, how it ended, and when."""

    experiment: str
    task: int
    number: int
    reason: str
    began: float
    ended: float


class Records:
    """What a home knows of a run."""

    def __init__(self, lab: Laboratory) -> None:
        self.path = lab.home / "trainmaster.db"

    def _rows(self, query: str, *values: object) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as connection:
            return connection.execute(query, values).fetchall()

    def attempts(self, run: str) -> list[Attempt]:
        """All, in the order in which they began."""
        query = (
            "SELECT e.name, a.task, a.number, a.reason, a.started_at, a.ended_at"
            " FROM attempt a JOIN experiment e ON e.id = a.experiment_id"
            " WHERE e.run_id = ? AND a.started_at IS NOT NULL ORDER BY a.started_at"
        )
        return [Attempt(*row) for row in self._rows(query, run)]

    def open_tasks(self, run: str, experiment: str) -> list[int]:
        """Numbers of those whose first attempt has not ended."""
        query = (
            "SELECT a.task FROM attempt a JOIN experiment e ON e.id = a.experiment_id"
            " WHERE e.run_id = ? AND e.name = ? AND a.number = 1 AND a.ended_at IS NULL"
        )
        return [task for (task,) in self._rows(query, run, experiment)]

    def machines(self, run: str) -> list[str]:
        """Ids of those that it has now."""
        found = self._rows("SELECT data FROM cluster WHERE run_id = ?", run)
        machines = [machine for (data,) in found for machine in json.loads(data)["machines"]]
        return [machine["id"] for machine in machines if machine["id"] and not machine["is_over"]]


def take_back(lab: Laboratory, call: Call) -> list[str]:
    """Takes two machines back as soon as every training there has a checkpoint; their ids.

    One is gone at once, one after a notice of 10 s.
    """
    while not call.is_over:
        time.sleep(0.3)
        if not call.run_id:
            continue
        *_, leaving, gone = ["", "", *Records(lab).machines(call.run_id)]
        saved: dict[str, list[bool]] = {leaving: [], gone: []}
        for task in Records(lab).open_tasks(call.run_id, "train"):
            attempt = lab.home / "runs" / call.run_id / "tasks" / "train" / str(task) / "1"
            machine = read_places(attempt / "places.json").get("worker-0")
            if machine in saved:
                kept = lab.home / "store" / "checkpoints" / call.run_id / "train" / str(task)
                saved[machine].append(any(kept.glob("*/manifest.json")))
        if all(each and all(each) for each in saved.values()):
            lab.call("lab", "terminate", gone)
            lab.call("lab", "interrupt", leaving, "--notice=10")
            return [gone, leaving]
    return []


def checked(lab: Laboratory, text: str) -> dict[str, Any]:
    """The only experiment of a recipe, as it is read."""
    (lab.work / "checked.yaml").write_text(text)
    (lab.work / "train.py").touch()
    (found,) = json.loads(lab.call("check", "checked.yaml", "--json"))["experiments"].values()
    return dict(found)


def sweep_of(count: int) -> str:
    """The recipe of all combinations of the first so many parameters."""
    names = list(CHOICES)[:count]
    parameters = ", ".join(f"{name}: [{CHOICES[name]}]" for name in names)
    arguments = " ".join(f"--{name} {{{{{name}}}}}" for name in names)
    return BOOSTER.replace("PARAMETERS", parameters).replace("ARGUMENTS", arguments)


def recipes(lab: Laboratory) -> list[Seen]:
    """Figure 1, and the sweep of 12 parameters."""
    figure = checked(lab, FIGURE_1)
    here = f"{figure['tasks']} tasks, {figure['workers']} workers, {figure['hardware']['gpu']}"
    booster = checked(lab, sweep_of(12))
    return [
        Seen((figure["tasks"], figure["workers"]) == (1000, 100), here, "it is read as something else"),
        Seen(
            booster["tasks"] == 4096,
            f"{booster['tasks']} tasks, none of them run",
            "it is read as something else",
        ),
    ]


@dataclass(frozen=True)
class Worked:
    """A workflow that has ended: its attempts, price, seconds, and which machines were taken back."""

    run: str
    attempts: list[Attempt]
    usd: float
    seconds: float
    taken: list[str]


def workflow(lab: Laboratory, spot: bool, samples: int, steps: int) -> Worked:
    """On spot machines that are taken back, or on demand."""
    text = WORKFLOW.replace("SPOT", str(spot).lower()).replace("SAMPLES", str(samples))
    (lab.work / "recipe.yaml").write_text(text.replace("STEPS", str(steps)))
    call = lab.start("run", "recipe.yaml", "--provider=lab", "--yes", "--json")
    taken = take_back(lab, call) if spot else []
    done = call.end(RUN_DEADLINE_S)
    return Worked(done["run"], Records(lab).attempts(done["run"]), done["cost_usd"], call.seconds, taken)


@dataclass(frozen=True)
class Again:
    """A training that was begun again: whether elsewhere, with the same arguments, and from which step."""

    is_elsewhere: bool
    is_same: bool
    step: int


def begun_again(lab: Laboratory, run: str, again: list[Attempt]) -> list[Again]:
    """What trainings of lost machines said when they began again, beside what they had said before."""
    found = []
    for each in again:
        task = lab.home / "runs" / run / "tasks" / each.experiment / str(each.task)
        places = [task / str(number) for number in (each.number - 1, each.number)]
        first, now = (
            [json.loads(line) for file in place.glob("*.metrics.jsonl") for line in file.open()][:1]
            for place in places
        )
        if first and now:  # else it was lost before it had begun
            before, here = (read_places(place / "places.json") for place in places)
            found.append(Again(before != here, first[0]["lr"] == now[0]["lr"], int(now[0]["step"])))
    return found


def losses(lab: Laboratory, samples: int, steps: int) -> list[Seen]:
    """The workflow on spot machines with losses, then on demand without."""
    spot = workflow(lab, True, samples, steps)
    attempts, taken = spot.attempts, len(spot.taken)
    done = {(each.experiment, each.task) for each in attempts if each.reason == "SUCCEEDED"}
    lost = [each for each in attempts if each.reason in ("NODE_LOST", "PREEMPTED")]
    again = [each for each in attempts if each.number > 1]
    total = 2 * PARTS + samples
    begins = {name: min(e.began for e in attempts if e.experiment == name) for name in ("train", "infer")}
    ends = {name: max(e.ended for e in attempts if e.experiment == name) for name in ("prepare", "train")}
    in_order = ends["prepare"] <= begins["train"] and ends["train"] <= begins["infer"]
    trained = begun_again(lab, spot.run, [each for each in again if each.experiment == "train"])
    from_steps = sorted(each.step for each in trained)
    full = workflow(lab, False, samples, steps)
    more = spot.usd / (SPOT_SHARE * full.usd) - 1
    return [
        Seen(
            in_order,
            f"{PARTS} tasks of preprocessing, then {samples} of the sweep, then {PARTS} of inference",
            "a stage began before the last one had ended",
        ),
        Seen(
            len(done) == total and taken == 2,
            f"{len(done)} of {total} tasks, {taken} of {MACHINES} machines taken back",
            "tasks were not done" if taken == 2 else "the sweep was over before machines were taken back",
        ),
        Seen(
            bool(trained) and all(each.is_elsewhere and each.is_same for each in trained),
            f"lost: {len(lost)}, begun again: {len(again)}; of the trainings elsewhere: "
            f"{sum(each.is_elsewhere for each in trained)} of {len(trained)}, with the same rate: "
            f"{sum(each.is_same for each in trained)} of {len(trained)}",
            "one came back to its machine or had another rate" if trained else "no training was lost",
        ),
        Seen(
            bool(trained) and from_steps[0] > 0,
            f"from steps {', '.join(map(str, from_steps))} of {steps}" if trained else "",
            "a machine was lost before its first checkpoint was kept" if trained else "no training was lost",
        ),
        Seen(
            more < 0.5,
            f"losses cost {more:.0%} (with them {spot.seconds:.0f} s, without {full.seconds:.0f} s); spot "
            "prices are those of the lab's own list, no finding",
            "new machines and what was done again cost too much",
        ),
    ]


def larger(lab: Laboratory, tasks: int) -> list[Seen]:
    """So many equal tasks on one machine, and on four."""
    attempts = Records(lab).attempts(lab.run(SLEEPS.replace("TASKS", str(tasks))).run)
    alone, together = (
        max(each.ended for each in attempts if each.experiment == name)
        - min(each.began for each in attempts if each.experiment == name)
        for name in ("one", "four")
    )
    gain = alone / together
    here = f"{gain:.2f} ({tasks} tasks that wait 4 s: {alone:.0f} s on one machine, {together:.0f} s on four)"
    return [Seen(gain > 3.2, here, "all tasks begin at once there, which takes more cores than there are")]


def trained(lab: Laboratory, recipe: str, tasks: int) -> Seen:
    """So many tasks of a recipe on this machine, each with an accuracy of its own."""
    (lab.work / "local.yaml").write_text(recipe)
    call = lab.start("run", "local.yaml", "--provider=local", "--json")
    found = call.end(RUN_DEADLINE_S)
    done = found["experiments"]["train"]["tasks"]["succeeded"]
    files = (lab.home / "runs" / found["run"] / "tasks" / "train").glob("*/1/worker-0.metrics.jsonl")
    accuracies = {json.loads(file.read_text().splitlines()[-1])["accuracy"] for file in files}
    here = (
        f"{done} of {tasks} trainings in {call.seconds:.0f} s, two at a time; accuracies from "
        f"{min(accuracies):.0%} to {max(accuracies):.0%}"
    )
    return Seen(done == tasks and len(accuracies) > 1, here, "some were not trained, or all alike")


def sweeps(lab: Laboratory, parameters: int, folders: int) -> list[Seen]:
    """The booster's sweep, and a training of each folder of a volume."""
    for number in range(folders):
        place = lab.work / "folders" / str(number)
        place.mkdir(parents=True)
        rows, labels = points(500, random.Random(number))
        lines = [f"{y:d} {' '.join(f'{x:.4f}' for x in row)}\n" for row, y in zip(rows, labels, strict=True)]
        for first in range(0, 500, 50):
            (place / f"{first}.txt").write_text("".join(lines[first : first + 50]))
    lab.call("volume", "push", "folders", "folders")
    return [
        trained(lab, sweep_of(parameters), 2**parameters),
        trained(lab, FOLDERS.replace("LAST", str(folders - 1)), folders),
    ]


def main() -> None:
    arguments = options(__doc__ or "")
    report = Report("hyper", arguments.quick)
    samples, steps, tasks = (8, 80, 12) if arguments.quick else (16, 80, 20)
    names = list(CLAIMS)
    with Laboratory(cpu=0.25, network=0.125, files=[mnist()]) as lab:
        seen = tried(names[:2], lambda: recipes(lab))
        seen |= tried(names[2:7], lambda: losses(lab, samples, steps))
        seen |= tried(names[7:8], lambda: larger(lab, tasks))
        seen |= tried(
            names[8:], lambda: sweeps(lab, 5 if arguments.quick else 9, 30 if arguments.quick else 300)
        )
    report.end(CLAIMS, seen)


if __name__ == "__main__":
    main()
