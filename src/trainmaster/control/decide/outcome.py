"""From exit records to a reason and a sentence: pure.

How long to wait before something is tried again: pure.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.executors.base import GangStatus, MemberStatus
from trainmaster.spec.states import EndReason, Overuse

#: The second retry waits this long, each further one twice as long, up to the maximum.
BACKOFF_S = 1.0
MAX_BACKOFF_S = 300.0
#: What nodes, or a store, made fail is staged again after such pauses; machines are rented meanwhile. What
#: cannot be saved is tried again for as long as it takes: whoever has mended a store does not wait long.
LONGEST_PAUSE_S = 60.0


def backoff_s(retry: int) -> float:
    """How long to wait before a retry (1 = the first): at once, then 1 s, 2 s, 4 s, ... 300 s.

    >>> [backoff_s(retry) for retry in (1, 2, 3, 4, 20)]
    [0.0, 1.0, 2.0, 4.0, 300.0]
    """
    return 0.0 if retry <= 1 else min(BACKOFF_S * 2.0 ** (retry - 2), MAX_BACKOFF_S)


def pause_s(tries: int) -> float:
    """How long to wait before an attempt is staged, or saved, once more (1 = it failed for the first time).

    >>> [pause_s(tries) for tries in (1, 2, 3, 1000, 10**6)]
    [0.0, 1.0, 2.0, 60.0, 60.0]
    """
    return min(backoff_s(min(tries, 100)), LONGEST_PAUSE_S)


#: What a program does to itself; other signals come from outside, and its log knows nothing of them.
_CRASHES: Final = frozenset(
    {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGTRAP}
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Why an attempt ended, and what to tell the user."""

    reason: EndReason
    message: str = ""


def classify(
    gang: GangStatus,
    timeout_s: float | None,
    helpers: AbstractSet[str] = frozenset(),
    timeout_name: str = "timeout",
    memory_bytes: int | None = None,
) -> Outcome:
    """Judge an attempt whose members have all ended.

    It succeeded if every member but the helpers ended well by itself, whatever became of those.
    Members on several machines fail when another one's machine is lost, often before anything else
    shows the loss: a loss comes before what any of them says. Else the first member that failed by
    itself tells the reason; those that were stopped because of it tell nothing.

    Args:
        gang: with phase EXITED.
        timeout_s: the recipe's timeout: an attempt stopped after that long has timed out.
        helpers: names of members that only serve the others, such as parameter servers.
        timeout_name: what it is, for people.
        memory_bytes: what the recipe asks for; None for any.
    """
    essential = [m for m in gang.members if m.name not in helpers]
    if essential and all(_ended_well(m) for m in essential):
        return Outcome(EndReason.SUCCEEDED)
    failed = _failed(gang)
    if gang.overused is not None:  # no other machine would do
        reason = EndReason.OOM if gang.overused is Overuse.MEMORY else EndReason.USER_ERROR
        return Outcome(reason, loss_words(gang))
    if gang.lost_nodes:
        return Outcome(EndReason.NODE_LOST, loss_words(gang))
    lost = sorted((m for m in gang.members if m.lost), key=lambda m: m.ended_at or 0.0)
    if lost and (gang.is_spread or not failed):
        what = (
            "its machine, or what watched it there," if gang.addresses else "what watched it on its machine"
        )
        return Outcome(EndReason.NODE_LOST, f"{lost[0].name}: {what} died, so how it ended is not known")
    # What fails on one machine once those on another were stopped in time is no failure of its own.
    if timeout_s is not None and (not failed or (gang.is_spread and _is_late(failed[0], gang, timeout_s))):
        duration_s = (gang.ended_at or 0.0) - (gang.started_at or 0.0)
        if gang.started_at is not None and duration_s >= timeout_s:
            message = f"stopped after {duration_s:.0f} s ({timeout_name}: {timeout_s:g}s)"
            return Outcome(EndReason.TIMEOUT, message)
    if failed:
        return _judge(failed[0], memory_bytes, alone=len(gang.members) == 1)
    return Outcome(
        EndReason.PREEMPTED, "its members were told to stop, as it goes on elsewhere or in another size"
    )


def with_last_error(message: str, gang: GangStatus, last_errors: Mapping[str, str]) -> str:
    """What `classify` says of a script's failure, with what the log says of it.

    It is that of the member that failed first, if its exit code or a signal of its own is all that is known.

    Args:
        message: of the outcome.
        gang: with phase EXITED.
        last_errors: by member.
    """
    first = next(iter(_failed(gang)), None)
    if first is None or first.error or first.oom or not (first.exit_code or first.signal in _CRASHES):
        return message
    said = last_errors.get(first.name)
    if not said:
        return message
    if "No space left on device" in said:
        where = gang.addresses.get(first.name, "this machine")
        said = f"{said}: the disk of {where} is full, or that part of it; make room there, then resume"
    return f"{message[:-1]}: {said})" if message.endswith(")") else f"{message} ({said})"


def loss_words(gang: GangStatus) -> str:
    """Which machines were lost, for people; the gang has `GangStatus.lost_nodes`."""
    return "; ".join(gang.lost_nodes)


def lost_output(gang: GangStatus) -> list[str]:
    """What is missing at the end of members' logs, a sentence each for people."""
    return [
        f"{member.name}: the last {member.lost_log_bytes:,} bytes of its output, and metrics in them, are "
        "lost: they could not be written. Make room on the disk of "
        f"{gang.addresses.get(member.name, 'this machine')}"
        for member in gang.members
        if member.lost_log_bytes
    ]


def exit_records(gang: GangStatus) -> str:
    """The members' exit records as JSON, for the attempt's row."""
    return json.dumps([asdict(member) for member in gang.members], separators=(",", ":"))


def _failed(gang: GangStatus) -> list[MemberStatus]:
    """Members that failed by themselves, the first one first."""
    return sorted(filter(failed_by_itself, gang.members), key=lambda m: m.ended_at or 0.0)


def _ended_well(member: MemberStatus) -> bool:
    return member.exit_code == 0 and not (member.stopped or member.lost or member.error)


def failed_by_itself(member: MemberStatus) -> bool:
    """Whether a member ended badly, and neither by us nor with its machine."""
    if member.stopped or member.lost:
        return False
    return bool(member.error) or bool(member.exit_code) or member.signal is not None


def _is_late(member: MemberStatus, gang: GangStatus, timeout_s: float) -> bool:
    return (member.ended_at or 0.0) - (gang.started_at or 0.0) >= timeout_s


def _judge(member: MemberStatus, memory_bytes: int | None, *, alone: bool) -> Outcome:
    name = "" if alone else f"{member.name}: "
    if member.error:
        return Outcome(EndReason.INTERNAL, f"{name}could not be started: {member.error}")
    if member.oom:
        asked = f" (hardware.memory: {memory_bytes / 1e9:.3g} GB)" if memory_bytes else ""
        return Outcome(EndReason.OOM, f"{name}killed: out of memory{asked}")
    if member.signal is not None:
        return Outcome(EndReason.USER_ERROR, f"{name}killed by {_signal_name(member.signal)}")
    code = member.exit_code or 0
    known = {126: " (not executable)", 127: " (command not found)"}
    if code > 128 and code - 128 in {s.value for s in signal.Signals}:
        return Outcome(EndReason.USER_ERROR, f"{name}exit code {code} ({_signal_name(code - 128)})")
    return Outcome(EndReason.USER_ERROR, f"{name}exit code {code}{known.get(code, '')}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
