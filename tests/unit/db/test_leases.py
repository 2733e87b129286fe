"""Which process may drive a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import sqlalchemy as sa
from database_nouns import NOW, new_run

from trainmaster.db import Database, RunChange, is_alive, tables, this_process
from trainmaster.db.leases import LEASE_S, Holder, holder
from trainmaster.spec import processes
from trainmaster.spec.clocks import boot_s
from trainmaster.spec.processes import start_ticks
from trainmaster.spec.states import EndReason, State

HERE = this_process().rsplit(":", 2)[0]


def held_by(database, owner, expires_at=NOW + LEASE_S):
    with database.engine.begin() as connection:
        connection.execute(tables.run.update().values(lease_owner=owner, lease_expires_at=expires_at))


def owner_with(database):
    with database.engine.connect() as connection:
        return connection.execute(sa.select(tables.run.c.lease_owner)).scalar()


@pytest.mark.parametrize(
    "pid_and_start", ["4194999:1", f"{os.getpid()}:1", "x:1", ":"], ids=["none", "later", "text", "empty"]
)
def test_the_lease_of_a_dead_local_process_is_broken_at_once(database, lease, pid_and_start):
    held_by(database, f"{HERE}:{pid_and_start}", expires_at=NOW + 1e9)
    taken = database.acquire("r-1", NOW)
    assert (taken.token, taken.owner) == (2, this_process())


def test_the_lease_of_a_living_local_process_is_kept_whatever_the_clock_says(database, lease):
    parent = f"{HERE}:{os.getppid()}:{start_ticks(os.getppid())}"
    held_by(database, parent, expires_at=NOW - 1e9)
    assert database.acquire("r-1", NOW) is None
    assert owner_with(database) == parent


def test_the_lease_of_another_machine_is_kept_until_it_expires(database, lease):
    held_by(database, "other/boot:1:1")
    assert database.acquire("r-1", NOW + LEASE_S - 1) is None
    assert database.acquire("r-1", NOW + LEASE_S + 1).token == 2


def test_a_released_lease_can_be_taken(database, lease):
    database.release(lease, NOW)
    assert owner_with(database) is None
    assert database.acquire("r-1", NOW).token == 2


def test_every_change_of_hands_has_a_larger_token(database, lease):
    tokens = [database.acquire("r-1", NOW + second).token for second in range(3)]
    assert tokens == [2, 3, 4]


def test_driven_time_adds_up_over_sessions(database, lease):
    database.renew(lease, NOW + 10)
    database.release(lease, NOW + 12)
    again = database.acquire("r-1", NOW + 100)
    assert database.run_row("r-1")["earlier_s"] == 12
    assert database.run_row("r-1")["session_at"] == NOW + 100
    database.release(again, NOW + 103)


@pytest.mark.parametrize(
    ("worked_until", "earlier_s"), [(None, 12), (NOW + 5, 12), (NOW + 40, 40), (NOW + 200, 100)]
)
def test_what_tasks_have_worked_undriven_counts(database, lease, worked_until, earlier_s):
    database.release(lease, NOW + 12)
    database.acquire("r-1", NOW + 100, worked_until)
    assert database.run_row("r-1")["earlier_s"] == earlier_s


def test_a_commit_renews_the_lease(database, lease):
    database.commit(lease, [], NOW + 50)
    assert database.run_row("r-1")["lease_expires_at"] == NOW + 50 + LEASE_S


def test_owners_are_told_apart():
    me = this_process()
    assert is_alive(me, None, NOW)
    assert not is_alive(None, NOW + 1, NOW)
    assert not is_alive("", NOW + 1, NOW)
    assert not is_alive("other/boot:1:1", None, NOW)


def test_a_lease_lasts_for_half_a_minute():
    """Others wait that long for a driver on a lost machine; a living one renews it every 5 s."""
    assert LEASE_S == 30


@pytest.mark.parametrize("part", [0, 1, 2], ids=["host", "boot", "container"])
def test_a_process_that_cannot_be_seen_from_here_is_judged_by_its_lease(part):
    """Its id may be that of a process here, or of none: neither says anything of it."""
    place = HERE.split("/")
    place[part] = "other"
    for pid in (f"{os.getpid()}:{start_ticks(os.getpid())}", "4194999:1"):
        owner = f"{'/'.join(place)}:{pid}"
        assert is_alive(owner, NOW + 1, NOW)
        assert not is_alive(owner, NOW - 1, NOW)


def test_without_a_name_for_where_it_runs_only_the_lease_counts(monkeypatch):
    monkeypatch.setattr(processes, "process_space", lambda: "")
    owner = f"{this_process().rsplit(':', 2)[0]}:4194999:1"
    assert is_alive(owner, NOW + 1, NOW)


def test_a_process_that_is_hidden_from_us_is_judged_by_its_lease(monkeypatch):
    def hidden(pid):
        raise FileNotFoundError(f"/proc/{pid}/stat")

    monkeypatch.setattr(processes, "_start_ticks", hidden)
    owner = f"{HERE}:{os.getppid()}:1"
    assert is_alive(owner, NOW + 1, NOW)
    assert not is_alive(owner, NOW - 1, NOW)


def test_what_is_left_of_a_killed_process_holds_nothing():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    owner = f"{HERE}:{child.pid}:{start_ticks(child.pid)}"
    assert is_alive(owner, None, NOW)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie: nobody has asked for its end yet
    try:
        assert not is_alive(owner, NOW + 1e9, NOW)
    finally:
        child.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a PID namespace")
def test_a_process_in_another_container_of_the_same_host_name_does_not_take_a_living_drivers_lease(
    database, url, lease
):
    """A shared home, and ``docker run --network host``: host and boot are the same, process ids are not."""
    database.renew(lease, time.time())
    program = (
        "import sys, time; from trainmaster.db import Database; store = Database(sys.argv[1]);"
        "store.clock_s = time.time; print(store.acquire('r-1', time.time()))"
    )
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", program, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "None\n", done.stderr


@pytest.mark.parametrize("engine_name", ["postgresql"])
def test_a_host_whose_clock_is_ahead_takes_no_living_drivers_lease(database, url):
    """The server's clock alone says how old a lease is."""
    host, other = Database(url), Database(url)
    try:
        held = host.create_run(new_run(), time.time() - 7200)  # one clock is two hours behind
        held_by(host, "other/boot/pids:1:1", expires_at=host.run_row("r-1")["lease_expires_at"])
        assert other.acquire("r-1", time.time() + 7200) is None, "and another one ahead"
        assert abs(other.clock_s() - host.clock_s()) < 3600
        held_by(host, "other/boot/pids:1:1", expires_at=host.clock_s() - 1)
        assert other.acquire("r-1", time.time() - 7200).token == held.token + 1
    finally:
        host.close()
        other.close()


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_what_is_written_of_a_lease_is_by_the_clock_that_others_read(database, url):
    """A driver reckons with a clock that is never set: after a jump it is far from what others see."""
    found = Database(url)
    try:
        lease = found.create_run(new_run(), time.time())
        for act in (
            lambda: found.renew(lease, NOW),
            lambda: found.commit(lease, [], NOW),
            lambda: found.requeue(lease, NOW),
        ):
            held_by(found, "other/boot/pids:1:1", expires_at=0.0)
            act()
            assert found.run_row("r-1")["lease_expires_at"] > time.time()
            assert found.acquire("r-1", time.time()) is None
    finally:
        found.close()


@pytest.mark.parametrize("engine_name", ["postgresql"])
def test_a_clock_that_is_set_does_not_change_what_a_server_says(database, url, monkeypatch):
    found = Database(url)
    try:
        before = found.clock_s()
        monkeypatch.setattr(time, "time", lambda: 1.0)
        assert 0 <= found.clock_s() - before < 3600, "by the server's clock, not by 1970's"
    finally:
        found.close()


@pytest.mark.parametrize("engine_name", ["postgresql"])
def test_who_gives_up_a_lease_does_not_ask_for_the_time_first(database, url, monkeypatch):
    """A server that is away would be waited for with all patience, at the end of every run that lost it."""
    found = Database(url)
    try:
        lease = found.create_run(new_run(), time.time())
        monkeypatch.setattr("trainmaster.db.database.boot_s", lambda: boot_s() + 3600)
        with monkeypatch.context() as cut_off:
            cut_off.setattr(found, "read", lambda *_: pytest.fail("the server was asked"))
            found.release(lease, time.time())
        assert found.run_row("r-1")["lease_owner"] is None
        assert found.run_row("r-1")["lease_expires_at"] > time.time() + 3000, "and the time was carried on"
    finally:
        found.close()


def test_who_only_saves_what_a_run_has_left_does_not_move_its_end(database, lease):
    database.commit(lease, [RunChange(State.WAITING, State.DONE, EndReason.INTERNAL)], NOW + 5)
    database.release(lease, NOW + 5)
    later = database.acquire("r-1", NOW + 900)
    assert database.run_row("r-1")["ended_at"] == NOW + 5
    database.release(later, NOW + 901)
    database.requeue(database.acquire("r-1", NOW + 1000), NOW + 1000)
    row = database.run_row("r-1")
    assert row["ended_at"] is None, "it goes on"
    assert row["earlier_s"] == 5


def test_a_holder_that_was_stopped_is_told_apart():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    owner = f"{HERE}:{child.pid}:{start_ticks(child.pid)}"
    try:
        assert holder(owner, NOW + LEASE_S - 3, NOW) == Holder(child.pid, is_stopped=False, silent_s=3)
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert holder(owner, NOW + LEASE_S, NOW) == Holder(child.pid, is_stopped=True, silent_s=0)
    finally:
        child.kill()
        child.wait()
    assert holder(owner, NOW + LEASE_S, NOW) is None


def test_a_holder_elsewhere_is_known_by_its_last_sign_of_life():
    owner = f"elsewhere/boot/pids:{os.getpid()}:1"
    assert holder(owner, NOW + LEASE_S - 12, NOW) == Holder(0, is_stopped=False, silent_s=12)
    assert holder(owner, NOW - 1, NOW) is None
