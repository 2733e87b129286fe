"""`provider: local` of teams on a shared server: in containers, or as a Unix user per team."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import signal
import subprocess
from contextlib import suppress

import pytest
from private_engines import IMAGE, NoEngineError, PrivateEngine
from running_server import RunningServer

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

#: Writes down what came of reading, as the team that sent it, what it should not see.
SPY = """\
import json, os, socket, sys
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

    def __init__(self, tm, how):
        super().__init__(lambda *arguments: tm.start(*arguments, "--local-runs", how))
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
        from conftest import until

        return until(condition, what, 120)

    def attempt(self, run):
        return self.tm.home / "runs" / run / "tasks/main/0/1"


@pytest.fixture(scope="module")
def podman():
    try:
        with PrivateEngine("podman") as engine:
            yield engine
    except NoEngineError as error:
        pytest.skip(str(error))


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
    if request.param == "container":
        tm.until(lambda: not engine.containers(), "no container is left")


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
    tm.call("models", "get", model["uri"], tm.root / "got")
    told = json.loads((tm.root / "got/told").read_text())
    for path in paths[1:]:
        assert not told[path].startswith("seen: b"), (path, told)
    inside = {each for path in paths for each in (told[path],) if each.startswith("seen")}
    assert inside <= {"seen: ['runs']", "seen: ['home']", "seen: ['cache', 'home']"}, told
    assert told["write"] in ("PermissionError", "OSError")
    assert told["socket"] in ("FileNotFoundError", "PermissionError")
    assert told["uid"] not in (0, os.getuid())
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
