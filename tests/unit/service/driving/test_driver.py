"""Many runs in one process: which it takes, and what becomes of one that cannot be driven."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading

import pytest

from trainmaster import __version__
from trainmaster.db import AcceptedRun, ExperimentChange, RetryPolicy, Submission, TaskChange
from trainmaster.db.held_runs import HeldDatabase, HeldRuns, undriven
from trainmaster.db.queries import events
from trainmaster.service import Service
from trainmaster.service.driving.driver import (
    DRIVERS,
    SERVERS,
    Driver,
    is_taken,
    name_version,
    pipe_of,
    take_place,
)  # fmt: skip
from trainmaster.service.driving.drivers import Drivers
from trainmaster.service.driving.driving import Driving
from trainmaster.service.driving.wake_pipes import SUFFIX, WakePipe, wake_all
from trainmaster.spec import Recipe
from trainmaster.spec.clocks import boot_s
from trainmaster.spec.errors import FullDiskError, OtherVersionError, StoreError, UsageError
from trainmaster.spec.states import State
from trainmaster.testing.waits import until

RECIPE = "name: job\nexperiments:\n  main: {command: 'true'}\n"
LONG_S = 60.0


@pytest.fixture
def service(home):
    found = Service(home)
    yield found
    found.close()


@pytest.fixture
def send(service):
    def new(*runs):
        recipe = Recipe.from_text(RECIPE, directory=service.home.root).model_dump_json()
        for run in runs:
            service.home.run_directory(run).mkdir(parents=True)
            service.database.create_run(
                AcceptedRun(
                    run, "job", recipe, "r.yaml", "local", "code", "file:///s", [("main", 1)],
                    home=str(service.home.root),
                    home_id=service.home.identity(),
                    submission=Submission("ann", None),
                ),
                1.0,
                waits=True,
            )  # fmt: skip

    return new


class Drives:
    """Stands in for what drives one run: waits until it may end, or raises."""

    def __init__(self, monkeypatch):
        self.begun: list[str] = []
        self.bad: dict[str, Exception] = {}
        self.may_end = threading.Event()
        monkeypatch.setattr(Driving, "run", lambda driving: self(driving.session.run))

    def __call__(self, run):
        self.begun.append(run)
        if run in self.bad:
            raise self.bad[run]
        assert self.may_end.wait(LONG_S)


@pytest.fixture
def drives(monkeypatch):
    found = Drives(monkeypatch)
    yield found
    found.may_end.set()


def joined(driver):
    for thread in list(driver._threads.values()):
        thread.join(LONG_S)


def test_runs_are_taken_by_one_driver_each_and_let_go_of_at_their_end(service, send, drives):
    send("a", "b", "c")
    driver = Driver(service, os.environ, most_runs=2)
    assert driver.look() == 2
    drives.may_end.set()
    joined(driver)
    assert sorted(drives.begun) == ["a", "b"]
    assert service.database.run_row("a")["lease_owner"] is None
    assert sorted(undriven(service.database, service.home.identity())) == ["a", "b", "c"], "not over here"


@pytest.mark.parametrize("error", [UsageError("no value for TOKEN", "Export it."), ZeroDivisionError("bad")])
def test_a_run_whose_code_raises_ends_only_itself_and_is_told_why(service, send, drives, error):
    send("bad", "good")
    drives.bad["bad"] = error
    driver = Driver(service, os.environ)
    driver.look()
    driver._threads["bad"].join(LONG_S)
    assert driver.look() == 2, "one that runs, and one to be tried again later"
    assert drives.begun.count("bad") == 1, "not before a while"
    (note,) = [row["message"] for row in events(service.database, "bad") if row["kind"] == "note"]
    assert str(error.args[0]) in note
    assert service.database.run_row("bad")["lease_owner"] is None
    until(lambda: "good" in drives.begun, "the other one is driven")
    assert service.database.run_row("good")["lease_owner"] is not None
    log = service.home.run_directory("bad") / "control.log"
    assert log.exists() == isinstance(error, ZeroDivisionError)
    drives.may_end.set()
    joined(driver)


@pytest.mark.parametrize(
    ("error", "pause_s"), [(UsageError("no", ""), 600.0), (OtherVersionError("not understood", ""), 1200.0)]
)
def test_machines_of_another_version_are_left_alone_until_they_have_ended(
    service, send, drives, monkeypatch, error, pause_s
):
    monkeypatch.setattr("trainmaster.service.driving.driver._RETRY_S", 5000.0)  # as after some tries
    send("a")
    drives.bad["a"] = error
    driver = Driver(service, os.environ)
    driver.look()
    joined(driver)
    assert driver._failures["a"].try_at - boot_s() == pytest.approx(pause_s, abs=60)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_run_in_a_full_home_is_told_of_it_once_and_goes_on_when_there_is_room(
    service, send, drives, monkeypatch, number
):
    monkeypatch.setattr("trainmaster.service.driving.driver._RETRY_S", 0.0)
    send("a")
    driver = Driver(service, os.environ)
    for file in ("worker-0.log", "taken/a"):  # each time elsewhere
        drives.bad["a"] = OSError(number, os.strerror(number), str(service.home.root / file))
        driver.look()
        joined(driver)
        driver.look()
        joined(driver)
    (note,) = [row["message"] for row in events(service.database, "a") if row["kind"] == "note"]
    assert note.startswith("cannot be driven, and is tried again: ")
    assert ("df -h" in note, "internal" in note) == (True, False)
    assert not (service.home.run_directory("a") / "control.log").exists()
    assert service.database.run_row("a")["lease_owner"] is None, "others may have room"
    drives.bad.clear()
    drives.may_end.set()
    until(lambda: driver.look() == 0 or not driver._failures, "it is driven")
    joined(driver)


def test_what_could_not_be_told_as_the_database_was_full_is_told_later(service, send, drives, monkeypatch):
    monkeypatch.setattr("trainmaster.service.driving.driver._RETRY_S", 0.0)
    send("a")
    drives.bad["a"] = FullDiskError("the database refused a write: database or disk is full", "Free some.")
    driver = Driver(service, os.environ)

    def full(*_):
        raise FullDiskError("the database refused a write", "")

    with monkeypatch.context() as no_room:
        no_room.setattr("trainmaster.service.driving.driver.add_note", full)
        driver.look()
        joined(driver)
    assert not [row for row in events(service.database, "a") if row["kind"] == "note"]
    for _ in range(2):
        driver.look()
        joined(driver)
    (note,) = [row["message"] for row in events(service.database, "a") if row["kind"] == "note"]
    assert "database or disk is full" in note


def test_a_run_that_fails_again_waits_longer(service, send, monkeypatch):
    send("bad")
    begun, may_fail = threading.Semaphore(0), threading.Semaphore(0)

    def fail(*_, **__):
        begun.release()
        assert may_fail.acquire(timeout=LONG_S)
        raise UsageError("no value for TOKEN", "Export it.")

    monkeypatch.setattr(Driving, "run", fail)
    monkeypatch.setattr("trainmaster.service.driving.driver._RETRY_S", 0.0)
    driver = Driver(service, os.environ)
    for times in (1, 2, 3):
        assert driver.look() == 1
        assert begun.acquire(timeout=LONG_S)
        assert driver.look() == 1, "while it is driven"
        may_fail.release()
        joined(driver)
        assert driver._failures["bad"].times == times
    monkeypatch.setattr("trainmaster.service.driving.driver.undriven", lambda *_: [])
    assert driver.look() == 0, "it is over, or driven elsewhere"


def test_what_goes_wrong_in_a_look_ends_no_run(service, send, drives, monkeypatch):
    send("a", "b")
    driver = Driver(service, os.environ, idle_s=LONG_S)
    monkeypatch.setattr("trainmaster.service.driving.driver.LOOK_S", 0.0)
    monkeypatch.setattr("trainmaster.service.driving.driver._RETRY_S", 0.0)
    start, look, refused, taken = threading.Thread.start, Driver.look, [], set()

    def no_room(thread):
        if thread.name == "b" and len(refused) < 3:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    def looks(driver):
        found = look(driver)
        taken.update(driver._threads)
        driver.idle_s = 0.0
        drives.may_end.set()
        monkeypatch.setattr("trainmaster.service.driving.driver.undriven", lambda *_: [])
        return found

    monkeypatch.setattr(threading.Thread, "start", no_room)
    monkeypatch.setattr(Driver, "look", looks)
    driver.work()
    joined(driver)
    assert len(refused) == 3
    assert sorted(taken) == sorted(drives.begun) == ["a", "b"]


def test_a_run_that_could_not_be_let_go_of_is_driven_again(service, send, drives, monkeypatch):
    def away(*_, **__):
        raise StoreError("the database refused a write", "")

    send("a")
    driver = Driver(service, os.environ)
    with monkeypatch.context() as outage:
        outage.setattr(HeldDatabase, "release", away)
        driver.look()
        drives.may_end.set()
        joined(driver)
    assert service.database.run_row("a")["lease_owner"] is not None
    driver.look()
    joined(driver)
    assert drives.begun == ["a", "a"]


def test_a_driver_with_runs_does_not_end_itself_while_the_database_is_away(
    service, send, drives, monkeypatch
):
    send("a")
    driver = Driver(service, os.environ, idle_s=0.0)
    driver.look()
    monkeypatch.setattr("trainmaster.service.driving.driver.LOOK_S", 0.0)
    left = [StoreError("the database cannot be read", "")] * 3
    look = Driver.look

    def looks(driver):
        if left:
            raise left.pop()
        drives.may_end.set()
        return look(driver)

    monkeypatch.setattr(Driver, "look", looks)
    monkeypatch.setattr("trainmaster.service.driving.driver.undriven", lambda *_: [])
    driver.work()
    assert not left
    assert not driver._threads


def test_a_driver_without_runs_ends_itself(service):
    Driver(service, os.environ, idle_s=0.0).work()


def test_there_is_one_driver_with_each_number(service):
    held = take_place(service.home.root, 0)
    assert held is not None
    assert is_taken(service.home.root, 0)
    assert take_place(service.home.root, 0, 0.0) is None
    os.close(held)
    assert not is_taken(service.home.root, 0)


@pytest.mark.parametrize("version", ["", "0.1.0", __version__], ids=["before 0.3", "another", "ours"])
def test_a_server_ends_the_drivers_of_another_version_when_it_starts(service, version):
    """As after an upgrade: the code that they would import is gone. Other processes are left alone."""
    place = take_place(service.home.root, 0)
    name_version(place)
    os.pwrite(place, version.ljust(len(__version__)).encode(), 0)
    os.ftruncate(place, len(version))
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    driver, other = (
        subprocess.Popen([*sleeps, word, "0"], pass_fds=[place]) for word in ("_driver", "looks")
    )
    os.close(place)
    try:
        drivers = Drivers(service, os.environ)
        drivers.start()
        drivers.stop()
        if version == __version__:
            assert driver.poll() is None
            assert is_taken(service.home.root, 0)
        else:
            assert driver.wait(LONG_S) == -signal.SIGTERM
        assert other.poll() is None
    finally:
        for process in (driver, other):
            process.kill()
            process.wait()


def test_a_server_has_at_most_so_many_drivers_and_only_if_there_is_something_to_drive(
    service, send, monkeypatch
):
    monkeypatch.setattr("trainmaster.service.driving.drivers.RUNS_EACH", 2)
    started = []

    class Started:
        pid = os.getpid()

        def __init__(self, command, **_):
            started.append(command[-1])

        def poll(self):
            return None

    monkeypatch.setattr("subprocess.Popen", Started)
    drivers = Drivers(service, os.environ, most=2)
    assert drivers.look() == []
    send("a")
    assert drivers.look() == [0]
    send("b", "c", "d", "e")
    assert drivers.look() == [1], "two runs more than one of them is to have"
    assert drivers.look() == []
    assert started == ["0", "1"]


def test_a_driver_of_another_server_counts(service, send, monkeypatch):
    monkeypatch.setattr("subprocess.Popen", None)
    send("a")
    held = take_place(service.home.root, 1)
    assert Drivers(service, os.environ, most=2).look() == []
    os.close(held)


def test_drivers_that_are_there_are_told_of_new_runs(service, send, monkeypatch):
    monkeypatch.setattr("subprocess.Popen", None)
    held = take_place(service.home.root, 0)
    pipe = pipe_of(service.home.root, 0)
    drivers = Drivers(service, os.environ, most=1)
    drivers.look()
    assert not pipe.wait(0.0)
    send("a")
    drivers.look()
    assert pipe.wait(0.0)
    pipe.close()
    os.close(held)


def test_a_driver_looks_when_it_is_told(service, send, drives, monkeypatch):
    monkeypatch.setattr("trainmaster.service.driving.driver.LOOK_S", 10 * LONG_S)
    looks, look = [], Driver.look
    monkeypatch.setattr(Driver, "look", lambda driver: (looks.append(1), look(driver))[1])
    driver = Driver(service, os.environ, idle_s=10 * LONG_S, wakes=pipe_of(service.home.root, 0))
    working = threading.Thread(target=driver.work)
    working.start()
    until(lambda: looks, "it has looked", LONG_S)
    send("a")
    wake_all(service.home.root / DRIVERS, "look")
    until(lambda: drives.begun == ["a"], "the run is taken", LONG_S)
    monkeypatch.setattr("trainmaster.service.driving.driver.undriven", lambda *_: [])
    drives.may_end.set()
    driver.idle_s = 0.0
    while working.is_alive():
        wake_all(service.home.root / DRIVERS, "look")
        working.join(0.1)


def test_servers_are_told_of_the_states_of_runs_and_experiments(service, send):
    send("a")
    pipe = WakePipe(service.home.root / SERVERS / f"s{SUFFIX}")
    driver = Driver(service, os.environ)
    held = HeldRuns(service.database)
    database = HeldDatabase(service.database, RetryPolicy(1.0), held, driver._moved)
    lease = database.acquire("a", 1.0)
    begun = TaskChange("main", 0, 1, State.WAITING, State.RUNNING, creates=True, opens=True)
    database.commit(lease, [begun], 2.0)
    assert pipe.read() == set(), "there are many tasks"
    database.commit(lease, [ExperimentChange("main", State.WAITING, State.RUNNING)], 3.0)
    assert pipe.read() == {"a"}
    pipe.close()
