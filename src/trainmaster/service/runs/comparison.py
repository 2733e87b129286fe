"""`compare`: several runs beside each other."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.service.runs.code_changes import code_changes
from trainmaster.service.runs.stored_recipe import recipe_text, stored_recipe
from trainmaster.spec.errors import UsageError
from trainmaster.spec.metric_names import in_order
from trainmaster.spec.node import written

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.engine import RowMapping

    from trainmaster.service.teams.team_runs import TeamRuns

MAX_RUNS: Final = 8
#: Points of each curve that are read to find its best value; those are never thinned away.
_POINTS: Final = 4


def compare(found: TeamRuns, runs: Sequence[str]) -> dict[str, Any]:
    """Several runs beside each other.

    Args:
        found: the runs that the caller sees.
        runs: their ids, at most `MAX_RUNS`.

    Returns:
        ``metrics`` (all names, each with its goal), ``runs``: of each its state, time and cost, ``best`` (of
        each metric the ``value`` and where) and ``tasks`` (parameters and best values), and ``diffs``: how
        the recipe of each run differs from that of the first one, as ``lines`` of a unified diff, and its
        code, as `code_changes` tells it; None if one of both is not here (another server has it alone).

    Raises:
        NotFoundError: one is not there, or not the caller's to see.
        UsageError: none, or too many.
    """
    ids = list(dict.fromkeys(runs))
    if not 1 <= len(ids) <= MAX_RUNS:
        raise UsageError(
            f"{len(ids)} runs to compare", f"Name, or mark in the list of runs, up to {MAX_RUNS}."
        )
    compared = [_run(found, run) for run in ids]
    rows = [found.row(run) for run in ids]
    recipes = _recipes(rows)
    goals = {key: goal for each in compared for key, goal in each.pop("goals").items()}
    return {
        "metrics": {key: goals[key] for key in in_order(goals)},
        "runs": compared,
        "diffs": [
            {
                "run": run,
                "lines": recipe_diff(recipes[0], recipe, ids[0], run),
                "code": _code_changes(found, rows[0], row),
            }
            for run, row, recipe in zip(ids[1:], rows[1:], recipes[1:], strict=True)
        ],
    }


def _code_changes(found: TeamRuns, before: RowMapping, after: RowMapping) -> list[dict[str, Any]] | None:
    """How the code differs, but for recipes, wherever they lie in it: they are compared by themselves."""
    if Path(before["code_path"]).name == Path(after["code_path"]).name:
        return []
    old, new = (found.code(row["id"]) for row in (before, after))
    recipes = {_sent(row).encode() for row in (before, after)} - {b""}
    return code_changes(old, new, recipes) if old and new else None


def _sent(row: RowMapping) -> str:
    return str(json.loads(row["recipe"]).get("source_text", ""))


def _recipes(rows: Sequence[RowMapping]) -> list[str]:
    """As they were sent; if more was said of one (`--set`), all in one form, so that keys alone differ."""
    told = [recipe_text(row) for row in rows]
    return told if told == [*map(_sent, rows)] else [written(stored_recipe(row).tree()) for row in rows]


def recipe_diff(before: str, after: str, before_name: str, after_name: str) -> list[str]:
    """How one recipe became another, as lines of a unified diff; none if they are the same."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), before_name, after_name, lineterm=""
    )
    return list(lines)


def _run(found: TeamRuns, run: str) -> dict[str, Any]:
    status = found.status(run)
    tasks: dict[tuple[str, int], dict[str, Any]] = {}
    best: dict[str, dict[str, Any]] = {}
    goals: dict[str, str] = {}
    for curve in found.metrics(run, points=_POINTS):
        at = curve["experiment"], curve["task"]
        task = tasks.setdefault(
            at,
            {"experiment": at[0], "task": at[1], "parameters": dict(curve["parameters"]), "metrics": {}},
        )
        key = curve["key"]
        goals.setdefault(key, curve["goal"])
        if curve["best"] is None:
            continue
        task["metrics"][key] = curve["best"]
        if key not in best or is_better(curve["best"], best[key]["value"], goals[key]):
            best[key] = {"value": curve["best"], **{name: task[name] for name in _PLACE}}
    return {
        **{key: status[key] for key in _STATUS},
        "goals": goals,
        "best": best,
        "tasks": list(tasks.values()),
    }


_PLACE: Final = ("experiment", "task", "parameters")
_STATUS: Final = ("run", "state", "reason", "seconds", "cost_usd")


def is_better(value: float, other: float, goal: str) -> bool:
    """Whether a value is better than another one.

    >>> is_better(0.1, 0.2, "min"), is_better(0.1, 0.2, "max")
    (True, False)
    """
    return value < other if goal == "min" else value > other


def varied(tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the parameters that are not the same in all tasks, in order.

    >>> varied([{"parameters": {"lr": 1, "seed": 3}}, {"parameters": {"lr": 2, "seed": 3}}])
    ['lr']
    """
    names = dict.fromkeys(name for task in tasks for name in task["parameters"])
    return [name for name in names if len({str(task["parameters"].get(name)) for task in tasks}) > 1]
