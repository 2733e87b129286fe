"""The process that reads stores for forked children: whatever comes of a request, nobody waits for ever."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trainmaster.spec.errors import PublishError
from trainmaster.testing.waits import until
from trainmaster.volumes.reading.forked import Helper


class Broken:
    """Goes over the pipe, and cannot be read at its end."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return int, ("no number",)


@pytest.fixture
def helper() -> Iterator[Helper]:
    made = Helper()
    yield made
    made._process.kill()
    made._process.wait()
    until(lambda: not made.alive, "its thread hears of it")
    made._channel.close()


def answer(helper: Helper, *request: Any) -> Any:
    """What comes of a request; a failure too."""
    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(helper.ask(*request))
        except Exception as error:  # noqa: BLE001 - whatever it is
            found.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(10)
    assert found, "it waits for ever"
    return found[0]


def test_what_cannot_be_handed_over_is_said(helper: Helper) -> None:
    assert answer(helper, operator.add, 1, 2) == 3
    found = answer(helper, threading.Lock)
    assert isinstance(found, PublishError)
    assert "could not be handed over" in str(found)
    assert answer(helper, operator.add, 1, 2) == 3, "the next one is served"


def test_what_cannot_be_read_ends_the_waiting(helper: Helper) -> None:
    found = answer(helper, Broken)
    assert isinstance(found, PublishError)
    assert not helper.alive, "another one is started for the next request"
    assert isinstance(answer(helper, operator.add, 1, 2), PublishError)


def test_a_helper_that_was_killed_keeps_nobody_waiting(helper: Helper) -> None:
    assert answer(helper, operator.add, 1, 2) == 3
    helper._process.kill()
    assert isinstance(answer(helper, operator.add, 1, 2), PublishError)
