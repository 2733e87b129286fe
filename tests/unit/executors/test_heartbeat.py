"""When a node of a Ray cluster is taken to be gone, and when not."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.executors.gangs import heartbeat
from trainmaster.executors.gangs.heartbeat import SILENT_S, Heartbeat, feel


def test_a_cut_of_three_seconds_is_nothing() -> None:
    pulse = Heartbeat(0.0)
    for step in range(1, 4):
        pulse.miss()
        assert not pulse.is_dead(float(step))
    pulse.beat(3.2)
    assert not pulse.is_dead(3.2 + SILENT_S)


def test_a_long_silence_is_the_end() -> None:
    pulse = Heartbeat(0.0)
    for _ in range(6):
        pulse.miss()
    assert not pulse.is_dead(SILENT_S - 0.1)
    assert pulse.is_dead(SILENT_S + 0.1)


def test_who_was_busy_himself_knows_nothing() -> None:
    pulse = Heartbeat(0.0)
    pulse.miss()
    assert not pulse.is_dead(60.0), "we have not asked often enough"


def test_nobody_listens() -> None:
    pulse = Heartbeat(0.0)
    pulse.refuse()
    pulse.refuse()
    assert not pulse.is_dead(1.0)
    pulse.refuse()
    assert pulse.is_dead(1.5)


@given(st.lists(st.sampled_from(["beat", "refuse", "miss"]), max_size=60))
def test_who_answers_now_and_then_lives(heard: list[str]) -> None:
    pulse, now = Heartbeat(0.0), 0.0
    refusals = 0
    for what in heard:
        now += 0.5
        refusals = refusals + 1 if what == "refuse" else 0
        if what == "beat":
            pulse.beat(now)
        elif what == "miss":
            pulse.miss()
        else:
            pulse.refuse()
        if refusals < 3 and now - pulse.heard_at <= SILENT_S and not pulse.is_dead(now):
            continue
        if what == "beat":
            assert not pulse.is_dead(now)
        if pulse.is_dead(now):
            return


class Heard(Heartbeat):
    """Says when it has been told of some signs of life."""

    def __init__(self) -> None:
        super().__init__(time.monotonic())
        self.often = asyncio.Event()
        self._count = 0

    def beat(self, now: float) -> None:
        super().beat(now)
        self._count += 1
        if self._count == 10:
            self.often.set()


def test_a_node_whose_ray_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_PERIOD_S", 0.01)

    async def scene() -> tuple[bool, bool]:
        over = asyncio.Event()
        server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        pulse = Heard()
        task = asyncio.create_task(feel("127.0.0.1", port, pulse, over.set))
        await asyncio.wait_for(pulse.often.wait(), 60)
        before = over.is_set()
        server.close()
        await asyncio.wait_for(over.wait(), 60)
        await task
        return before, over.is_set()

    assert asyncio.run(scene()) == (False, True)


def test_a_node_that_is_busy_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel takes connections for it, though nobody has time for them."""
    monkeypatch.setattr(heartbeat, "_PERIOD_S", 0.01)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        port = listener.getsockname()[1]

        async def scene() -> bool:
            over = asyncio.Event()
            pulse = Heard()
            task = asyncio.create_task(feel("127.0.0.1", port, pulse, over.set))
            await asyncio.wait_for(pulse.often.wait(), 60)
            task.cancel()
            return over.is_set()

        assert not asyncio.run(scene())
