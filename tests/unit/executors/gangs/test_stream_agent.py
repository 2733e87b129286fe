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
