"""`StepProfile`: steps of a task in a part of its time; `drift_between`: what two of these say. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from trainmaster.control.task.layout import AttemptPlace
from trainmaster.dataclass import dataclass
from trainmaster.executors.telemetry.usage import Usage, node_samples, read_usage
from trainmaster.spec.plain_json import kept
from trainmaster.spec.private_files import write_private

if TYPE_CHECKING:
    from pathlib import Path

    from trainmaster.advisor.model.step_trace import StepTrace

#: Steps that take by less longer are as they were; and what one looks at now, in seconds.
_SLOWER: Final = 1.15
_NOW_S: Final = 30.0
#: How steps went first is kept from so many seconds of them on, and again when so many times that is known.
_KEPT_FROM_S: Final = 3.0
_LONGER: Final = 1.5
#: Of each cause, by how much what it shows in must have changed.
_MORE_WORK: Final = 1.2
_MORE_MS: Final = 1.0
_BUSY: Final = 0.3
#: Share of what steps take longer that the one member waits more for its processors than any other.
_STANDS_OUT: Final = 0.3
#: The last half minute of a gang of two hundred is within so much of what was sampled.
_TAIL_BYTES: Final = 512 << 10
_CREDITS: Final = ", or its machine has used its credits"
#: How a member stands out, and what that comes from and what to do.
_OF_PROCESSORS: Final = (
    "waits {} s of it for its processors",
    "something else runs there, or its machine has used its credits: end that, or replace the machine",
)
_OF_HOST: Final = (
    "loses {} s of it to others on its host",
    "its machine has used its credits, or its host is full: replace the machine",
)
_OF_CARD: Final = (
    "sends for {} s of it",
    "the network card of its machine is full, or carries less: replace the machine",
)
#: A member that sends less a step waits for no network card; one that receives less, for no data from there.
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
        stolen_s: per step, of processors that the hypervisor gave to others, by member.
        io_wait_s: per step, for which anything on a member's machine waited for disks and mounts, by member.
        received_bytes: per step; None if unknown.
    """

    step_s: float
    cpu_s: float
    sent_bytes: float | None = None
    round_trip_ms: float | None = None
    others: Mapping[str, float] | None = None
    members: int = 1
    cpu_wait_s: Mapping[str, float] | None = None
    sending_s: Mapping[str, float] | None = None
    stolen_s: Mapping[str, float] | None = None
    io_wait_s: Mapping[str, float] | None = None
    received_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Drift:
    """Steps take longer than they did.

    Attributes:
        words: what makes them so, and what to do.
        usual_s, step_s: what one took, and takes.
        member: that all others wait for, as its machine gives it less; empty if none stands out.
        is_own: the script computes more, and no machine is to blame.
    """

    words: str
    usual_s: float
    step_s: float
    member: str = ""
    is_own: bool = False

    def on(self, machine: str) -> str:
        """Its words, with the machine that the member is on.

        >>> Drift("a step takes 2 s, not 1 s, as worker-1 waits", 1.0, 2.0, "worker-1").on("node-2")
        'a step takes 2 s, not 1 s, as worker-1 on node-2 waits'
        """
        return self.words.replace(f"as {self.member} ", f"as {self.member} on {machine} ", 1)


def drift_between(before: StepProfile, now: StepProfile) -> Drift | None:
    """What makes steps take longer than before; None if they do not.

    >>> drift_between(StepProfile(1.0, 0.9), StepProfile(1.05, 0.9))

    Args:
        before: as the steps went first.
        now: as they go.
    """
    if now.step_s < _SLOWER * before.step_s:
        return None
    longer_s = now.step_s - before.step_s
    drift = f"a step takes {now.step_s:.3g} s, not {before.step_s:.3g} s"
    found = Drift(f"{drift}, {_why_slower(before, now)}", before.step_s, now.step_s)
    if _computes_more(before, now):  # who does waits more, too
        return replace(found, is_own=True)
    for was, seconds, (what, why) in (
        (before.cpu_wait_s, now.cpu_wait_s, _OF_PROCESSORS),
        (before.stolen_s, now.stolen_s, _OF_HOST),
        (before.sending_s, now.sending_s, _OF_CARD),
    ):
        member = _standing_out(was, seconds, longer_s)
        is_everywhere = seconds is now.sending_s and _is_on_all_ways(before, now, member)
        if was and seconds and member and not is_everywhere:
            told = f"{member} {what.format(f'{seconds[member]:.3g}')}, not {was[member]:.3g} s"
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
    """What follows "a step takes 2 s, not 1 s, "; which member is to blame is not looked for here."""
    longer_s = now.step_s - before.step_s
    if _computes_more(before, now):
        return "as it computes more: that is the script's own, no other machine helps"
    if waits := _data_waits(before, now):
        return waits
    trip, was = now.round_trip_ms, before.round_trip_ms
    if trip is not None and was is not None and trip - was > _MORE_MS and trip > 2 * was:
        told = f"packets between its machines take {trip:.3g} ms, not {was:.3g} ms"
        return f"as {told}: machines in one zone are nearer to each other"
    known = before.others or {}
    others = {node: share - known.get(node, 0.0) for node, share in (now.others or {}).items()}
    if others and max(others.values()) > _BUSY:
        node = max(others, key=lambda name: others[name])
        told = f"something else keeps {100 * others[node]:.0f} % of {node} busy"
        return f"as {told}: end that, or replace {node}"
    if now.members == 1:
        waited_s = sum((now.cpu_wait_s or {}).values()) - sum((before.cpu_wait_s or {}).values())
        is_credits = not now.cpu_wait_s or waited_s >= _STANDS_OUT * longer_s
        return f"and it computes no more: {_waits_alone(before, now)}" + is_credits * _CREDITS
    if now.sent_bytes is not None and now.sent_bytes > _MUCH_BYTES:
        rate, had = now.sent_bytes / now.step_s / 1e6, now.sent_bytes / before.step_s / 1e6
        told = f"members send {rate:.3g} MB/s, not {had:.3g}"
        return f"and they compute no more: the network carries less ({told}), or one machine is slow"
    return "and members compute no more and send little: one of its machines is slow"


def _waits_alone(before: StepProfile, now: StepProfile) -> str:
    """For what a single process waits, by what is seen of it: not for data where nothing says so."""
    if (now.received_bytes or 0.0) > _MUCH_BYTES:
        got, had = ((each.received_bytes or 0.0) / each.step_s / 1e6 for each in (now, before))
        return f"it waits for its data from the network, of which {got:.3g} MB/s come, not {had:.3g}"
    if not now.io_wait_s:
        return "it sleeps, or waits for its data or something else, which this kernel does not count"
    return "it sleeps, or waits for something else than disks, volumes and the network"


def _data_waits(before: StepProfile, now: StepProfile) -> str:
    """That data cannot keep up: disks or mounted volumes take so much longer; empty if they do not."""
    was, longer_s = before.io_wait_s or {}, now.step_s - before.step_s
    more = {name: seconds - was[name] for name, seconds in (now.io_wait_s or {}).items() if name in was}
    first = max(more, key=lambda name: more[name], default="")
    if not first or more[first] < _STANDS_OUT * longer_s:
        return ""
    wait_s = was[first] + more[first]
    told = f"{first} waits {wait_s:.3g} s of it for disks or volumes, not {was[first]:.3g} s"
    return (
        f"as {told}: data cannot keep up: read ahead in more processes, keep it on the machine's own disk, "
        "or make it smaller; another machine would wait as well"
    )


def pace_of(
    trace: StepTrace, directory: Path, started_at: float, begin: float, end: float, *, whole: bool = True
) -> StepProfile | None:
    """How steps went between two moments; None if too little of that is known.

    Args:
        trace: of the task's steps.
        directory: of its attempt.
        started_at: Unix seconds: when its members were started.
        begin: Unix seconds.
        end: Unix seconds.
        whole: False reads the end of what was sampled only.
    """
    steps = trace.steps_at(end) - trace.steps_at(begin)
    span = begin - started_at, end - started_at
    found = read_usage(directory, *span, whole=whole, tail_bytes=_TAIL_BYTES)
    used = [usage for name, usage in found.items() if name.startswith("worker-") and usage.seconds > 1.0]
    if steps < 1 or not used:
        return None
    step_s = (end - begin) / steps
    sent, received = (
        [count / usage.seconds for usage in used if (count := getattr(usage, name)) is not None]
        for name in ("bytes_sent", "bytes_received")
    )
    trips = [usage.round_trip_ms for usage in used if usage.round_trip_ms is not None]
    return StepProfile(
        step_s,
        sum(usage.cpu_share for usage in used) / len(used) * step_s,
        sum(sent) / len(sent) * step_s if sent else None,
        max(trips, default=None),
        _others(directory, begin, end, None if whole else _TAIL_BYTES),
        len(used),
        cpu_wait_s=_per_step(found, "cpu_wait_seconds", step_s),
        sending_s=_per_step(found, "send_busy_seconds", step_s),
        stolen_s=_per_step(found, "stolen_seconds", step_s),
        io_wait_s=_per_step(found, "io_wait_seconds", step_s),
        received_bytes=sum(received) / len(received) * step_s if received else None,
    )


def _per_step(found: Mapping[str, Usage], what: str, step_s: float) -> dict[str, float]:
    """Seconds of something, by member."""
    known = {name: getattr(usage, what) for name, usage in found.items() if usage.seconds > 1.0}
    return {
        name: seconds / found[name].seconds * step_s for name, seconds in known.items() if seconds is not None
    }


class DriftMeter:
    """Holds the last 30 s, or last third, of tasks that run against their first.

    The first is read once: what is sampled of a run of days is long. It is kept beside an attempt's samples,
    as a driver that comes later cannot see how quick steps were before.
    """

    def __init__(self) -> None:
        self._first: dict[Path, StepProfile] = {}
        self._kept_s: dict[Path, float] = {}

    def look(self, trace: StepTrace, directory: Path, started_at: float, now: float) -> Drift | None:
        """`drift_between` of a task that runs; None if too little is known.

        Args:
            trace: of its steps.
            directory: of its attempt.
            started_at: Unix seconds: when its members were started.
            now: Unix seconds.
        """
        if trace.first_at is None or trace.last_at is None or trace.last_at - trace.first_at < 3.0:
            return None
        part_s = min(_NOW_S, (trace.last_at - trace.first_at) / 3)
        last = pace_of(trace, directory, started_at, now - part_s, now, whole=False)
        first = self._first.get(directory)
        if last is not None and first is None:
            first = self._first_of(trace, directory, started_at, part_s)
        return None if first is None or last is None else drift_between(first, last)

    def _first_of(
        self, trace: StepTrace, directory: Path, started_at: float, part_s: float
    ) -> StepProfile | None:
        """As an earlier driver has seen it; else what is known of it by now."""
        if directory not in self._kept_s:
            if known := _kept_pace(directory):
                self._first[directory] = known
                return known
            self._kept_s[directory] = 0.0
        assert trace.first_at is not None
        first = pace_of(trace, directory, started_at, trace.first_at, trace.first_at + part_s)
        if first is None:
            return None
        if part_s >= max(_KEPT_FROM_S, _LONGER * self._kept_s[directory]) or part_s == _NOW_S:
            self._kept_s[directory] = part_s
            with suppress(OSError):  # the disk is full: the next driver sees what comes
                write_private(
                    AttemptPlace(directory).pace, json.dumps(asdict(first)).encode(), is_synced=False
                )
        if part_s == _NOW_S:
            self._first[directory] = first
        return first


def _kept_pace(directory: Path) -> StepProfile | None:
    """How steps of an attempt went first, as an earlier driver has kept it."""
    return kept(StepProfile, AttemptPlace(directory).pace)


def _others(directory: Path, begin: float, end: float, tail_bytes: int | None) -> dict[str, float]:
    """Share of each node that is busy, as its samples say."""
    found = {}
    for node, rows in node_samples(directory, tail_bytes).items():
        busy = [row["cpu_percent"] for row in rows if begin <= row["time"] <= end and "cpu_percent" in row]
        if busy:
            found[node] = sum(busy) / len(busy) / 100
    return found
