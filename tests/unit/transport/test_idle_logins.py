"""Logins that were given back, for what wants one next."""

from __future__ import annotations

from typing import Any, cast

from trainmaster.transport.base import Target
from trainmaster.transport.pool import KEPT_S, IdleLogins

A, B = Target("a", "10.0.0.1"), Target("b", "10.0.0.2")


class Login:
    def __init__(self, target: Target) -> None:
        self.target, self.is_closed = target, False


def login(target: Target) -> Any:
    return cast("Any", Login(target))


def test_a_login_goes_to_who_wants_that_machine_and_to_one_only() -> None:
    now = [0.0]
    idle = IdleLogins(lambda: now[0])
    mine = login(A)
    assert idle.put(mine)
    assert idle.take(B) is None
    assert idle.take(A) is mine
    assert idle.take(A) is None


def test_one_that_is_old_or_lost_is_nobodys() -> None:
    now = [0.0]
    idle = IdleLogins(lambda: now[0])
    old, lost = login(A), login(B)
    idle.put(old)
    idle.put(lost)
    lost.is_closed = True
    assert idle.take(B) is None
    now[0] = KEPT_S + 0.1
    assert idle.take(A) is None
    assert idle.too_old() == [old, lost]
    assert idle.too_old() == []


def test_none_is_taken_after_the_end() -> None:
    idle = IdleLogins()
    idle.close()
    assert not idle.put(login(A))
