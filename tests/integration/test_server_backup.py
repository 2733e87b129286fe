"""A busy server is saved into a file; a home made of that file answers as the server did."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from running_server import RunningServer

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

#: Tells, reports and saves all the time, until it is told to end; goes on from its checkpoint.
BUSY = """
import json, os, time
place = os.path.join(os.environ["TRAINMASTER_CHECKPOINT_DIR"], "step")
first = step = int(open(place).read()) if os.path.exists(place) else 0
while not os.path.exists(os.environ["NOTES"] + "/end"):
    step += 1
    print(f"step {step} after {first}", flush=True)
    with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
        file.write(json.dumps({"step": step}) + chr(10))
    with open(place + ".new", "w") as file:
        file.write(str(step))
    os.replace(place + ".new", place)
    time.sleep(0.2)
"""
NIGHTLY = "name: nightly\non: webhook\nexperiments: {main: {command: 'true'}}\n"


def server_of(user, token=""):
    scopes = ("--scopes", "read,run,manage,admin")
    found = RunningServer(user.start, token or user.call("token", "create", "t", *scopes).out.strip())
    found.start()
    return found


@pytest.fixture
def other(tm):
    """Somebody with an empty home, a machine further as it were."""
    (tm.root / "other").mkdir()
    found = type(tm)(tm.root / "other")
    found.notes, found.env["NOTES"] = tm.notes, tm.env["NOTES"]
    yield found
    found.clean_up()


def fill(tm, server):
    """Something of each kind that a home has; the busy run."""
    model = tm.run(tm.task("echo 5 > $TRAINMASTER_OUTPUT_DIR/weights; echo done"))
    tm.write("pets/a", "a cat\n")
    tm.call("volume", "push", tm.work / "pets", "pets")
    server.ask("POST", "/workflows", {"recipe": NIGHTLY})
    tm.write("train.py", BUSY)
    recipe = {"name": "busy", "experiments": {"main": {
        "command": "python train.py", "checkpoint": {"every": "1s"}, "env": {"NOTES": tm.env["NOTES"]},
    }}}  # fmt: skip
    busy = server.send(BUSY, {"recipe": json.dumps(recipe)})[1]["run"]
    tm.call("team", "create", "red")
    tm.call("user", "create", "ann")
    server.open("PUT", "/api/v1/secrets/S?team=red", {"value": "hush"}).close()
    tm.until(lambda: list((tm.home / f"store/checkpoints/{busy}").glob("*/*/*/manifest.json")), "saved")
    return model["run"], busy


def saved_while_asked(tm, server, file):
    """A backup, taken while the server is asked and writes."""
    over, written = threading.Event(), []

    def ask():
        while not over.is_set():
            server.open("PUT", f"/api/v1/secrets/N{len(written)}?team=red", {"value": "x"}).close()
            server.ask("GET", "/runs")
            written.append(1)
            over.wait(0.05)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        tm.until(lambda: len(written) > 2, "it is busy")
        found = tm.call("server", "backup", file, "--json").json
    finally:
        over.set()
        thread.join()
    assert found["unreadable"] == []
    return found


@contextlib.contextmanager
def out_of_reach(tm):
    """Nothing is read where the home was, and what writes there waits: it would make parts of it anew."""
    halted = list(tm.processes())
    for pid in halted:
        with contextlib.suppress(ProcessLookupError):  # one that was about to end
            os.kill(pid, signal.SIGSTOP)
    tm.home.rename(tm.home.with_name("away"))
    try:
        yield
    finally:
        tm.home.with_name("away").rename(tm.home)
        for pid in halted:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


#: Rows are restored into PostgreSQL in `test_kill_9_leaves_nothing_or_the_whole`, and saved by the same SQL.
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.crossings)])
def test_what_a_busy_server_has_is_there_again(tm, other, request, kind):
    if kind == "postgresql":
        postgres = request.getfixturevalue("postgres")
        tm.env["TRAINMASTER_DATABASE"], other.env["TRAINMASTER_DATABASE"] = (
            postgres.new_url(),
            postgres.new_url(),
        )
    server = server_of(tm)
    model, busy = fill(tm, server)
    file = tm.root / "home.tar.gz"
    saved_while_asked(tm, server, file)
    steps = tm.logs(busy).count("\n")
    assert "is there already" in tm.call("server", "backup", file, code=2).err

    restored = other.call("server", "restore", file, "--json")
    assert restored.json["held"] == 1
    assert "must not be used at once" in restored.err
    assert (other.home / "trainmaster.db").exists() == (kind == "sqlite")
    assert "is not empty" in other.call("server", "restore", file, code=2).err
    with out_of_reach(tm):
        check(other, server.token, model, busy)
        assert other.logs(busy).count("\n") <= steps
    (tm.notes / "end").touch()
    assert other.resume(busy)["reason"] == "SUCCEEDED"
    assert tm.status(busy)["run"] == busy, "the server that was saved goes on"
    server.process.kill()


def check(other, token, model, busy):
    """All that the first server had."""
    server = server_of(other, token)  # a token of before
    try:
        states = {row["run"]: row["state"] for row in server.ask("GET", "/runs")[1]["runs"]}
        assert states == {model: "DONE", busy: "DONE"}
        (workflow,) = server.ask("GET", "/workflows")[1]["workflows"]
        assert workflow["state"] == "PAUSED"
    finally:
        server.process.kill()
    assert "done" in other.logs(model)
    assert "step 3 after 0" in other.logs(busy)
    assert "step" in other.call("metrics", "export", busy, "--csv", "-").out
    (found,) = other.call("models", model, "--json").json["models"]
    assert str(other.home) in found["uri"]
    other.call("models", "get", found["uri"], other.root / "got")
    assert (other.root / "got/weights").read_text() == "5\n"
    other.call("models", "fsck", "--deep")
    assert other.call("volume", "cat", "pets", "a").out == "a cat\n"
    other.call("volume", "fsck", "pets")
    assert "red" in other.call("team", "list").out
    assert "ann" in other.call("user", "list").out
    assert ", until 20" in other.call("token", "list").out
    (key,) = other.call("server", "key", "--json").json["keys"]
    assert (key["seals"], key["is_known"]) == (True, True)
    assert key["values"] >= 2
    assert other.call("server", "audit", "--json").json["why"] == ""
    status = other.status(busy)
    assert (status["reason"], status["message"].partition(" when")[0]) == ("CANCELLED", "it was under way")


def test_what_was_under_way_goes_on_where_the_home_is_gone(tm, other):
    server = server_of(tm)
    _, busy = fill(tm, server)
    saved_while_asked(tm, server, tm.root / "home.tar.gz")
    tm.clean_up()  # the machine is lost
    assert other.call("server", "restore", tm.root / "home.tar.gz", "--go-on", "--json").json["held"] == 0
    server = server_of(other, server.token)
    other.until(lambda: " after 0" not in other.logs(busy).rstrip().rpartition("\n")[2], "its second attempt")
    (tm.notes / "end").touch()
    other.until(lambda: other.status(busy)["state"] == "DONE", "it ends")
    assert other.status(busy)["reason"] == "SUCCEEDED"
    server.process.kill()


#: Ends the process where it would do this step.
KILLED = """
import os, sys
from importlib import import_module
from pathlib import Path
from trainmaster.service.backup import restoring
module, name = sys.argv[2:]
setattr(import_module(module), name, lambda *_, **__: os.kill(os.getpid(), 9))
restoring.restore(Path(sys.argv[1]), goes_on=False)
"""
RESTORING, COPIES = "trainmaster.service.backup.restoring", "trainmaster.db.copies"
#: The home is whole after the last one only.
STEPS = [
    (RESTORING, "_check"),
    (COPIES, "hold"),
    (COPIES, "_count_on"),
    ("os", "sync"),
    (COPIES, "forget_mark"),
]


def test_kill_9_leaves_nothing_or_the_whole(tm, other, postgres):
    tm.call("token", "create", "t")
    tm.call("server", "backup", tm.root / "home.tar.gz")
    other.env["TRAINMASTER_DATABASE"] = postgres.new_url()
    for module, name in STEPS:
        command = [sys.executable, "-c", KILLED, str(tm.root / "home.tar.gz"), module, name]
        killed = subprocess.run(command, env=other.env, check=False, capture_output=True)
        assert killed.returncode == -signal.SIGKILL, (name, killed.stderr)
        assert other.home.exists() == (name == "forget_mark"), name
    assert "t" in other.call("token", "list").out
    assert other.home.stat().st_mode & 0o777 == 0o700
    assert not [path for path in other.root.iterdir() if "in-the-making" in path.name]
