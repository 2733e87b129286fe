"""What the tasks of an experiment have used, in short, for `status`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from trainmaster.db import queries
from trainmaster.executors import Usage, read_usage, total_usage
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.control.task.layout import RunFiles
    from trainmaster.db import Database

#: Of a run with more tasks only those that run now are looked at, and no more than so many of them.
MAX_TASKS = 100
#: What was seen for a shorter time says little.
MIN_SECONDS = 2.0


def run_usage(
    database: Database, files: RunFiles, run: str, experiments: Sequence[RowMapping]
) -> dict[str, dict[str, Any]]:
    """Usage by experiment, over the latest attempt of each task; those of which nothing was seen are missing.

    ``seconds``, ``cpu_seconds``, ``bytes_sent`` and ``bytes_received`` are sums over the tasks; ``cpu_share``
    (cores) and ``gpu_utilisation`` are means of a task, over its time; ``peak_rss_bytes`` and
    ``gpu_memory_bytes`` are those of the task that had most. ``members`` is there if there is one task.

    Args:
        database: the database.
        files: where the run's attempts lie.
        run: its id.
        experiments: its rows.
    """
    small = sum(row["tasks_total"] for row in experiments) <= MAX_TASKS
    if not small and all(row["state"] == State.DONE for row in experiments):
        return {}
    rows = queries.tasks(database, run, state=None if small else State.RUNNING, limit=MAX_TASKS)
    found: dict[str, list[dict[str, Usage]]] = {}
    for row in rows:
        if not row["attempt"]:
            continue
        place = files.attempt(run, row["experiment"], row["number"], row["attempt"])
        members = read_usage(place.directory, whole=False)
        if any(each.seconds >= MIN_SECONDS for each in members.values()):
            found.setdefault(row["experiment"], []).append(members)
    return {name: _shown(tasks) for name, tasks in found.items()}


def _shown(tasks: list[dict[str, Usage]]) -> dict[str, Any]:
    totals = [total for members in tasks if (total := total_usage(members.values()))]
    seconds = sum(total.seconds for total in totals)
    cpu_seconds = sum(total.cpu_seconds for total in totals)
    weighted = [(t.gpu_utilisation, t.seconds) for t in totals if t.gpu_utilisation is not None]
    whole = Usage(
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        cpu_share=cpu_seconds / seconds,
        peak_rss_bytes=max(total.peak_rss_bytes for total in totals),
        bytes_sent=_sum(total.bytes_sent for total in totals),
        bytes_received=_sum(total.bytes_received for total in totals),
        gpu_utilisation=sum(u * s for u, s in weighted) / sum(s for _, s in weighted) if weighted else None,
        gpu_memory_bytes=max(
            (t.gpu_memory_bytes for t in totals if t.gpu_memory_bytes is not None), default=None
        ),
    )
    shown = {"tasks": len(totals), **whole.as_json()}
    if len(tasks) == 1 and len(tasks[0]) > 1:
        shown["members"] = {name: usage.as_json() for name, usage in sorted(tasks[0].items())}
    return shown


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
