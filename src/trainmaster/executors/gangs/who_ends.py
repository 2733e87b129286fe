"""When members of a gang are asked to end because of what became of others.

A supervisor heeds this for the members that it has started, whoever conducts several supervisors for all
members. It needs the standard library only, as supervisors do.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import TypeAlias

    from trainmaster.executors.base import MemberStatus
    from trainmaster.executors.supervisor.gang_processes import MemberProcess

    Member: TypeAlias = MemberProcess | MemberStatus
    #: Members, each with whether it is essential.
    Members: TypeAlias = Sequence[tuple[Member, bool]]

NONE_ENDS = "NONE_ENDS"
#: All that live; those that only serve the others when the others have ended.
ALL = "ALL"
#: Those that only serve the others: the others have ended.
SERVERS = "SERVERS"
#: What a machine that is switched off sends to all that runs there: SIGTERM, SIGKILL, SIGHUP.
_SWITCHED_OFF = (15, 9, 1)


def who_ends(members: Members, dispensable: Collection[str] = (), *, asked: bool) -> str:
    """Who is to be asked to end now.

    Args:
        members: all of a gang that has started, not all of which have ended.
        dispensable: members that the others can do without when their machine is lost.
        asked: `ALL` were asked before.
    """
    served = has_served(members)
    if asked:
        return SERVERS if served else NONE_ENDS
    return ALL if served or has_failed(members, dispensable) else NONE_ENDS


def has_served(members: Members) -> bool:
    """Whether all essential members have ended."""
    return all(member.ended_at is not None for member, essential in members if essential)


def has_failed(members: Members, dispensable: Collection[str] = ()) -> bool:
    """Whether a member has ended badly (or its node has), so that the others cannot go on."""
    # a server that falls over once the first worker is done tells nothing about the gang
    serving = not any(member.exit_code == 0 for member, essential in members if essential)
    return any(
        member.ended_at is not None and member.exit_code != 0 and (essential or serving)
        for member, essential in members
        if not (member.name in dispensable and _went_with_its_machine(member))
    )


def _went_with_its_machine(member: Member) -> bool:
    """Whether a member was lost, or ended as one does whose machine is switched off.

    Its supervisor may still tell how it ended, so before anybody knows of the machine's end.
    """
    if member.lost or member.stopped:
        return True
    return (
        not (member.oom or member.error) and (member.signal or (member.exit_code or 0) - 128) in _SWITCHED_OFF
    )
