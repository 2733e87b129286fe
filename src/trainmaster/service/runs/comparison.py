"""`compare`: several runs beside each other; `code_changes`: how their code differs, file by file."""

from __future__ import annotations

import difflib
import filecmp
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.service.runs.curves import stated_goals
from trainmaster.service.runs.stored_recipe import recipe_texts, text_as_sent
from trainmaster.spec.errors import UsageError
from trainmaster.spec.metric_names import in_order

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from sqlalchemy.engine import RowMapping

    from trainmaster.service.teams.team_runs import TeamRuns

MAX_RUNS: Final = 8
#: Points of each curve that are read to find its best value; those are never thinned away.
_POINTS: Final = 4
#: The lines of so many files at most are shown, of files of at most so many bytes, and so many of each.
_MAX_FILES: Final = 20
_MAX_BYTES: Final = 64 << 10
_MAX_LINES: Final = 200
#: So many files are named at most.
_MAX_NAMED: Final = 200
#: What programs are written in. All else in a folder of code may be data, settings, or what a run has left.
_SOURCE: Final = re.compile(
    r".*\.(bash|cc?|cpp|cuh?|go|h|hpp|ipynb|java|jl|js|lua|pl|pyx?|r|rs|scala|sh|sql)",
    re.IGNORECASE | re.DOTALL,
)


def compare(found: TeamRuns, runs: Sequence[str]) -> dict[str, Any]:
    """Several runs beside each other.

    Args:
        found: the runs that the caller sees.
        runs: their ids, at most `MAX_RUNS`.

    Returns:
        ``metrics`` (all names, each with its goal, what recipes look at first),
        ``runs``: of each its state, time and cost, ``best`` (of
        each metric the ``value`` and where), ``tasks`` (parameters and best values) and ``inputs`` (by
        experiment, see `inputs_of`), and ``diffs``: how the recipe of each run differs from that of the first
        one, as ``lines`` of a unified diff, its ``code``, as `code_changes` tells it (None if one of both is
        not here: another server has it alone), and its ``inputs``: of each that differs ``experiment``,
        ``name``, ``before`` and ``after``, None where there is none.

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
    recipes = recipe_texts(rows)
    goals = {key: goal for each in compared for key, goal in each.pop("goals").items()}
    stored = [each for row in rows for each in json.loads(row["recipe"])["experiments"].values()]
    stated = [key for each in stored for key in stated_goals(each) if key in goals]
    return {
        "metrics": {key: goals[key] for key in dict.fromkeys((*stated, *in_order(goals)))},
        "runs": compared,
        "diffs": [
            {
                "run": run,
                "lines": recipe_diff(recipes[0], recipe, ids[0], run),
                "code": _code_changes(found, rows[0], row),
                "inputs": _input_changes(compared[0]["inputs"], its["inputs"]),
            }
            for run, row, recipe, its in zip(ids[1:], rows[1:], recipes[1:], compared[1:], strict=True)
        ],
    }


def _code_changes(found: TeamRuns, before: RowMapping, after: RowMapping) -> list[dict[str, Any]] | None:
    """How the code differs, but for recipes, wherever they lie in it: they are compared by themselves."""
    if Path(before["code_path"]).name == Path(after["code_path"]).name:
        return []
    old, new = (found.code(row["id"]) for row in (before, after))
    recipes = {text_as_sent(row).encode() for row in (before, after)} - {b""}
    return code_changes(old, new, recipes) if old and new else None


def _input_changes(
    before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]
) -> list[dict[str, str | None]]:
    """Which inputs differ, by experiment.

    >>> _input_changes({"t": {"data.x": "volume x@1"}}, {"t": {"data.x": "volume x@2"}})
    [{'experiment': 't', 'name': 'data.x', 'before': 'volume x@1', 'after': 'volume x@2'}]
    """
    found: list[dict[str, str | None]] = []
    for experiment in dict.fromkeys((*before, *after)):
        old, new = before.get(experiment, {}), after.get(experiment, {})
        found += (
            {"experiment": experiment, "name": name, "before": old.get(name), "after": new.get(name)}
            for name in dict.fromkeys((*old, *new))
            if old.get(name) != new.get(name)
        )
    return found


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
        **{key: status[key] for key in _STATUS if key in status},
        **({"owner": owner} if (owner := found.brief(run).get("owner")) else {}),
        "goals": goals,
        "best": best,
        "tasks": list(tasks.values()),
        "inputs": found.details(run).inputs(),
    }


_PLACE: Final = ("experiment", "task", "parameters")
_STATUS: Final = ("run", "state", "reason", "seconds", "queued_s", "cost_usd")


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


def code_changes(before: Path, after: Path, without: Collection[bytes] = ()) -> list[dict[str, Any]]:
    """What differs between two snapshots of code.

    Args:
        before: a directory.
        after: another one.
        without: contents of files that are not looked at.

    Returns:
        Of each file that differs its ``path``, whether it ``is_source`` of a program, its ``change``
        (``changed``, ``added`` or ``removed``), and of small texts that were changed the ``lines`` of a
        unified diff. Sources come first.
    """
    ours, theirs = _files(before), _files(after)
    found: list[dict[str, Any]] = []
    for path in sorted({*ours, *theirs}, key=lambda path: (not _is_source(path), path)):
        old, new = ours.get(path), theirs.get(path)
        if old and new and _are_same(old, new):
            continue
        if all(_is_one_of(each, without) for each in (old, new) if each):
            continue
        change = "changed" if old and new else "added" if new else "removed"
        lines = _diff(old, new, path) if old and new and len(found) < _MAX_FILES else []
        found.append({"path": path, "is_source": _is_source(path), "change": change, "lines": lines})
        if len(found) == _MAX_NAMED:
            break
    return found


def _is_source(path: str) -> bool:
    return _SOURCE.fullmatch(path) is not None


def _files(top: Path) -> dict[str, Path]:
    return {
        each.relative_to(top).as_posix(): each
        for each in top.rglob("*")
        if each.is_symlink() or each.is_file()
    }


def _are_same(old: Path, new: Path) -> bool:
    """Links are not followed: they may lead out of the code."""
    if old.is_symlink() or new.is_symlink():
        return old.is_symlink() and new.is_symlink() and old.readlink() == new.readlink()
    is_run = [each.stat().st_mode & 0o100 for each in (old, new)]
    return is_run[0] == is_run[1] and filecmp.cmp(old, new, shallow=False)


def _is_one_of(file: Path, contents: Collection[bytes]) -> bool:
    size = -1 if file.is_symlink() else file.stat().st_size
    return any(len(each) == size and file.read_bytes() == each for each in contents)


def _diff(old: Path, new: Path, path: str) -> list[str]:
    """Lines of a diff; none if one of both is no small text."""
    if old.is_symlink() or new.is_symlink():
        return []
    if max(old.stat().st_size, new.stat().st_size) > _MAX_BYTES:
        return []
    try:
        before, after = (each.read_text("utf-8").splitlines() for each in (old, new))
    except UnicodeDecodeError:
        return []
    lines = list(difflib.unified_diff(before, after, path, path, lineterm=""))
    left_out = len(lines) - _MAX_LINES
    return lines if left_out <= 0 else [*lines[:_MAX_LINES], f" ... {left_out} more lines"]
