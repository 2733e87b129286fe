"""Measuring for a quote: real scripts, whatever they show; and nothing of it is left afterwards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("profile_driver.py")

REPORTING = """
    import time, trainmaster
    time.sleep(0.3)
    for step in range(1, 100000):
        time.sleep(0.02 if step > 10 else 0.08)
        trainmaster.report(step=step, loss=1.0 / step)
"""


class Profile:
    """A call of the driver."""

    def __init__(self, tm, recipe, *experiments):
        self.tm = tm
        self.process = subprocess.Popen(
            [sys.executable, str(DRIVER), str(recipe), *experiments],
            cwd=tm.work, env=tm.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def end(self, code=0):
        out, err = self.process.communicate(timeout=60)
        assert "Traceback (most recent call last)" not in err or code == 2, err
        assert self.process.returncode == code, err
        return json.loads(out) if code == 0 else err


@pytest.fixture
def profile(tm):
    started = []

    def begin(recipe, *experiments):
        started.append(Profile(tm, recipe, *experiments))
        return started[-1]

    yield begin
    for each in started:
        each.process.kill()
        each.process.communicate()
    nothing_is_left(tm)


def nothing_is_left(tm):
    """No process, and no directory that is not of a run."""
    tm.until_quiet()
    assert [path for path in (tm.home / "profiles").glob("*") if path.name != ".lock"] == []
    runs = {path.name for path in (tm.home / "runs").glob("*")}
    assert not any("profile" in name for name in runs)
    assert {path.name.removesuffix(".json") for path in (tm.home / "store").glob("*/*")} <= runs


def seconds(number, **shapes):
    return {"seconds": f"{number}s", **shapes}


def test_a_script_that_reports(tm, profile):
    tm.write("train.py", REPORTING)
    recipe = tm.task(
        "echo $SECRET $TRAINMASTER_PARAM_LR > $NOTES/env; echo x > $TRAINMASTER_OUTPUT_DIR/model;"
        " echo y > $TRAINMASTER_CHECKPOINT_DIR/state; python train.py",
        profile=seconds(600),  # nobody waits so long: it is steady before
        parameters={"lr": [0.5, 0.25]},
        secrets=["SECRET"],
        batch={"global": 32},
    )
    tm.env["SECRET"] = "hush"
    found = profile(recipe).end()
    (measured,) = found["measured"]["main"]
    point = measured["point"]
    assert point["step_time_s"] == pytest.approx(0.0205, rel=0.3)
    assert point["step_time_p10_s"] <= point["step_time_s"] <= point["step_time_p90_s"]
    assert (point["sync"], point["workers"], point["local_batch"]) == ("allreduce", 1, 32)
    assert measured["startup_s"] > 0.3
    assert measured["warmup_s"] == pytest.approx(9 * 0.06, abs=0.5)
    assert measured["duration_s"] is None
    assert measured["memory_bytes"] > 1e6
    assert 0 < measured["cores"] < 1
    assert found["same"] == {"main": 1}
    assert tm.marks("env") == ["hush 0.5"]
    assert not (tm.home / "runs").exists()
    nothing_is_left(tm)
    tm.write("other.py", "")  # other code
    assert profile(tm.task("exit 0")).end()["similar"] == {"main": 0}


def test_a_script_that_prints_with_a_setup_and_data(tm, profile):
    (tm.root / "data").mkdir()
    tm.write(
        "train.py",
        "import os, time; assert os.path.isdir(os.environ['TRAINMASTER_DATA_X'])\n"
        + """
for epoch in range(1000):
    for step in range(1, 21):
        time.sleep(0.02)
        print(f'epoch {epoch} step {epoch * 20 + step} loss: 0.5')
    time.sleep(0.3)
""",
    )
    found = profile(
        tm.task("python train.py", data={"x": {"dir": str(tm.root / "data")}}, profile=seconds(4))
    ).end()
    (measured,) = found["measured"]["main"]
    assert measured["point"]["step_time_s"] == pytest.approx(0.0205, rel=0.3)
    assert measured["pause_s"] == pytest.approx(0.3, abs=0.15)


def test_a_script_that_shows_nothing(tm, profile):
    found = profile(tm.task("exec sleep 600", profile=seconds(0.5))).end()
    why = found["not_measured"]["main"]
    assert "experiments.main.metrics: the task ran for" in why
    for key in ("metrics: {pattern:", "trainmaster.report(", "TRAINMASTER_METRICS", "profile.seconds"):
        assert key in why


def test_a_task_that_ends_is_measured_by_its_duration(tm, profile):
    found = profile(tm.task("sleep 1")).end()
    (measured,) = found["measured"]["main"]
    assert measured["point"] is None
    assert measured["duration_s"] >= 0.9


def test_a_training_that_ends_has_steps_and_a_duration(tm, profile):
    tm.write("train.py", REPORTING.replace("100000", "60"))
    found = profile(tm.task("python train.py; sleep 1.5")).end()
    (measured,) = found["measured"]["main"]
    assert 50 <= measured["steps_done"] <= 59, "a late first look sees several, and takes them for one"
    assert 0.45 < measured["tail_s"] < measured["duration_s"] - measured["startup_s"]
    assert measured["duration_s"] > 2


def test_a_task_that_fails_says_why(tm, profile):
    error = profile(tm.task("echo starting; echo no such file: x.csv >&2; exit 3")).end(2)
    assert "experiments.main: its task failed while it was measured: exit code 3" in error
    assert "no such file: x.csv" in error


def test_what_needs_another_experiment(tm, profile):
    """Its models are taken from an earlier run of the same; without one it says so."""
    experiments = {
        "first": {"command": "echo 1 > $TRAINMASTER_OUTPUT_DIR/model"},
        "second": {
            "command": "cat $TRAINMASTER_DATA_M/model > $NOTES/seen",
            "data": {"m": {"from": "first"}},
        },
        "third": {"command": "true", "after": ["first"]},
    }
    recipe = tm.recipe({"name": "job", "experiments": experiments})
    found = profile(recipe).end()
    assert list(found["measured"]) == ["first"]
    assert found["not_measured"] == {
        "second": "it needs the models of 'first', which has not run yet",
        "third": "it comes after 'first', whose work it may need; that is only there in a run",
    }
    nothing_is_left(tm)
    tm.run(tm.recipe({"name": "alone", "experiments": {"first": experiments["first"]}}))
    tm.recipe({"name": "job", "experiments": experiments})  # a recipe is not part of the code
    found = profile(recipe, "second").end()
    assert found["measured"]["second"][0]["duration_s"] > 0
    assert tm.marks("seen") == ["1"]
    assert found["same"] == {"first": 2, "second": 1, "third": 0}


def test_a_run_is_a_measurement_too(tm, profile):
    """Its durations, and the steps of what runs long enough to be looked at."""
    tm.write("train.py", REPORTING.replace("100000", "700"))
    experiments = {
        "short": {"command": "test {{n}} -ne 5", "parameters": {"n": {"range": "1-34", "step": 1}}},
        "long": {"command": "python train.py"},
    }
    tm.run(tm.recipe({"name": "job", "experiments": experiments}), code=1)
    experiments["long"]["retries"] = 5
    found = profile(
        tm.recipe({"name": "job", "budget": {"total": "$1"}, "experiments": experiments}), "short"
    )
    found = found.end()
    assert found["same"] == {"short": 20 + 1, "long": 1}
    (measured,) = found["known"]["long"]
    assert measured["point"]["step_time_s"] == pytest.approx(0.0205, rel=0.3)
    assert measured["steps_done"] == 699
    assert measured["duration_s"] > measured["startup_s"] > 0.3
    assert 0 <= measured["tail_s"] < measured["duration_s"] - measured["startup_s"]


#: Each member sends a megabyte in each step, and no framework has to begin.
EXCHANGES = """
    import os, socket, time, trainmaster

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    gradient = bytes(1_000_000)

    def join():
        while True:
            try:
                return socket.create_connection(address)
            except ConnectionRefusedError:  # it has not begun
                time.sleep(0.02)

    def receive(peer):
        left = len(gradient)
        while left:
            part = peer.recv(min(left, 1 << 16))
            if not part:
                raise SystemExit("the other one has ended")
            left -= len(part)

    if rank == 0:
        server = socket.create_server(address)
        peers = [server.accept()[0] for _ in range(world - 1)]
    else:
        peers = [join()]
    for step in range(1, 100000):
        time.sleep(0.02)
        for peer in peers:
            if rank == 0:
                receive(peer)
            peer.sendall(gradient)
            if rank > 0:
                receive(peer)
        if rank == 0:
            trainmaster.report(step=step)
"""


def test_a_gang(tm, profile):
    tm.write("train.py", EXCHANGES)
    gang = {"strategy": "allreduce", "workers": "auto"}
    recipe = tm.task(
        "python train.py", distributed=gang, batch={"global": 64}, steps=10**6, profile=seconds(6)
    )
    found = profile(recipe).end()["measured"]["main"]
    assert [each["point"]["workers"] for each in found][:2] == [1, 2]
    assert [each["point"]["local_batch"] for each in found][:2] == [64, 32]
    sent = found[1]["point"]["bytes_out"]
    if sent is not None:  # the kernel may not tell
        assert sent == pytest.approx(1e6, rel=0.5)


def test_ctrl_c_leaves_nothing(tm, profile):
    tm.write("train.py", REPORTING)
    call = profile(tm.task("touch $NOTES/begun; python train.py", profile=seconds(60)))
    tm.until(lambda: (tm.notes / "begun").exists())
    call.process.send_signal(signal.SIGINT)
    assert "interrupted" in call.end(130)
    nothing_is_left(tm)


@pytest.mark.parametrize("guarded", [True, False])
def test_kill_9_leaves_nothing(tm, profile, guarded):
    tm.write("train.py", REPORTING)
    recipe = tm.task("touch $NOTES/begun; python train.py", profile=seconds(60))
    call = profile(recipe)
    tm.until(lambda: (tm.notes / "begun").exists())
    if not guarded:  # all that would clean up is killed at once: the next call does
        (guard,) = (pid for pid, what in tm.processes().items() if "profile_place" in what)
        os.kill(guard, signal.SIGKILL)
    call.process.kill()
    call.process.wait()
    if not guarded:
        assert any("train.py" in what for what in tm.processes().values())
        profile(tm.task("true")).end()
    nothing_is_left(tm)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")
@pytest.mark.parametrize(("keys", "is_counted"), [({"provider": "aws"}, True), ({}, False)])
def test_what_ranks_of_a_gang_for_several_machines_send_is_counted_here(tm, profile, keys, is_counted):
    """They share memory on one machine, of which nothing is counted: it was quoted 48 s (9 s to 45 min)."""
    pytest.importorskip("mpi4py")
    tm.write(
        "sum.py",
        """
import time
from mpi4py import MPI
import numpy as np
part = np.ones(20_000)
for step in range(1, 400):
    part = MPI.COMM_WORLD.allreduce(part) / 2
    time.sleep(0.01)
    if MPI.COMM_WORLD.rank == 0:
        print(f"step {step}/399", flush=True)
""",
    )
    gang = {"command": "python sum.py", "framework": "mpi"}
    gang["distributed"] = {"strategy": "allreduce", "workers": 2}
    recipe = tm.recipe({"name": "job", "experiments": {"main": gang}, **keys})
    (measured,) = profile(recipe).end()["measured"]["main"]
    sent = measured["point"]["bytes_out"]
    assert measured["cores"] <= 1, "of one rank"
    assert (sent or 0.0) == pytest.approx(160_000 if is_counted else 0.0, rel=0.1, abs=2000)
