"""The stream to a node's agent ends with the loop of its driver, however that ends."""

import asyncio
import gc
import socket
import threading

import pytest

from trainmaster.executors.gangs.engine import StreamAgent


def test_a_stream_to_a_node_that_was_given_up_ends_with_the_loop():
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    async def drive():
        agent = StreamAgent("n0", lambda: ours)
        await agent.connect()
        await asyncio.sleep(0)
        del agent
        gc.collect()  # it would warn of what is still open
        await asyncio.sleep(0)

    with theirs:
        asyncio.run(drive())
        assert theirs.recv(1) == b"", "it was hung up"
    gc.collect()


def test_a_stream_that_comes_when_its_driver_has_left_is_hung_up():
    """A socket stayed open until Python tidied up, in whatever test that was."""
    (ours, theirs), goes_on = socket.socketpair(), threading.Event()

    def dial():
        goes_on.wait(10.0)
        return ours

    async def drive():
        agent = StreamAgent("n0", dial)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await agent.connect()
        agent.detach()

    with theirs:
        asyncio.run(drive())
        goes_on.set()
        theirs.settimeout(10.0)
        assert theirs.recv(1) == b""


def test_a_stream_that_takes_long_is_waited_for_again_and_not_made_twice():
    dialled, pairs, goes_on = [], [socket.socketpair(), socket.socketpair()], threading.Event()

    def dial():
        dialled.append(1)
        goes_on.wait(10.0)
        return pairs[len(dialled) - 1][0]

    async def drive():
        agent = StreamAgent("n0", dial)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await agent.connect()
        goes_on.set()
        await asyncio.wait([asyncio.wrap_future(agent._dialling)])
        await agent.connect()
        agent.detach()
        await asyncio.sleep(0)

    asyncio.run(drive())
    assert dialled == [1]
    for each in [*pairs[0][1:], *pairs[1]]:
        each.close()


def test_a_node_whose_answer_has_no_end_is_hung_up_on_before_it_fills_the_driver(monkeypatch):
    monkeypatch.setattr("trainmaster.executors.gangs.engine.ANSWER_BYTES", 1000)
    ours, theirs = socket.socketpair()

    async def drive():
        agent = StreamAgent("n0", lambda: ours)
        await agent.connect()
        asked = asyncio.create_task(agent.call("poll"))
        await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, theirs.sendall, b"[" * 1001)
        return await asyncio.wait_for(asyncio.gather(asked, return_exceptions=True), 5)

    with theirs:
        (refused,) = asyncio.run(drive())
    assert str(refused).startswith("the connection to node n0 was ended: a frame is longer than 1000 bytes")
