"""What is heard of a command: the line that is waited for, and the end of what is too long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.transport.base import Result
from trainmaster.transport.remote_command import _Output


class Stream:
    """Says these pieces, then ends, or breaks."""

    def __init__(self, pieces: list[bytes], error: Exception | None = None) -> None:
        self._pieces: Iterator[bytes] = iter(pieces)
        self._error = error

    async def read(self, _: int) -> bytes:
        piece = next(self._pieces, b"")
        if not piece and self._error:
            raise self._error
        return piece


def hear(stream: Stream, limit: int = 1000, expects: str = "@@") -> tuple[str, _Output]:
    async def both() -> tuple[str, _Output]:
        ears = _Output(limit, expects)
        listening = asyncio.create_task(ears.listen(stream))
        line = await asyncio.wait_for(ears.line(), 5)
        await asyncio.wait([listening])
        listening.exception()
        return line, ears

    return asyncio.run(both())


def test_who_waits_for_a_line_is_told_that_the_connection_is_lost() -> None:
    assert hear(Stream([b"Welcome\n@"], ConnectionResetError()))[0] == ""
    assert hear(Stream([b"nothing to say"]))[0] == ""


@given(st.lists(st.integers(1, 12)), st.sampled_from(["", "motd\n", "no newline @@\n", "\n\n"]))
def test_the_line_is_found_however_it_arrives(cuts: list[int], noise: str) -> None:
    data = f"{noise}@@want\nmore @@nothing\n@@done\n".encode()
    pieces = []
    for cut in cuts:
        pieces.append(data[:cut])
        data = data[cut:]
    line, ears = hear(Stream([piece for piece in [*pieces, data] if piece]))
    assert line == "@@want"
    assert ears.text == f"{noise}@@want\nmore @@nothing\n@@done\n"


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20), st.integers(1, 100))
def test_of_too_much_the_end_is_kept(pieces: list[bytes], limit: int) -> None:
    async def listen() -> _Output:
        ears = _Output(limit)
        await ears.listen(Stream(pieces))
        return ears

    ears = asyncio.run(listen())
    said = b"".join(pieces)
    assert ears.text == said[-limit:].decode(errors="replace")
    assert ears.truncated == (len(said) > limit)


def test_a_line_without_an_end_is_not_kept_while_another_is_waited_for() -> None:
    line, ears = hear(Stream([b"x" * 700] * 50 + [b"\n@@want\n"]))
    assert line == "@@want"
    _, ears = hear(Stream([b"x" * 700] * 50))
    assert len(ears._searched) <= 1000


@pytest.mark.parametrize(
    ("out", "err", "words"),
    [("", "a\nb\n\n", "b"), ("x\n", "", "x"), ("x", "bad", "bad"), ("", "", "exit code 3")],
)
def test_the_last_words_say_why(out: str, err: str, words: str) -> None:
    assert Result(3, out, err).last_words == words
