"""Estimates of a home's runs made once more, in the order of time, each by what was known when its run began.

The code decides as it does now; truths are those of the runs. So a change of what decides is judged in a
minute, over runs that took hours. Printed are kept rate, share inside, p95/p50 and interval score of whole
runs, and of each phase, for all runs and for both halves: by time, and by kind of job (every other one).

    python benchmarks/quotes_replay.py --home /var/tmp/trainmaster-quotes-kept/home

The home is copied and stays as it is. A lab must have been up in it last. Loads of the machine are those of
the rows of `quotes_kept.py`, where the home itself has not kept them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import tempfile
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from common import machine, options, report
from quotes_kept import ROWS, interval_score, naive

from trainmaster.advisor.quote.forecast import ExperimentProgress, RunningTask
from trainmaster.control.task.gangs import slots_of
from trainmaster.executors.base import Capacity
from trainmaster.executors.capacity import detect_capacity
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.quotes import home_load
from trainmaster.service.quotes.forecast_inputs import forecast_inputs
from trainmaster.service.quotes.history import History, histories
from trainmaster.service.quotes.home_load import HomeLoad
from trainmaster.service.quotes.measured_now import MeasuredNow, RunPlace
from trainmaster.service.quotes.phase_records import phases_of
from trainmaster.service.quotes.quote_service import Quoter
from trainmaster.service.runs.stored_recipe import stored_recipe
from trainmaster.service.service import Service
from trainmaster.spec import Recipe

#: What a home says of itself, and what of it changes no more.
COPIED, LINKED = ("identity", "lab/lab.json", "lab/settings.json", "lab/prices.csv"), ("snapshots",)
#: A phase of less is nobody's worry.
LEAST_S = 0.05
#: A run on this machine is estimated so long after its start, where it is not known when it was.
BEGUN_S = 1.2


def read_only(home: Path) -> contextlib.closing[sqlite3.Connection]:
    """The database of a home that may be in use."""
    address = f"file:{home / 'trainmaster.db'}?mode=ro"
    return contextlib.closing(sqlite3.connect(address, uri=True))


class Past:
    """A copy of a home that goes through its own past.

    Args:
        home: of the runs.
        root: where the copy is made.
        loads: load of the machine at Unix times, in their order.
    """

    def __init__(self, home: Path, root: Path, loads: Sequence[tuple[float, float]]) -> None:
        self.home, self._loads = root, loads
        for name in COPIED:
            (root / name).parent.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(home / name, root / name)
        for name in LINKED:
            (root / name).symlink_to(home / name)
        self._file = root / "trainmaster.db"
        with read_only(home) as source, contextlib.closing(sqlite3.connect(self._file)) as copy:
            source.backup(copy)
        self._later = list(self._forget())

    def _forget(self) -> Iterator[tuple[float, str, tuple[Any, ...]]]:
        """Takes everything out that was learnt; gives back when, and how to put it in again."""
        with contextlib.closing(sqlite3.connect(self._file)) as base, base:
            ended = dict(base.execute("select id, closed_at from run"))
            began = dict(base.execute("select id, created_at from run"))
            for table, when in (("measurement", "measured_at"), ("quote", None)):
                rows = base.execute(f"select * from {table}")
                names = [each[0] for each in rows.description]
                text = f"insert into {table} values ({', '.join('?' * len(names))})"
                for row in rows.fetchall():
                    known = dict(zip(names, row, strict=True))
                    if known.get("kind") == "forecast":
                        known["data"] = self._with_load(known["data"], began.get(known["run_id"], 0.0))
                        row = tuple(known.values())
                    at = known[when] if when else ended.get(known["run_id"])
                    yield at or float("inf"), text, row
                base.execute(f"delete from {table}")
            for cluster, waited_s, data in base.execute("select id, waited_s, data from cluster").fetchall():
                at = json.loads(data).get("asked_at") if waited_s is not None else None
                if at is not None:
                    yield at + waited_s, "update cluster set waited_s = ? where id = ?", (waited_s, cluster)
            ends = base.execute("select id, ended_at, closed_at from run")
            for run, ended_at, closed_at in ends.fetchall():
                if closed_at is not None:
                    text = "update run set ended_at = ?, closed_at = ? where id = ?"
                    yield closed_at, text, (ended_at, closed_at, run)
            base.execute("update cluster set waited_s = null")
            base.execute("update run set ended_at = null, closed_at = null")

    def until(self, at: float) -> None:
        """All that was known at a time is known."""
        with contextlib.closing(sqlite3.connect(self._file)) as base, base:
            for _, text, values in (each for each in self._later if each[0] < at):
                base.execute(text, values)
        self._later = [each for each in self._later if each[0] >= at]

    def _with_load(self, data: str, began: float) -> str:
        """How far a run is, with the load as it began."""
        return json.dumps({"load": self.load(began)} | json.loads(data))

    def load(self, at: float) -> float:
        """Of the machine, as far as it is known."""
        place = bisect(self._loads, (at, float("inf")))
        return self._loads[max(place - 1, 0)][1] if self._loads else 0.0


def how_far(home: Path, run: str, at: float, first_step_s: float) -> dict[str, ExperimentProgress]:
    """How far the tasks of a run were at a time: their steps went evenly from the first to the last one."""
    query = (
        "select e.name, t.number, t.started_at, t.ended_at, t.metrics from task t "
        "join experiment e on e.id = t.experiment_id where e.run_id = ? order by t.number"
    )
    with read_only(home) as base:
        rows = base.execute(query, (run,)).fetchall()
        total = stored_recipe_steps(base, run)
    found: dict[str, ExperimentProgress] = {}
    for name, number, started_at, ended_at, metrics in rows:
        doing = found.setdefault(name, ExperimentProgress())
        if started_at is None or ended_at is None or at < started_at:
            continue
        if ended_at <= at:
            found[name] = replace(doing, ended=doing.ended + 1)
            continue
        step, share = json.loads(metrics or "{}").get("step"), None
        if step and total.get(name) and at - started_at > first_step_s:
            part = (at - started_at - first_step_s) / max(ended_at - started_at - first_step_s, 1e-3)
            share = min(part * step / total[name], 1.0)
        task = RunningTask(at - started_at, share, number=number)
        found[name] = replace(doing, running=(*doing.running, task))
    return found


def stored_recipe_steps(base: sqlite3.Connection, run: str) -> dict[str, float]:
    """Steps of a task of each experiment, where the recipe has them."""
    recipe = json.loads(base.execute("select recipe from run where id = ?", (run,)).fetchone()[0])
    return {name: each["steps"] for name, each in recipe["experiments"].items() if each.get("steps")}


def estimated(
    service: Service, row: Any, made_at: float, far: Mapping[str, ExperimentProgress]
) -> tuple[dict[str, float], dict[str, Any]] | None:
    """Time of a run and of its phases, as they are estimated now; None if nothing is known."""
    recipe = stored_recipe(row)
    snapshot = Path(row["code_path"])
    snapshot = service.home.root / "snapshots" / snapshot.name

    def measurements(asked: Recipe, load: HomeLoad | None = None) -> dict[str, History]:
        return histories(service.database, service.home, asked, snapshot, load=load)

    service.measurements = measurements  # type: ignore[method-assign]
    if not capabilities_of(recipe.provider).is_here:
        quote, _ = Quoter(service, lambda _: None, measures=False).estimate(recipe, {})
        if quote is None or quote.is_unknown:
            return None
        return quote.time_s.as_dict(), {e.name: e.time_s.as_dict() for e in quote.main.phases}
    known, place = MeasuredNow(), RunPlace(None)
    for name, history in service.measurements(recipe).items():
        known.read(name, history, place.where(name).offer)
    if not all(known.of(name)[0] or known.of(name)[1] for name in recipe.experiments):
        return None
    machine = detect_capacity()
    slots = max([machine.cores, *(slots_of(each) for each in recipe.experiments.values())])

    found = forecast_inputs(
        recipe,
        made_at,
        max(made_at - row["created_at"], 0.0),
        {name: (False, far.get(name, ExperimentProgress())) for name in recipe.experiments},
        {name: known.of(name) for name in recipe.experiments},
        {name: place.device(each) for name, each in recipe.experiments.items()},
        Capacity(slots, machine.gpus),
        None,
        {
            n: replace(e.beside("local", "", ""), is_over=bool(far.get(n, ExperimentProgress()).running))
            for n, e in phases_of(service, recipe, {}, snapshot).items()
        },
        dict(known.curves),
        earlier_trials=dict(known.earlier_trials),
    )
    spans = next(iter(found.training.values())).items()
    return found.time_s.as_dict(), {n: dict(zip(("p5", "p50", "p95"), s, strict=True)) for n, s in spans}


def replayed(past: Past, service: Service, home: Path) -> list[dict[str, Any]]:
    """Of each run that has succeeded: what is estimated, and what came."""
    with read_only(home) as base:
        truths = {
            run: (made_at, time_s)
            for run, made_at, time_s in base.execute(
                "select run_id, min(made_at), max(time_s) from quote "
                "where kind != 'forecast' and time_s > 0 group by run_id"
            )
        }
        courses = dict(base.execute("select run_id, data from quote where kind = 'forecast'"))
        asked = dict(
            base.execute("select run_id, min(made_at) from quote where kind = 'estimate' group by run_id")
        )
        base.row_factory = sqlite3.Row
        query = "select * from run where reason = 'SUCCEEDED' order by created_at"
        rows = [dict(row) for row in base.execute(query).fetchall()]
    found = []
    for row in rows:
        if row["id"] not in truths:
            continue
        past.until(row["created_at"])
        load = past.load(row["created_at"])
        os.getloadavg = lambda load=load: (load, load, load)  # type: ignore[assignment]
        home_load._NOW = Path(os.devnull)  # what is at work now was not then
        took = next(iter(json.loads(courses.get(row["id"], "{}")).get("courses", {}).values()), {})
        made_at = asked.get(row["id"], row["created_at"] + BEGUN_S)
        far = how_far(home, row["id"], made_at, took.get("took", {}).get("first step", 0.0))
        made = estimated(service, row, made_at, far)
        if made is None:
            continue
        found.append(
            {
                "run": row["id"],
                "kind": row["name"],
                "at": row["created_at"],
                "load": load,
                "time_s": made[0],
                "truth_s": truths[row["id"]][1],
                "phases": made[1],
                "took": took.get("took", {}),
            }
        )
    return found


def score(rows: Sequence[tuple[dict[str, float], float]]) -> dict[str, Any]:
    """Of intervals and truths."""
    if not rows:
        return {"quotes": 0}
    inside = [q["p5"] <= truth <= q["p95"] for q, truth in rows]
    return {
        "quotes": len(rows),
        "within_p95": round(mean(truth <= q["p95"] for q, truth in rows), 3),
        "inside": round(mean(inside), 3),
        "p95_over_p50": round(median(q["p95"] / max(q["p50"], 1e-3) for q, _ in rows), 2),
        "truth_over_p50": round(median(truth / max(q["p50"], 1e-3) for q, truth in rows), 2),
        "score": round(mean(interval_score(q["p5"], q["p95"], truth) for q, truth in rows), 3),
    }


def summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of whole runs, and of each phase."""
    past: dict[str, list[float]] = defaultdict(list)
    simple = {}
    for each in found:
        simple[each["run"]] = naive(past[each["kind"]])
        past[each["kind"]].append(each["truth_s"])
    kinds = sorted({each["kind"] for each in found})
    middle = median(each["at"] for each in found)
    groups = {
        "all": lambda _: True,
        "first half": lambda each: each["at"] < middle,
        "second half": lambda each: each["at"] >= middle,
        "half of the kinds": lambda each: kinds.index(each["kind"]) % 2 == 0,
        "other kinds": lambda each: kinds.index(each["kind"]) % 2 == 1,
    }
    groups |= {kind: lambda each, kind=kind: each["kind"] == kind for kind in kinds}
    told: dict[str, Any] = {}
    for name, takes in groups.items():
        mine = [each for each in found if takes(each)]
        told[name] = score([(each["time_s"], each["truth_s"]) for each in mine])
        both = [(simple[each["run"]], each["truth_s"]) for each in mine if simple[each["run"]]]
        told[name]["naive"] = round(mean(interval_score(*s, t) for s, t in both), 3) if both else None
    phases: dict[str, list[tuple[dict[str, float], float]]] = defaultdict(list)
    for each in found:
        for phase, span in each["phases"].items():
            if phase in each["took"] and span["p50"] > LEAST_S:
                phases[phase].append((span, max(each["took"][phase], LEAST_S)))
    return {"runs": told, "phases": {name: score(rows) for name, rows in phases.items()}}


def main() -> None:
    chosen = options(__doc__ or "", home="/var/tmp/trainmaster-quotes-kept/home", rows=str(ROWS), out="")
    rows = [json.loads(line) for line in Path(chosen.rows).read_text().splitlines()]
    loads = sorted((each["at"], each["load"][0]) for each in rows)
    with tempfile.TemporaryDirectory() as root:
        past = Past(Path(chosen.home), Path(root), loads)
        environ = {"TRAINMASTER_HOME": root, "TRAINMASTER_CACHE": f"{root}/cache"}  # no setup is there yet
        with contextlib.closing(Service.from_environment(environ)) as service:
            found = replayed(past, service, Path(chosen.home))
    if chosen.out:
        Path(chosen.out).write_text("".join(json.dumps(each) + "\n" for each in found))
    report("quotes_replay", {"of": machine(), **summary(found)})


if __name__ == "__main__":
    main()
