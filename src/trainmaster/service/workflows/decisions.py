"""What is due of workflows: versions and times; which start waits, is skipped, or has its turn. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from trainmaster.dataclass import dataclass

if TYPE_CHECKING:
    from trainmaster.spec.trigger import Trigger

#: So many workflows may start each other one after the other.
LONGEST_CHAIN: Final = 8
#: Of times that were missed, these are looked through for the newest one first.
_RECENT_S: Final = 14 * 86400.0
#: A time that came that long ago was missed: the server was down, or not asked.
LATE_S: Final = 60.0
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Due:
    """A version or a time that is to start a run.

    Attributes:
        seen: what the trigger has seen from now on.
        cause: what it is called: ``pets@3``, ``2026-11-22T03:00:00Z``.
        message: which were skipped for it; empty if none was.
        starts: false for one that was missed and is not to be made up for.
    """

    seen: float
    cause: str
    message: str = ""
    starts: bool = True


def due_version(volume: str, seen: float, versions: Sequence[int]) -> Due | None:
    """The newest version of a volume, if no start was decided for it; versions between are skipped.

    >>> due_version("pets", 1, [1, 2, 3])
    Due(seen=3, cause='pets@3', message='version 2 was skipped: 3 is newer', starts=True)
    """
    fresh = sorted(version for version in versions if version > seen)
    if not fresh:
        return None
    *older, newest = fresh
    message = ""
    if older:
        named = ", ".join(map(str, older[-_MOST_NAMED:])) + (" ..." if len(older) > _MOST_NAMED else "")
        what = f"version {named} was" if len(older) == 1 else f"versions {named} were"
        message = f"{what} skipped: {newest} is newer"
    return Due(newest, f"{volume}@{newest}", message)


def due_time(trigger: Trigger, seen: float, now: float) -> Due | None:
    """The newest time of a schedule that has come, if no start was decided for it; others are skipped."""
    begin = max(seen, now - _RECENT_S)
    times = _until(trigger, begin, now)
    if not times and begin > seen:  # a rare one, such as on each January 1st
        times = _until(trigger, seen, now)
    if not times:
        return None
    newest, missed = times[-1], len(times) - 1
    late = now - newest > LATE_S
    message = "it was missed, and is made up for" if late else ""
    if missed:
        message = f"{missed} earlier {'time was' if missed == 1 else 'times were'} missed"
    if late and not trigger.catch_up:
        return Due(newest, time_name(newest), "it was missed, and catch_up is false", starts=False)
    return Due(newest, time_name(newest), message)


def _until(trigger: Trigger, after: float, now: float) -> list[float]:
    found = []
    for at in trigger.times(after):
        if at > now:
            break
        found.append(at)
    return found


def time_name(at: float) -> str:
    """A time as a cause.

    >>> time_name(0.0)
    '1970-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- who starts -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waiting:
    """A start that waits.

    Attributes:
        firing: its id; a later one has a larger one.
        cause: what it is called.
        due_at: Unix seconds of the earliest try.
    """

    firing: int
    cause: str
    due_at: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done with the starts of a workflow that wait.

    Attributes:
        start: the one that may start now, by its id.
        skip: ids of those that never will, and why.
        cancel: runs that are to end for it.
    """

    start: int | None
    skip: Mapping[int, str]
    cancel: Sequence[str] = ()


def plan(concurrency: str, waiting: Sequence[Waiting], under_way: Sequence[str], now: float) -> Plan:
    """Whose turn it is: of those that wait the newest wins, and one run of a workflow goes on at a time.

    Args:
        concurrency: ``wait``, ``skip`` or ``cancel``.
        waiting: all that wait.
        under_way: runs of the workflow that are not over.
        now: Unix seconds.
    """
    if not waiting:
        return Plan(None, {})
    *older, newest = sorted(waiting, key=lambda each: each.firing)
    skip = {each.firing: f"{newest.cause} came before it could start" for each in older}
    if under_way and concurrency == "skip":
        return Plan(None, {**skip, newest.firing: f"{under_way[0]} was under way"})
    if under_way:
        return Plan(None, skip, tuple(under_way) if concurrency == "cancel" else ())
    return Plan(newest.firing if newest.due_at <= now else None, skip)


# --- loops ----------------------------------------------------------------------------------------------


def loop_at(
    name: str,
    reads: Collection[str],
    writes: Collection[str],
    others: Mapping[str, tuple[set[str], set[str]]],
) -> list[str]:
    """Names of workflows on the shortest loop that a workflow would close, it first and last; empty if none.

    Args:
        name: of the workflow.
        reads: volumes whose versions start it.
        writes: volumes that it pushes.
        others: the same two of the team's other workflows.
    """
    everyone = {**others, name: (set(reads), set(writes))}
    queue, known = [[name]], {name}
    while queue:
        path = queue.pop(0)
        pushed = everyone[path[-1]][1]
        for other, (read, _) in sorted(everyone.items()):
            if not pushed & read:
                continue
            if other == name:
                return [*path, name]
            if other not in known:
                known.add(other)
                queue.append([*path, other])
    return []


def chain_fault(workflow: str, chain: Sequence[str], names: Mapping[str, str]) -> str:
    """Why a workflow is not started by what a chain of workflows has led to; empty if it may be.

    Args:
        workflow: its id.
        chain: ids, the first one first.
        names: of workflows by id.
    """
    if workflow in chain:
        loop = [*chain[chain.index(workflow) :], workflow]
        words = " -> ".join(names.get(each, each) for each in loop)
        return f"a loop: {words}; a run of it, or of one that it has started, made this version"
    if len(chain) >= LONGEST_CHAIN:
        return f"{len(chain)} workflows have started each other one after the other: no more than that"
    return ""
