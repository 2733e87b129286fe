"""What tasks and the machine have used over time: CPU, memory, network, GPUs, for pictures.

What the tasks of an experiment have used, in short, for `status`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from trainmaster.control.task.layout import Home, RunFiles
from trainmaster.db import Database, queries
from trainmaster.executors.telemetry.usage import (
    LEAST_S,
    Usage,
    machine_samples,
    member_samples,
    node_members,
    node_samples,
    read_usage,
    total_usage,
)
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.service.runs.task_places import TaskPlaces

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


#: Of a run with more attempts the last ones are shown.
MAX_ATTEMPTS: Final = 40
#: Of a curve, at most.
POINTS: Final = 200


def usage_curves(database: Database, files: RunFiles, run: str, points: int = POINTS) -> list[dict[str, Any]]:
    """What each member of the last attempts of a run has used.

    Args:
        database: the database.
        files: where the run's attempts lie.
        run: its id.
        points: of one curve, at most.

    Returns:
        Of each ``experiment``, ``task``, ``attempt`` and ``member``: ``times`` (Unix seconds), and of the
        same length ``cpu_cores``, ``memory_bytes``, ``sent_bytes_per_s``, ``received_bytes_per_s`` and, with
        GPUs, ``gpus_busy`` and ``gpu_memory_bytes``; None where nothing is known.
    """
    found = []
    for row in queries.attempts(database, run)[-MAX_ATTEMPTS:]:
        place = files.attempt(run, row["experiment"], row["task"], row["number"])
        for member, samples in sorted(member_samples(place.directory).items()):
            curves = member_curves(samples, points)
            if curves["times"]:
                at = {"experiment": row["experiment"], "task": row["task"], "attempt": row["number"]}
                found.append({**at, "member": member, **curves})
    return found


def machine_curves(home: Home, since: float, until: float, points: int = POINTS) -> dict[str, list[Any]]:
    """What this machine's operating system saw between two times, Unix seconds.

    Returns:
        ``times``, and of the same length ``cpu_percent``, ``memory_available_bytes``, ``disk_free_bytes``,
        ``sent_bytes_per_s`` and ``received_bytes_per_s``.
    """
    samples = [row for row in machine_samples(home.root) if since <= row["time"] <= until]
    return _system_curves(_evenly(samples, points))


def node_curves(
    database: Database, files: RunFiles, run: str, places: TaskPlaces, points: int = POINTS
) -> list[dict[str, Any]]:
    """What the operating systems of the nodes of a run saw while its last attempts ran there.

    Args:
        database: the database.
        files: where the copies of the run's attempts lie.
        run: its id.
        places: on which machines its members were.
        points: of one curve, at most.

    Returns:
        Of each ``node``, which is called as `status` does if that is known, what `machine_curves` has, and
        with GPUs ``gpus_busy`` and ``gpu_memory_bytes``.
    """
    found: dict[str, dict[float, Mapping[str, Any]]] = {}
    names: dict[str, str] = {}
    for row in queries.attempts(database, run)[-MAX_ATTEMPTS:]:
        place = files.attempt(run, row["experiment"], row["task"], row["number"])
        at = places.machines(row["experiment"], row["task"], row["number"])
        machines = {each["member"]: each["machine"] for each in at}
        names |= {
            node: machines[member]
            for node, member in node_members(place.directory).items()
            if machines.get(member)
        }
        for node, samples in node_samples(place.directory).items():
            found.setdefault(node, {}).update((sample["time"], sample) for sample in samples)
    curves, called = [], dict[str, dict[float, Mapping[str, Any]]]()
    for node, looks in found.items():  # one that replaced another has its name
        called.setdefault(names.get(node, node), {}).update(looks)
    for node, looks in sorted(called.items()):
        kept = _evenly([looks[at] for at in sorted(looks)], points)
        curves.append({"node": node, **_system_curves(kept), **_gpu_curves(kept, "gpus_busy")})
    return curves


def _system_curves(kept: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {"times": [row["time"] for row in kept]}
    for key in ("cpu_percent", "memory_available_bytes", "disk_free_bytes"):
        found[key] = [row.get(key) for row in kept]
    for key in ("sent", "received"):
        found[f"{key}_bytes_per_s"] = _rates(kept, f"network_{key}_bytes", "time")
    return found


def _gpu_curves(kept: Sequence[Mapping[str, Any]], busy: str) -> dict[str, list[Any]]:
    """Those that there are: ``gpus_busy``, which the samples call so or so, and ``gpu_memory_bytes``."""
    found = {}
    for name, key in (("gpus_busy", busy), ("gpu_memory_bytes", "gpu_memory_bytes")):
        values = [row.get(key) for row in kept]
        if any(value is not None for value in values):
            found[name] = values
    return found


def member_curves(samples: Sequence[Mapping[str, Any]], points: int) -> dict[str, list[Any]]:
    """Curves of one member, of at most so many points: what is counted since its start as rates.

    >>> first = {"time": 10.0, "seconds": 1.0, "cpu_seconds": 0.5}
    >>> member_curves([first, {"time": 12.0, "seconds": 3.0, "cpu_seconds": 4.5}], 9)["cpu_cores"]
    [0.5, 2.0]
    """
    timed = [row for row in samples if isinstance(row.get("time"), int | float)]
    # The line at its end has no memory, and in a moment the processor time of all children.
    kept = _evenly([row for row in timed if row.get("processes") != 0] or timed, points)
    return {
        "times": [row["time"] for row in kept],
        "cpu_cores": _rates(kept, "cpu_seconds", "seconds", first=0.0),
        "memory_bytes": [row.get("rss_bytes") for row in kept],
        "sent_bytes_per_s": _rates(kept, "bytes_sent", "seconds", first=0.0),
        "received_bytes_per_s": _rates(kept, "bytes_received", "seconds", first=0.0),
        **_gpu_curves(kept, "gpu_utilisation"),
    }


def _evenly(rows: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """At most so many, the last one with them: counts since the start lose nothing by it."""
    step = -(-len(rows) // most) or 1
    return list(rows[::-1][::step][::-1])


def _rates(
    rows: Sequence[Mapping[str, Any]], key: str, clock: str, first: float | None = None
) -> list[float | None]:
    """By how much something that is counted grew in each second before each row."""
    found: list[float | None] = []
    before, at = first, first
    for row in rows:
        value = row.get(key)
        rate = None
        if value is not None and before is not None and at is not None and row[clock] - at >= LEAST_S:
            rate = round(max(0.0, value - before) / (row[clock] - at), 3)
        found.append(rate)
        if value is not None:
            before, at = value, row[clock]
    return found
