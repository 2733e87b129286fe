"""The stream to a node's agent ends with the loop of its driver, however that ends."""

import asyncio
import gc
import socket

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
