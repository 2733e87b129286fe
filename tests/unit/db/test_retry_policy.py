"""How long a transaction is tried, in seconds that do not pass."""

from __future__ import annotations

import sqlite3

import pytest
import sqlalchemy as sa

from trainmaster.db import RetryPolicy
from trainmaster.db.retry_policy import LONGEST_WAIT_S, is_transient


class Time:
    def __init__(self) -> None:
        self.now = 100.0
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def policy(seconds: float, chance: float = 1.0) -> tuple[RetryPolicy, Time]:
    time = Time()
    return RetryPolicy(seconds, clock=lambda: time.now, sleep=time.sleep, chance=lambda: chance), time


def test_waits_grow_and_add_up_to_the_patience():
    found, time = policy(60)
    wait = found.begin()
    tries = []
    while (this := wait.once_more("gone")) is not None:
        tries.append(this)
    assert sum(time.waits) == pytest.approx(60)
    assert time.waits[:4] == [0.05, 0.1, 0.2, 0.4]
    assert max(time.waits) == LONGEST_WAIT_S
    assert all(this.again for this in tries)
    assert tries[-1].waited_s == pytest.approx(60)


@pytest.mark.parametrize(("chance", "waits"), [(0.0, [0.025, 0.05, 0.1]), (0.5, [0.0375, 0.075, 0.15])])
def test_many_that_meet_a_lock_try_again_at_different_moments(chance, waits):
    found, time = policy(60, chance)
    wait = found.begin()
    for _ in waits:
        wait.once_more("locked")
    assert time.waits == pytest.approx(waits)


def test_no_patience_means_once():
    found, time = policy(0)
    assert found.begin().once_more("gone") is None
    assert time.waits == []


def test_time_spent_in_the_tries_themselves_counts():
    found, time = policy(60)
    wait = found.begin()
    time.now += 61  # a lock that nobody gave up
    assert wait.once_more("locked") is None


def test_the_user_is_told_once_and_not_of_a_reconnect_that_works_at_once():
    found, _ = policy(60)
    told: list[str] = []
    found.tell = told.append
    wait = found.begin()
    wait.once_more("gone")
    assert told == []
    for _ in range(5):
        wait.once_more("gone")
    assert told == ["the database is away (gone); trying again for 60 s"]


def test_who_is_in_a_hurry_does_not_wait():
    found, _ = policy(60)
    wait = found.begin()
    assert wait.once_more("gone") is not None
    found.hurried = lambda: True
    assert wait.once_more("gone") is None


def error_of(
    original: BaseException, kind: type[sa.exc.DBAPIError] = sa.exc.OperationalError
) -> sa.exc.DBAPIError:
    return kind("SELECT", {}, original)


@pytest.mark.parametrize(
    ("code", "passes"),
    [(5, True), (5 | 2 << 8, True), (13, True), (10 | 3 << 8, True), (8, False), (1, False)],
)
def test_what_passes_on_sqlite(code, passes):
    original = sqlite3.OperationalError("so")
    original.sqlite_errorcode = code
    assert is_transient(error_of(original)) is passes


@pytest.mark.parametrize(
    ("state", "passes"),
    [
        ("57P01", True), ("57P03", True), ("53100", True), ("53300", True), ("40P01", True), ("08006", True),
        ("55P03", True), ("25006", True), ("42P01", False), ("42501", False), ("3D000", False),
    ],
)  # fmt: skip
def test_what_passes_on_postgresql(state, passes):
    original = Exception("so")
    original.sqlstate = state
    assert is_transient(error_of(original)) is passes


def test_what_has_no_code_is_a_connection_that_failed():
    assert is_transient(error_of(Exception("connection refused")))
    assert not is_transient(error_of(Exception("a bad value"), sa.exc.DataError))
