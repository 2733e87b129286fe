"""From exit records to a reason and a sentence: pure."""

from __future__ import annotations

import json
import signal
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass

from trainmaster.executors.base import GangStatus, MemberStatus
from trainmaster.spec.states import EndReason


@dataclass(frozen=True, slots=True)
class Outcome:
    """Why an attempt ended, and what to tell the user."""

    reason: EndReason
    message: str = ""


def classify(gang: GangStatus, timeout_s: float | None, helpers: AbstractSet[str] = frozenset()) -> Outcome:
    """Judge an attempt whose members have all ended.

    It succeeded if every member but the helpers ended well by itself, whatever became of those.
    Else the first member that failed by itself tells the reason; those that were stopped because
    of it tell nothing.

    Args:
        gang: with phase EXITED.
        timeout_s: the recipe's timeout: an attempt stopped after that long has timed out.
        helpers: names of members that only serve the others, such as parameter servers.
    """
    essential = [m for m in gang.members if m.name not in helpers]
    if essential and all(_ended_well(m) for m in essential):
        return Outcome(EndReason.SUCCEEDED)
    failed = sorted((m for m in gang.members if _failed_by_itself(m)), key=lambda m: m.ended_at or 0.0)
    if failed:
        return _judge(failed[0], alone=len(gang.members) == 1)
    lost = sorted((m for m in gang.members if m.lost), key=lambda m: m.ended_at or 0.0)
    if lost:
        what = (
            "its machine, or what watched it there," if gang.addresses else "what watched it on its machine"
        )
        return Outcome(EndReason.NODE_LOST, f"{lost[0].name}: {what} died, so how it ended is not known")
    duration_s = (gang.ended_at or 0.0) - (gang.started_at or 0.0)
    if timeout_s is not None and gang.started_at is not None and duration_s >= timeout_s:
        return Outcome(EndReason.TIMEOUT, f"stopped after {duration_s:.0f} s (timeout: {timeout_s:g}s)")
    return Outcome(EndReason.PREEMPTED, "its node was told to stop")


def exit_records(gang: GangStatus) -> str:
    """The members' exit records as JSON, for the attempt's row."""
    return json.dumps([asdict(member) for member in gang.members], separators=(",", ":"))


def _ended_well(member: MemberStatus) -> bool:
    return member.exit_code == 0 and not (member.stopped or member.lost or member.error)


def _failed_by_itself(member: MemberStatus) -> bool:
    if member.stopped or member.lost:
        return False
    return bool(member.error) or bool(member.exit_code) or member.signal is not None


def _judge(member: MemberStatus, *, alone: bool) -> Outcome:
    name = "" if alone else f"{member.name}: "
    if member.error:
        return Outcome(EndReason.INTERNAL, f"{name}could not be started: {member.error}")
    if member.oom:
        return Outcome(EndReason.OOM, f"{name}killed by the kernel: out of memory")
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
