"""When a gang over several nodes has failed."""

from dataclasses import replace

import pytest

from trainmaster.executors.base import GangStatus, MemberStatus, Phase
from trainmaster.executors.gangs.life import ConductedGang, GangPart

ENDED = MemberStatus("worker-1", pid=7, started_at=1.0, ended_at=9.0)


def gang_with(row, *, dispensable):
    """One with a chief that goes on, and a member on another node that has ended."""
    members = [
        {"name": "worker-0", "essential": True, "gpus": 0},
        {"name": "worker-1", "essential": False, "dispensable": dispensable, "gpus": 0},
    ]
    gang = ConductedGang(
        {"attempt": "r/e/0/1", "directory": "/d", "grace_s": 5.0, "hold": True, "members": members}, "r"
    )
    gang.launched = True
    chief = MemberStatus("worker-0", pid=6, started_at=1.0)
    for key, member, phase in (("n0", chief, Phase.RUNNING), ("n1", row, Phase.EXITED)):
        part = GangPart(f"r/e/0/1#{key}", (key, key, "10.0.0.1"), (member.name,), leads=key == "n0")
        part.status = GangStatus(part.name, phase, (member,))
        gang.parts.append(part)
    return gang


def stopped(gang):
    """Members that are asked to end now."""
    return [
        name for part, command in gang.after(10.0).orders if command["do"] == "stop" for name in part.members
    ]


@pytest.mark.parametrize(
    "how",
    [
        {"lost": True},
        {"signal": 15},
        {"exit_code": 143},
        {"signal": 9},
        {"exit_code": 143, "stopped": True},
        {"exit_code": 1, "stopped": True},
    ],
)
def test_a_machine_that_is_switched_off_takes_only_its_dispensable_member(how):
    """Its supervisor still tells how the member ended, before the machine is known to be lost."""
    row = replace(ENDED, **how)
    assert not gang_with(row, dispensable=True).after(10.0).orders
    assert stopped(gang_with(row, dispensable=False)) == ["worker-0"]


@pytest.mark.parametrize(
    "how", [{"exit_code": 1}, {"signal": 11}, {"signal": 9, "oom": True}, {"error": "no such directory"}]
)
def test_what_fails_by_itself_fails_its_gang(how):
    assert stopped(gang_with(replace(ENDED, **how), dispensable=True)) == ["worker-0"]
