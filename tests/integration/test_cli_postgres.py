"""PostgreSQL under the command line: several homes on one database, and a database that goes away."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from trainmaster.testing.private_postgres import NOT_DURABLE, PrivatePostgres

#: Each task leaves a mark at its start and its end: a test that reads them knows exactly what ran.
MARKED = (
    "echo $TRAINMASTER_TASK >> $NOTES/$MARKS.begun; sleep 0.2; echo $TRAINMASTER_TASK >> $NOTES/$MARKS.ended"
)


def marked(user, tasks, name="job"):
    recipe = {"name": name, "experiments": {"main": {
        "command": MARKED, "env": {"MARKS": name}, "parameters": {"n": {"range": f"1-{tasks}", "step": 1}},
    }}}  # fmt: skip
    return user.recipe(recipe, f"{name}.yaml")


def each_once(user, tasks, name="job"):
    """Every task has begun once and ended once."""
    expected = sorted(map(str, range(tasks)))
    assert sorted(user.marks(f"{name}.begun")) == expected
    assert sorted(user.marks(f"{name}.ended")) == expected


@pytest.fixture
def users(tm, postgres, tmp_path):
    """Two users with homes of their own and one database."""
    (tmp_path / "other").mkdir()
    other = type(tm)(tmp_path / "other")
    tm.env["TRAINMASTER_DATABASE"] = other.env["TRAINMASTER_DATABASE"] = postgres.new_url()
    other.notes, other.env["NOTES"] = tm.notes, tm.env["NOTES"]
    yield tm, other
    other.clean_up()


@pytest.fixture
def user(users):
    return users[0]


def test_a_run_is_in_the_database_and_not_in_the_home(user):
    summary = user.run(user.task("echo x > $TRAINMASTER_OUTPUT_DIR/x"))
    assert summary["reason"] == "SUCCEEDED"
    assert [row["run"] for row in user.runs()] == [summary["run"]]
    assert not (user.home / "trainmaster.db").exists()
    assert "postgresql" in user.call("doctor").err + user.call("doctor").out
    del user.env["TRAINMASTER_DATABASE"]
    told = user.call("status")
    assert "if TRAINMASTER_DATABASE named another database" in told.err + told.out


def test_two_homes_run_at_once(users):
    calls = [
        user.start("run", marked(user, 10, name), "--json") for user, name in zip(users, "ab", strict=True)
    ]
    for user, name, call in zip(users, "ab", calls, strict=True):
        assert user.summary(call.wait(0))["experiments"]["main"]["tasks"]["succeeded"] == 10
        each_once(user, 10, name)
    assert len(users[0].runs()) == len(users[1].runs()) == 2


def test_many_want_the_run_of_one_that_was_killed(users):
    """The home that it was started in is asked, whatever takes it: its tasks are still running there."""
    user, other = users
    call = user.start("run", marked(user, 8), "--json")
    run = call.run_id()
    user.until_marks("job.begun")
    call.kill()
    calls = [who.start("resume", run, "--json") for who in (user, other, other, user)]
    for who, call in zip((user, other, other, user), calls, strict=True):
        assert who.summary(call.wait(0))["run"] == run
    each_once(user, 8)
    assert other.logs(run) == user.logs(run)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.crossings)])
def test_two_runs_and_controllers_that_are_killed_at_random(users, seed):
    chance = random.Random(seed)
    calls = [
        user.start("run", marked(user, 15, name), "--json") for user, name in zip(users, "ab", strict=True)
    ]
    runs = [call.run_id() for call in calls]
    for _ in range(6):
        time.sleep(chance.uniform(0.05, 0.5))
        chance.choice(calls).kill()
        calls.append(chance.choice(users).start("resume", chance.choice(runs), "--json"))
        calls = [call for call in calls if not call.over] or calls[-1:]
    for call in calls:
        call.process.wait(60)
    for user, name, run in zip(users, "ab", runs, strict=True):
        summary = user.resume(run)
        assert summary["experiments"]["main"]["tasks"]["succeeded"] == 15
        each_once(user, 15, name)


#: A curve that is the steeper the nearer ``q`` is to 0.7; tells which task ran with which value.
CURVE = r"""
echo $TRAINMASTER_TASK {{q}} >> $NOTES/ran
for step in 1 2 3 4 5 6; do
  awk -v q={{q}} -v s=$step 'BEGIN { printf "{\"step\": %d, \"score\": %.9g}\n", s, (1 - (q-0.7)^2) * s }' \
    >> $TRAINMASTER_METRICS
  sleep 0.15
done
echo $TRAINMASTER_TASK >> $NOTES/whole
"""


def test_a_search_whose_controller_is_killed(users):
    """TPE and ASHA, driven from two homes in turn: no trial is lost, repeated or given other values."""
    pytest.importorskip("optuna")
    user, other = users
    chance = random.Random(1)
    recipe = user.task(
        CURVE,
        parameters={"q": {"range": "0-1"}},
        samples=14,
        search={"metric": "score", "goal": "max", "sampler": "tpe", "pruner": "asha",
                "options": {"min_steps": 2, "reduction": 2}},
    )  # fmt: skip
    call, who = user.start("run", recipe, "--json"), user
    run = call.run_id()
    for count in (2, 5, 8):
        user.until_marks("ran", count)
        time.sleep(chance.uniform(0, 0.2))
        call.kill()
        who = other if who is user else user
        call = who.start("resume", run, "--json")
    summary = who.summary(call.wait(0))
    experiment = summary["experiments"]["main"]
    assert experiment["tasks"]["pruned"] >= 2, experiment
    assert experiment["tasks"]["pruned"] + experiment["tasks"]["succeeded"] == 14
    ran = dict(line.split() for line in user.marks("ran"))
    assert sorted(map(int, ran)) == list(range(14))
    assert len(user.marks("ran")) == 14, "none has begun twice"
    assert len(user.marks("whole")) >= experiment["tasks"]["succeeded"], "one may be pruned as it ends"
    best = experiment["best"]
    assert str(best["task"]) in user.marks("whole")
    assert float(ran[str(best["task"])]) == best["parameters"]["q"]
    assert best["value"] == pytest.approx((1 - (best["parameters"]["q"] - 0.7) ** 2) * 6)
    assert other.status(run)["experiments"] == user.status(run)["experiments"] == summary["experiments"]


def test_a_home_that_is_not_here_is_not_replaced_by_another(users):
    user, other = users
    call = user.start("run", marked(user, 4), "--json")
    run = call.run_id()
    user.until_marks("job.begun")
    call.kill()
    elsewhere = user.home.with_name("elsewhere")
    user.home.rename(elsewhere)
    try:
        assert "was started in another home" in other.call("resume", run, code=2).err
        assert "was started in another home" in other.call("logs", run, code=2).err
    finally:
        elsewhere.rename(user.home)
    assert other.resume(run)["reason"] == "SUCCEEDED"
    each_once(user, 4)


@pytest.mark.parametrize("how", ["cut", pytest.param("restart", marks=pytest.mark.crossings), "crash"])
def test_a_server_that_goes_away_in_mid_run(user, postgres, how):
    call = user.start("run", marked(user, 12), "--json")
    for count in (1, 4, 7):
        user.until_marks("job.ended", count)
        if how == "cut":
            postgres.cut_connections()
        else:
            postgres.restart(signal.SIGINT if how == "restart" else signal.SIGQUIT)
    summary = user.summary(call.wait(0))
    assert summary["experiments"]["main"]["tasks"]["succeeded"] == 12
    each_once(user, 12)


def test_a_server_that_stays_away(user, postgres):
    env = {**user.env, "TRAINMASTER_DATABASE_PATIENCE": "1s"}
    call = user.start("run", marked(user, 12), env=env)
    run = call.run_id()
    user.until_marks("job.ended")
    postgres.stop()
    try:
        error = call.wait(1).err
    finally:
        postgres.start()
    assert "the database is away (" in error
    assert "for 1 s" in error
    assert "`trainmaster resume RUN` goes on" in error
    assert user.resume(run)["reason"] == "SUCCEEDED"
    each_once(user, 12)


def test_a_patience_that_is_no_duration(user):
    result = user.call("status", env={**user.env, "TRAINMASTER_DATABASE_PATIENCE": "long"}, code=2)
    assert "TRAINMASTER_DATABASE_PATIENCE" in result.err


@pytest.fixture
def small_disk():
    """A file system that PostgreSQL fits on, and not much more; its user may not enter pytest's folders."""
    with tempfile.TemporaryDirectory(prefix="tm-disk-", dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        place = Path(directory, "disk")
        place.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=96m,mode=777", "tmpfs", str(place)]
        if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
            pytest.skip("mounting a small file system needs root")
        try:
            yield place
        finally:
            subprocess.run(["umount", str(place)], check=True)


#: As many metrics as fill a megabyte, different ones in each task: the database must grow.
TALKATIVE = """
import json, os, random
with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
    file.write(json.dumps({f"{random.getrandbits(128):x}": random.random() for _ in range(8_000)}) + chr(10))
"""


def test_a_server_whose_disk_is_full_for_a_while(tm, postgres, small_disk):
    settings = {**NOT_DURABLE, "max_wal_size": "4MB", "min_wal_size": "2MB"}
    with PrivatePostgres(settings, small_disk) as server:
        tm.env["TRAINMASTER_DATABASE"] = server.new_url()
        tm.write("talk.py", TALKATIVE)
        recipe = tm.recipe({"name": "job", "experiments": {"main": {
            "command": MARKED + "; python talk.py",
            "env": {"MARKS": "job"}, "parameters": {"n": {"range": "1-30", "step": 1}},
        }}})  # fmt: skip
        call = tm.start("run", recipe, "--json")
        tm.until_marks("job.ended", 2)
        filler = small_disk / "filler"
        fill(filler)
        tm.until(lambda: "the database is away" in call.err or call.over, "trouble")
        assert not call.over, call.err
        time.sleep(0.5)
        filler.unlink()
        if not server.is_running:  # where even the log of transactions did not fit, it gives up
            server.start()
        summary = tm.summary(call.wait(0))
        assert summary["experiments"]["main"]["tasks"]["succeeded"] == 30
        each_once(tm, 30)


def fill(path):
    """Leave no byte free."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while True:
            os.write(descriptor, bytes(4096))
    os.close(descriptor)
