"""One open connection to each machine."""

from __future__ import annotations

from typing import Any, cast

import pytest

from trainmaster.transport.base import RemoteTimeoutError, Target, UnreachableError
from trainmaster.transport.pool import ConnectionPool

A, B = Target("a", "10.0.0.1"), Target("b", "10.0.0.2")


class Connection:
    def __init__(self, target: Target) -> None:
        self.target, self.is_closed, self.is_lost, self.closed = target, False, False, 0

    def work(self) -> Connection:
        if self.is_lost:
            raise UnreachableError("it was lost")
        return self

    def close(self) -> None:
        self.is_closed = True
        self.closed += 1


class Transport:
    """Counts logins."""

    def __init__(self) -> None:
        self.made: list[Connection] = []
        self.is_down = False

    def connect(self, target: Target) -> Connection:
        self.made.append(Connection(target))
        self.made[-1].is_lost = self.is_down
        return self.made[-1]


@pytest.fixture
def transport() -> Transport:
    return Transport()


@pytest.fixture
def keeper(transport: Transport) -> ConnectionPool:
    return ConnectionPool(cast("Any", transport))


def used(keeper: ConnectionPool, target: Target) -> Any:
    return keeper.use(target, lambda it: cast("Any", it).work())


def test_each_machine_is_connected_once(keeper: ConnectionPool, transport: Transport) -> None:
    a, b = used(keeper, A), used(keeper, B)
    assert (a.target, b.target) == (A, B)
    assert used(keeper, A) is a
    assert transport.made == [a, b]


def test_a_kept_one_that_was_lost_is_made_anew(keeper: ConnectionPool, transport: Transport) -> None:
    told = used(keeper, A)
    told.is_closed = True  # it is known to be lost
    silent = used(keeper, A)
    assert told.closed == 1, "what it went through is given back"
    silent.is_lost = True  # it shows when it is used
    assert used(keeper, A) is transport.made[-1]
    assert len(transport.made) == 3
    assert silent.is_closed


def test_a_new_one_is_not_tried_again(keeper: ConnectionPool, transport: Transport) -> None:
    transport.is_down = True
    with pytest.raises(UnreachableError):
        used(keeper, A)
    assert [each.is_closed for each in transport.made] == [True]


def test_a_command_that_is_late_is_not_repeated(keeper: ConnectionPool, transport: Transport) -> None:
    kept = used(keeper, A)

    def late(_: object) -> None:
        raise RemoteTimeoutError("late")

    with pytest.raises(RemoteTimeoutError):
        keeper.use(A, late)
    assert used(keeper, A) is kept


def test_hanging_up(keeper: ConnectionPool, transport: Transport) -> None:
    a, b = used(keeper, A), used(keeper, B)
    keeper.hang_up(A)
    keeper.hang_up(A)
    assert (a.is_closed, b.is_closed) == (True, False)
    keeper.close()
    assert b.is_closed
    assert used(keeper, A) is transport.made[-1]
