"""An agent of another version takes other arguments: the driver asks it once, and says so."""

import asyncio
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from trainmaster.executors.base import GangStatus
from trainmaster.executors.gangs.engine import StreamAgent
from trainmaster.executors.gangs.nodes import AgentLink
from trainmaster.executors.gangs.placement import LiveNode
from trainmaster.spec.errors import ExecutorError, OtherVersionError

NODE = LiveNode("n0", "id0", "10.0.0.1", 4, 0, {})
OLDER = """
from trainmaster.executors.gangs.agent import AgentProgram
class Agent:
    %s
AgentProgram(Agent()).serve()
"""


class Listener:
    def __init__(self):
        self.answer = asyncio.get_running_loop().create_future()

    def attempts_on(self, _node):
        return []

    def refused(self, _node, error):
        self.answer.set_result(error)

    def nodes_changed(self):
        self.answer.set_result("asked again")


async def answer_of(agent):
    """What a link takes from its first look."""
    listener = Listener()
    link = AgentLink(NODE, agent, listener, SimpleNamespace(), lambda _: None, ("run", 1))
    try:
        return await asyncio.wait_for(listener.answer, 30)
    finally:
        await link.close(detach=False)


@pytest.mark.parametrize("method", ["def attach(self, token, attempts): pass", "pass"])
def test_an_agent_whose_method_is_another(method):
    ours, theirs = socket.socketpair()
    program = subprocess.Popen([sys.executable, "-c", OLDER % method], stdin=theirs, stdout=theirs)
    try:
        error = asyncio.run(answer_of(StreamAgent("n0", lambda: ours)))
    finally:
        program.kill()
        program.wait()
        theirs.close()
    assert isinstance(error, OtherVersionError)
    assert "another version of Trainmaster" in str(error)
    assert "attach" in error.args[0]
    assert "resume" in error.hint


@pytest.mark.parametrize(
    ("words", "is_other"),
    [
        ("TypeError: too many positional arguments", True),  # by Ray
        ("TypeError: missing a required argument: 'lease'", True),
        ("AttributeError: 'ActorHandle' object has no attribute 'probe'", True),
        ("TypeError: unsupported operand type(s) for +: 'int' and 'str'", False),
        ("OSError: [Errno 28] No space left on device", False),
    ],
)
def test_what_else_is_said_of_a_call(words, is_other):
    async def connect():
        raise ExecutorError(words, "")

    error = asyncio.run(answer_of(SimpleNamespace(connect=connect)))
    assert isinstance(error, OtherVersionError) is is_other


@pytest.mark.parametrize(
    "change",
    [
        {1: "soon"},
        {2: "x"},
        {3: float("nan")},
        {4: 1.5},
        {5: 10**30},
        {6: "yes"},
        {9: 7},
        {9: "x" * 100_000},
        {10: []},
    ],
)
def test_a_node_that_says_what_no_supervisor_says_is_refused(change):
    member = ["worker-0", 7, 1.0, 2.0, 0, None, False, False, False, "", 0]
    row = ["a", "EXITED", [member], {"worker-0": [4000]}, 1.0, 2.0]
    assert GangStatus.of_row(row).ports == {"worker-0": (4000,)}
    for at, value in change.items():
        member[at] = value
    with pytest.raises(OtherVersionError, match="cannot be read"):
        GangStatus.of_row(row)


@pytest.mark.parametrize("change", [{3: {"worker-0": ["x"]}}, {4: "soon"}, {5: float("inf")}])
def test_times_and_ports_of_a_gang_are_numbers(change):
    row = ["a", "GRANTED", [], {}, None, None]
    for at, value in change.items():
        row[at] = value
    with pytest.raises(OtherVersionError, match="cannot be read"):
        GangStatus.of_row(row)
