"""`provider: local` of teams on a shared server: in containers, or as a Unix user per team."""

from __future__ import annotations

import itertools
import json
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import urllib.error
from contextlib import suppress

import pytest
from private_engines import IMAGE, engine_of_module
from running_server import RunningServer

from trainmaster.control.task.layout import Home
from trainmaster.service.cloud_metadata import let_through

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

#: Writes down what came of reading, as the team that sent it, what it should not see.
SPY = """\
import ctypes, json, os, socket, sys
told = {}
def look(what, do):
    try:
        told[what] = f"seen: {do()!r:.60}"
    except OSError as error:
        told[what] = type(error).__name__
wanted = json.loads(sys.argv[1])
for path in wanted["paths"]:
    look(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path, "rb").read())
look("write", lambda: open("here", "w"))
look("loopback", lambda: socket.create_connection(("127.0.0.1", wanted["port"]), 2))
def call():
    with socket.socket(socket.AF_UNIX) as supervisor:
        supervisor.connect(wanted["socket"])
look("socket", call)
told["namespace"] = ctypes.CDLL(None).unshare(0x10000000)
told["uid"], told["env"] = os.getuid(), sorted(os.environ)
told["secret"], told["volume"] = os.environ["KEY"][::-1], os.listdir(os.environ["TRAINMASTER_DATA_PETS"])
with open(os.environ["TRAINMASTER_OUTPUT_DIR"] + "/told", "w") as file:
    json.dump(told, file)
"""
#: Two that meet, and wait until they may go on.
PAIR = """\
import os, socket, time
rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server((os.environ["MASTER_ADDR"], port)) as server:
        other = server.accept()[0]
    other.sendall(b"welcome")
else:
    while True:
        try:
            other = socket.create_connection((os.environ["MASTER_ADDR"], port))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    print("heard", other.recv(100).decode(), flush=True)
output = os.environ["TRAINMASTER_OUTPUT_DIR"]
open(os.environ["TRAINMASTER_CHECKPOINT_DIR"] + f"/step-{rank}", "w").close()
while not os.path.exists(output + "/go"):
    time.sleep(0.05)
with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
    file.write('{"step": 1, "loss": 0.5}\\n')
open(output + "/weights", "w").close()
"""


class Shared(RunningServer):
    """A server that two teams share."""

    def __init__(self, tm, how, prefix=""):
        super().__init__(lambda *arguments: tm.start(*arguments, "--local-runs", how, prefix=prefix))
        self.tm = tm
        self.tokens = {}

    def add_team(self, name):
        self.tm.call("team", "create", name)
        made = self.tm.call("token", "create", name, "--team", name, "--scopes", "read,run", "--json")
        self.tokens[name] = made.json["token"]

    def run(self, team, script, **keys):
        """A run that was sent."""
        self.token = self.tokens[team]
        keys = {"command": "python3 train.py", **keys}
        recipe = json.dumps({"name": "job", "provider": "local", "experiments": {"main": keys}})
        return self.send(script, {"recipe": recipe, "provider": None})[1]["run"]

    def end(self, run):
        """What has come of a run."""

        def over():
            found = self.ask("GET", f"/runs/{run}")[1]
            return found if found["state"] == "DONE" else None

        return self.tm_until(over, f"the end of {run}")

    def tm_until(self, condition, what):
        from trainmaster.testing.waits import until

        return until(condition, what, 120)

    def attempt(self, run):
        return self.tm.home / "runs" / run / "tasks/main/0/1"


podman = engine_of_module("podman")


@pytest.fixture
def users():
    """The name of teams of which each has a Unix user."""
    if os.getuid() != 0 or shutil.which("useradd") is None:
        pytest.skip("making Unix users needs root and useradd")
    number = secrets.token_hex(3)
    names = [f"tmtest-{team}{number}" for team in ("red", "blue")]
    try:
        for name in names:
            subprocess.run(["useradd", "--system", "--no-create-home", name], check=True)
        yield number
    finally:
        for name in names:
            subprocess.run(["userdel", "--force", name], check=False)


@pytest.fixture(params=["user", "container"])
def shared(request, tm):
    """Teams ``red`` and ``blue`` on one server; ``number`` ends their names."""
    if request.param == "user":
        number, how = request.getfixturevalue("users"), "user:tmtest-{team}"
    else:
        engine = request.getfixturevalue("podman")
        tm.env |= engine.env
        number, how = "", f"container:{IMAGE}"
    found = Shared(tm, how)
    found.how, found.red, found.blue = request.param, f"red{number}", f"blue{number}"
    tm.env["OF_THE_SERVER"] = "battery staple"
    for team in (found.red, found.blue):
        found.add_team(team)
    found.start()
    yield found
    let_through(Home.from_environment(tm.env).root)
    if request.param == "container":
        engine.until_empty()


#: As a user they go on as any run does, and have a control group of the same kind.
IN_CONTAINERS = pytest.mark.parametrize(
    "shared", [pytest.param("user", marks=pytest.mark.crossings), "container"], indirect=True
)


def kill_drivers(tm):
    for pid, what in tm.processes().items():
        if "_driver" in what:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def push(tm, team):
    (tm.root / "pets").mkdir()
    (tm.root / "pets/cat").write_text("meow")
    (tm.root / "pets/cat").chmod(0o600)
    tm.call("volume", "push", tm.root / "pets", tm.home / "store/teams" / team / "volumes/pets")


def test_a_script_sees_nothing_of_the_server_or_of_another_team(shared, tm):
    theirs = shared.run(shared.blue, "import os; open(os.environ['TRAINMASTER_OUTPUT_DIR'] + '/w', 'w')")
    assert shared.end(theirs)["reason"] == "SUCCEEDED"
    running = shared.run(shared.blue, "import time; time.sleep(600)")
    shared.tm_until(lambda: (shared.attempt(running) / "worker-0.log").exists(), "theirs is running")
    push(tm, shared.red)
    tm.call("secret", "set", shared.red, "KEY", prefix="exec 0<<<word;")
    server = shared.process.pid
    paths = [
        str(tm.home), str(tm.cache), str(tm.home / "trainmaster.db"), str(tm.home / "store"),
        str(shared.attempt(running)), str(shared.attempt(running) / "output"),
        str(tm.home / "store/models" / theirs), f"/proc/{server}/environ", str(tm.root), "/etc/shadow",
    ]  # fmt: skip
    port = int(shared.port)
    wanted = {"paths": paths, "port": port, "socket": str(tm.home / "supervisor/socket")}
    run = shared.run(
        shared.red,
        SPY,
        command=f"python3 train.py '{json.dumps(wanted)}'",
        secrets=["KEY"],
        data={"pets": {"volume": "pets"}},
    )
    found = shared.end(run)
    assert found["reason"] == "SUCCEEDED", tm.logs(run)
    (model,) = found["models"]
    assert model["uri"].startswith("store:/models/"), "a member is told no path"
    tm.call("models", "get", model["uri"].replace("store:", f"file://{tm.home}/store"), tm.root / "got")
    told = json.loads((tm.root / "got/told").read_text())
    for path in paths[1:]:
        assert not told[path].startswith("seen: b"), (path, told)
    inside = {each for path in paths for each in (told[path],) if each.startswith("seen")}
    assert inside <= {"seen: ['runs']", "seen: ['home']", "seen: ['cache', 'home']"}, told
    assert told["write"] in ("PermissionError", "OSError")
    assert told["socket"] in ("FileNotFoundError", "PermissionError")
    assert told["uid"] not in (0, os.getuid())
    assert told["namespace"] == -1, "of users, where it would be root"
    assert told["secret"] == "drow"
    assert told["volume"] == ["cat"]
    assert "OF_THE_SERVER" not in told["env"]
    if shared.how == "container":
        assert told["loopback"] == "ConnectionRefusedError"
    else:
        assert told["uid"] == pwd.getpwnam(f"tmtest-{shared.red}").pw_uid
    (tm.home / "local-runs").unlink()  # what runs can be ended, whatever the server says by now
    kill_drivers(tm)
    shared.token = shared.tokens[shared.blue]
    shared.ask("POST", f"/runs/{running}/cancel")
    assert shared.end(running)["reason"] == "CANCELLED"


@IN_CONTAINERS
def test_two_members_meet_and_go_on_when_the_driver_is_killed(shared, tm):
    run = shared.run(
        shared.red,
        PAIR,
        distributed={"strategy": "allreduce", "workers": 2},
        checkpoint={"every": "1s"},
    )
    series = tm.home / "store/checkpoints" / run / "main/0"
    shared.tm_until(lambda: series.is_dir() and any(series.iterdir()), "a checkpoint")
    kill_drivers(tm)
    for output in (shared.attempt(run) / "output", shared.attempt(run) / "members/worker-1"):
        (output / "go").touch()
    found = shared.end(run)
    assert found["reason"] == "SUCCEEDED", tm.logs(run)
    (model,) = found["models"]
    assert model["metrics"] == {"step": 1, "loss": 0.5}
    assert "heard welcome" in tm.logs(run)
    assert not (shared.attempt(run).parent / "2").exists()


@IN_CONTAINERS
def test_a_task_that_takes_more_memory_than_its_own_is_killed_and_told_so(shared, tm):
    hungry = "x = bytearray(1 << 30)\nprint('all of it')"
    run = shared.run(shared.red, hungry, hardware={"memory": "300MB"})
    found = shared.end(run)
    if "all of it" in tm.logs(run):
        pytest.skip("no control groups can be made here")
    assert found["reason"] == "OOM", tm.logs(run)


def test_a_team_does_not_keep_another_one_waiting(users, tm):
    """It holds all cores: the other is told so; with a limit, or after the longest time, its turn comes."""
    cores = len(os.sched_getaffinity(0))
    shared = Shared(tm, "user:tmtest-{team},max=8s")
    red, blue = f"red{users}", f"blue{users}"
    for team in (red, blue):
        shared.add_team(team)
    shared.start()
    try:
        endless = shared.run(red, "", command="sleep 1000", parameters={"x": list(range(100))})
        tm.until(
            lambda: len(list(shared.attempt(endless).parents[1].glob("*/1/worker-0.log"))) >= cores, "all"
        )
        waiting = shared.run(blue, "", command="true")

        def told():
            return shared.ask("GET", f"/runs/{waiting}")[1].get("queued", {}).get("waits_for")

        held = f"1 core: {red} has {cores} of {cores}"
        assert tm.until(told, "why it waits") == held
        assert f"for {held}; it is next" in tm.call("status", waiting).out
        assert shared.end(waiting)["reason"] == "SUCCEEDED"
        shared.token = shared.tokens[red]
        ended = shared.ask("GET", f"/runs/{endless}/attempts")[1]["attempts"]
        assert "longest time of a team's tasks on this machine: 8s" in json.dumps(ended)
        shared.ask("POST", f"/runs/{endless}/cancel")
        shared.end(endless)
        tm.call("team", "create", red, "--cpus-at-once", "1")
        second = shared.run(red, "", command="sleep 5", parameters={"x": [1, 2, 3]})
        wide = {"recipe": json.dumps({"name": "wide", "provider": "local", "experiments": {"main": {
            "command": "true", "hardware": {"cpus": 2}}}}), "provider": None}  # fmt: skip
        with pytest.raises(urllib.error.HTTPError) as refused:
            shared.ask("POST", "/runs", wide)
        assert "takes 2 cores, and all tasks of" in json.load(refused.value)["title"]
        assert shared.end(second)["reason"] == "SUCCEEDED"
        rows = shared.ask("GET", f"/runs/{second}/attempts")[1]["attempts"]
        spans = sorted((row["started_at"], row["ended_at"]) for row in rows)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    finally:
        let_through(Home.from_environment(tm.env).root)
