"""Standard input that goes to a process in pieces."""

from __future__ import annotations

import asyncio

from trainmaster.transport.process_connection import PieceInput


def test_input_goes_in_pieces_and_its_end_after_them():
    sent = []

    async def send(piece):
        sent.append(piece)
        return True

    async def say():
        stdin = PieceInput(send, 4)
        stdin.write(b"abcdef")
        await stdin.drain()
        stdin.write_eof()
        await stdin._ending

    asyncio.run(say())
    assert sent == [b"abcd", b"ef", b""]


def test_what_a_process_does_not_listen_to_is_not_kept():
    async def send(_):
        return False

    async def say():
        stdin = PieceInput(send, 4)
        for _ in range(100):
            stdin.write(b"abcd")
            await stdin.drain()
        assert stdin.is_closing()
        return stdin._waiting

    assert asyncio.run(say()) == b""
