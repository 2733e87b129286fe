"""`kill -9` of drivers at seeded moments, at any place: what tests of places and of the lab share."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
from place_runs import gang
from renter import Renter, Renting

#: Seconds after a driver has written its run down at which it is killed, more or less. What is killed before
#: that is in `test_cli_kill.py`.
MOMENTS_S = (0.1, 0.4, 1.0, 2.0, 4.0, 8.0)
#: Others are tried with another one.
SEED = os.environ.get("TRAINMASTER_TESTS_SEED", "1")


@dataclass(frozen=True)
class Place:
    """Where somebody may run.

    Attributes:
        name: of the provider. machine: a small one of its settings.
        held: jobs or pods that there are now. most: of these a gang of two has.
        check_clean: fails unless soon there is nothing of ours.
        account: of the one who may.
    """

    name: str
    machine: str
    held: Callable[[], list[str]]
    most: int
    check_clean: Callable[[], None]
    account: Any


def moments_s(place: Place, *about: str) -> list[float]:
    """The same ones each time."""
    chance = random.Random(" ".join([SEED, place.name, *about]))
    return [each * chance.uniform(0.7, 1.4) for each in MOMENTS_S]


def runs_of(place: Place) -> list[str]:
    """Ids of the runs that there are, in their order."""
    with (
        contextlib.suppress(sqlite3.OperationalError),  # it has not got so far
        contextlib.closing(sqlite3.connect(place.account.home / "trainmaster.db")) as connection,
    ):
        return [row[0] for row in connection.execute("SELECT id FROM run ORDER BY rowid")]
    return []


def kill_after(going: Renting, place: Place, runs: int, moment_s: float) -> str:
    """Kill a driver so long after it has written down the last of so many runs; its id."""
    found = going.until(lambda: len(them := runs_of(place)) == runs and them, "its run")
    time.sleep(moment_s)
    going.kill()
    return str(found[-1])


def programs(place: Place) -> list[str]:
    """What runs on this machine for a home."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TRAINMASTER_HOME") == str(place.account.home):
                found.append(" ".join(process.cmdline()))
    return found


def kill_twice(driven: Renter, place: Place, number: int) -> None:
    """A run is killed at a moment, resumed, killed at another, and resumed: it never has too much."""
    first_s, second_s = moments_s(place, "first")[number], moments_s(place, "second")[-1 - number]
    before = len(runs_of(place))
    # Else it is over before the last of these moments where the machine is quick.
    going = driven.run(gang(driven, 2, 90, place.machine), provider=place.name)
    run = kill_after(going, place, before + 1, first_s)
    most = len(place.held())
    again = driven.start("resume", run, "--json")
    assert again.run == run
    time.sleep(second_s)
    again.kill()
    again = driven.start("resume", run, "--json")
    while again.process.poll() is None:
        most = max(most, len(place.held()))
        time.sleep(0.5)
    assert again.end()["state"] == "DONE", (first_s, second_s, again.text)
    assert most <= place.most, (first_s, second_s)
