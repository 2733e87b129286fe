"""Which driver lacks what of the files that members have written on their nodes."""

import asyncio
from types import SimpleNamespace

import pytest

from trainmaster.executors.base import GangStatus, MemberStatus, Phase
from trainmaster.executors.gangs.copies import Files
from trainmaster.executors.gangs.life import ConductedGang, GangPart

ATTEMPT = "r/e/0/1"


def ended_gang():
    """One over two nodes, with a member on each that has ended well."""
    members = [{"name": f"worker-{index}", "essential": index == 0, "gpus": 0} for index in range(2)]
    gang = ConductedGang(
        {"attempt": ATTEMPT, "directory": "/r/1", "grace_s": 5.0, "hold": True, "members": members}, "r"
    )
    gang.launched = True
    for index, key in enumerate(("n0", "n1")):
        row = MemberStatus(f"worker-{index}", pid=7, started_at=1.0, ended_at=9.0, exit_code=0)
        part = GangPart(f"{ATTEMPT}#{key}", (key, f"id-{key}", "10.0.0.1"), (row.name,), leads=not index)
        part.status = GangStatus(part.name, Phase.EXITED, (row,))
        gang.parts.append(part)
    return gang


@pytest.mark.parametrize("was_probed", [False, True])
def test_a_driver_that_comes_back_waits_for_no_files_of_a_node_that_is_no_more(was_probed):
    """The member of such a node may have ended well long before: as `mpirun`'s others do at once."""
    gang, told, announced = ended_gang(), [], []
    alive = {"id-n0", "id-n1"}
    files = Files(
        {part.name: (gang, part) for part in gang.parts},
        lambda part, command: told.append((part.key, command)),
        announced.append,
        lambda part: part.node_id in alive,
        lambda *_: None,
    )
    files.mirror = SimpleNamespace(follow=lambda *_: (["elsewhere", "/home/me/r/1", "/r/1"], {}))
    nodes = {key: SimpleNamespace(key=key, node_id=f"id-{key}") for key in ("n0", "n1")}
    if was_probed:
        files.take_up(gang)
        for node in nodes.values():
            files.probed(node, {"/r": False})
    told.clear()
    alive.remove("id-n1")
    files.take_up(gang)
    assert {key for key, _ in told} == (set() if was_probed else {"n0"})
    files.probed(nodes["n0"], {"/r": False})
    assert gang.status().phase is Phase.RUNNING, "what the first has written is still to come"
    asked = files.wanted(nodes["n0"])
    asyncio.run(files.read_on(nodes["n0"], asked, [], ()))
    assert gang.status().phase is Phase.EXITED
    assert announced[-1] is gang
