"""`StepProfile`: steps of a task in a part of its time; `drift_between`: what two of these say. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from trainmaster.executors.usage import Usage, node_samples, read_usage

if TYPE_CHECKING:
    from pathlib import Path

    from trainmaster.advisor.model.step_trace import StepTrace

#: Steps that take by less longer are as they were; and what one looks at now, in seconds.
_SLOWER: Final = 1.15
_NOW_S: Final = 30.0
#: Of each cause, by how much what it shows in must have changed.
_MORE_WORK: Final = 1.2
_MORE_MS: Final = 1.0
_BUSY: Final = 0.3
#: Share of what steps take longer that the one member waits more for its processors than any other.
_STANDS_OUT: Final = 0.3
#: A member that sends less a step waits for no network card.
_MUCH_BYTES: Final = 1e5


@dataclass(frozen=True, slots=True)
class StepProfile:
    """Of the workers of one task, by member where it says so.

    Attributes:
        step_s: of one step.
        cpu_s: of processors per step, the mean of the members. sent_bytes: per step; None if unknown.
        round_trip_ms: between the machines, the worst; None if there is one machine, or if unknown.
        others: share of a node's processors that others keep busy, by node, as far as known.
        members: how many there are.
        cpu_wait_s: per step, for which a member's threads were ready and had no processor, by member.
        sending_s: per step, for which a member was sending to other machines, by member.
    """

    step_s: float
    cpu_s: float
    sent_bytes: float | None = None
    round_trip_ms: float | None = None
    others: Mapping[str, float] | None = None
    members: int = 1
    cpu_wait_s: Mapping[str, float] | None = None
    sending_s: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Drift:
    """Steps take longer than they did.

    Attributes:
        words: what makes them so, and what to do.
        usual_s, step_s: what one took, and takes.
        member: that all others wait for, as its machine gives it less; empty if none stands out.
    """

    words: str
    usual_s: float
    step_s: float
    member: str = ""


def drift_between(before: StepProfile, now: StepProfile) -> Drift | None:
    """What makes steps take longer than before; None if they do not.

    >>> drift_between(StepProfile(1.0, 0.9), StepProfile(1.05, 0.9))

    Args:
        before: as the steps went first.
        now: as they go.
    """
    if now.step_s < _SLOWER * before.step_s:
        return None
    found = Drift(_why_slower(before, now), before.step_s, now.step_s)
    if _computes_more(before, now):  # who does waits more, too
        return found
    drift = f"a step takes {now.step_s:.3g} s, not {before.step_s:.3g} s"
    longer_s = now.step_s - before.step_s
    if member := _standing_out(before.cpu_wait_s, now.cpu_wait_s, longer_s):
        wait_s, was_s = ((each.cpu_wait_s or {})[member] for each in (now, before))
        told = f"{member} waits {wait_s:.3g} s of it for its processors, not {was_s:.3g} s"
        why = (
            "something else runs there, or its machine has used its credits: end that, or replace the machine"
        )
        return replace(found, words=f"{drift}, as {told}: {why}", member=member)
    member = _standing_out(before.sending_s, now.sending_s, longer_s)
    if member and not _is_on_all_ways(before, now, member):
        busy_s, was_s = ((each.sending_s or {})[member] for each in (now, before))
        told = f"{member} sends for {busy_s:.3g} s of it, not {was_s:.3g} s"
        why = "the network card of its machine is full, or carries less: replace the machine"
        return replace(found, words=f"{drift}, as {told}: {why}", member=member)
    return found


def _computes_more(before: StepProfile, now: StepProfile) -> bool:
    """Whether there is more to compute, and steps take longer by that: what hardly computes waits."""
    longer_s = now.step_s - before.step_s
    return now.cpu_s > _MORE_WORK * before.cpu_s and now.cpu_s - before.cpu_s >= _STANDS_OUT * longer_s


def _is_on_all_ways(before: StepProfile, now: StepProfile, member: str) -> bool:
    """Whether packets take longer between all machines: who talks to most of them sends for longest then.

    A full card makes the ways to its machine longer, and hardly those between the others.
    """
    trip, was, longer_s = now.round_trip_ms, before.round_trip_ms, now.step_s - before.step_s
    if trip is None or was is None or (trip - was) / 1e3 < _STANDS_OUT * longer_s:
        return False
    known = before.sending_s or {}
    more = [s - known[name] for name, s in (now.sending_s or {}).items() if name in known and name != member]
    return bool(more) and min(more) >= _STANDS_OUT * longer_s


def _standing_out(
    before: Mapping[str, float] | None, now: Mapping[str, float] | None, longer_s: float
) -> str:
    """The member of which something takes longer by more of what steps do than of any other; or empty."""
    was = before or {}
    more = {name: seconds - was[name] for name, seconds in (now or {}).items() if name in was}
    first = max(more, key=lambda name: more[name], default="")
    rest = max((seconds for name, seconds in more.items() if name != first), default=0.0)
    return first if first and more[first] - max(rest, 0.0) >= _STANDS_OUT * longer_s else ""


def _why_slower(before: StepProfile, now: StepProfile) -> str:
    drift = f"a step takes {now.step_s:.3g} s, not {before.step_s:.3g} s"
    if _computes_more(before, now):
        return f"{drift}, as it computes more: that is the script's own, no other machine helps"
    trip, was = now.round_trip_ms, before.round_trip_ms
    if trip is not None and was is not None and trip - was > _MORE_MS and trip > 2 * was:
        told = f"packets between its machines take {trip:.3g} ms, not {was:.3g} ms"
        return f"{drift}, as {told}: machines in one zone are nearer to each other"
    known = before.others or {}
    others = {node: share - known.get(node, 0.0) for node, share in (now.others or {}).items()}
    if others and max(others.values()) > _BUSY:
        node = max(others, key=lambda name: others[name])
        told = f"something else keeps {100 * others[node]:.0f} % of {node} busy"
        return f"{drift}, as {told}: end that, or replace {node}"
    if now.members == 1:
        return f"{drift}, and it computes no more: it waits for its data, or its machine has used its credits"
    if now.sent_bytes is not None and now.sent_bytes > _MUCH_BYTES:
        rate, had = now.sent_bytes / now.step_s / 1e6, now.sent_bytes / before.step_s / 1e6
        told = f"members send {rate:.3g} MB/s, not {had:.3g}"
        return f"{drift}, and they compute no more: the network carries less ({told}), or one machine is slow"
    return f"{drift}, and members compute no more and send little: one of its machines is slow"


def pace_of(
    trace: StepTrace, directory: Path, started_at: float, begin: float, end: float
) -> StepProfile | None:
    """How steps went between two moments; None if too little of that is known.

    Args:
        trace: of the task's steps.
        directory: of its attempt.
        started_at: Unix seconds: when its members were started.
        begin: Unix seconds.
        end: Unix seconds.
    """
    steps = trace.steps_at(end) - trace.steps_at(begin)
    found = read_usage(directory, begin - started_at, end - started_at)
    used = [usage for name, usage in found.items() if name.startswith("worker-") and usage.seconds > 1.0]
    if steps < 1 or not used:
        return None
    step_s = (end - begin) / steps
    sent = [usage.bytes_sent / usage.seconds for usage in used if usage.bytes_sent is not None]
    trips = [usage.round_trip_ms for usage in used if usage.round_trip_ms is not None]
    return StepProfile(
        step_s,
        sum(usage.cpu_share for usage in used) / len(used) * step_s,
        sum(sent) / len(sent) * step_s if sent else None,
        max(trips, default=None),
        _others(directory, begin, end),
        len(used),
        *(_per_step(found, each, step_s) for each in ("cpu_wait_seconds", "send_busy_seconds")),
    )


def _per_step(found: Mapping[str, Usage], what: str, step_s: float) -> dict[str, float]:
    """Seconds of something, by member."""
    known = {name: getattr(usage, what) for name, usage in found.items() if usage.seconds > 1.0}
    return {
        name: seconds / found[name].seconds * step_s for name, seconds in known.items() if seconds is not None
    }


def drift_of(trace: StepTrace, directory: Path, started_at: float, now: float) -> Drift | None:
    """`drift_between` of a task that runs: its last 30 s, or last third, against its first."""
    if trace.first_at is None or trace.last_at is None or trace.last_at - trace.first_at < 3.0:
        return None
    part_s = min(_NOW_S, (trace.last_at - trace.first_at) / 3)
    first = pace_of(trace, directory, started_at, trace.first_at, trace.first_at + part_s)
    last = pace_of(trace, directory, started_at, now - part_s, now)
    return None if first is None or last is None else drift_between(first, last)


def _others(directory: Path, begin: float, end: float) -> dict[str, float]:
    """Share of each node that is busy, as its samples say."""
    found = {}
    for node, rows in node_samples(directory).items():
        busy = [row["cpu_percent"] for row in rows if begin <= row["time"] <= end and "cpu_percent" in row]
        if busy:
            found[node] = sum(busy) / len(busy) / 100
    return found
