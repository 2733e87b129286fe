"""The command line on a server, as on a home; one that is killed meanwhile is waited for."""

from __future__ import annotations

import json
import os
import signal

import pytest
from running_server import RunningServer

from client_contract import RunningClientContract
from trainmaster.api import Client
from trainmaster.api.embedded import EmbeddedClient

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

SCRIPT = """\
import json, os, time
for step in range(1, 9):
    with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
        file.write(json.dumps({"step": step, "loss": 1 / step}) + "\\n")
    print("step", step, flush=True)
    while step == 4 and not os.path.exists(os.environ["NOTES"] + "/go"):
        time.sleep(0.02)
with open(os.environ["TRAINMASTER_OUTPUT_DIR"] + "/model.txt", "w") as file:
    file.write("weights")
"""
RECIPE = "name: job\nexperiments:\n  main: {command: python train.py, retries: 0}\n"


@pytest.fixture
def server(tm):
    found = RunningServer(tm.start)
    found.start()
    found.token = tm.call("token", "create", "ci", "--scopes", "read,run", "--json").json["token"]
    return found


class TestEmbedded(RunningClientContract):
    @pytest.fixture
    def client(self, tmp_path):
        found = EmbeddedClient(tmp_path / "home")
        yield found
        found.close()


class TestServer(RunningClientContract):
    @pytest.fixture
    def client(self, server):
        found = Client(server.url, server.token)
        yield found._home
        found.close()


def test_verbs_ask_the_server_and_a_killed_one_is_waited_for(server, tm):
    tm.write("train.py", SCRIPT)
    tm.write("recipe.yaml", RECIPE)
    home, tm.env["TRAINMASTER_HOME"] = tm.env["TRAINMASTER_HOME"], str(tm.root / "laptop")
    tm.env |= {"XDG_CONFIG_HOME": str(tm.root / "config"), "TRAINMASTER_URL": server.url}
    tm.env["TRAINMASTER_TOKEN"] = server.token
    running = tm.start("run", "recipe.yaml", "--set", "experiments.main.env.EXTRA=1")
    tm.until(lambda: "step 4" in running.err, "half of it is told")
    os.kill(running.pid, signal.SIGINT)
    running.wait(130)
    assert running.err.startswith(f"uses the server {server.url} (TRAINMASTER_URL)"), (
        "before anything is sent"
    )
    run = json.loads(tm.call("status", "--json").out)["runs"][0]["run"]
    assert f"{run} goes on; `trainmaster logs -f {run}`" in running.err
    logs = tm.start("logs", "-f", run)
    tm.until(lambda: "step 4" in logs.out, "what was written is told")
    os.kill(server.process.pid, signal.SIGKILL)
    (tm.notes / "go").touch()
    tm.env["TRAINMASTER_HOME"] = home
    server.start()
    tm.env["TRAINMASTER_HOME"] = str(tm.root / "laptop")
    logs.wait(0)
    assert logs.out == "".join(f"step {step}\n" for step in range(1, 9))
    tm.call("models", "get", run, "got")
    assert (tm.work / "got" / "model.txt").read_text() == "weights"
    on_server = [tm.call(*words).out for words in _asked(run)]
    assert not (tm.root / "laptop").exists()
    seen = tm.call("doctor", "--json", code=None).json["findings"][0]
    assert (seen["what"], seen["ok"]) == ("server in use", True)
    assert seen["found"].startswith(f"{server.url} answers, as ci")
    tm.env["TRAINMASTER_HOME"] = home
    assert [tm.call("--local", *words).out for words in _asked(run)] == on_server
    assert tm.call("models", "fsck", "--deep", "--json").json["damaged"] == []


def _asked(run):
    return (("status", "--json"), ("status", run, "--json"), ("models", "--json"), ("logs", run))


def test_an_end_is_asked_for_once_then_read(server, tm):
    manager = tm.call("token", "create", "head", "--scopes", "admin", "--json").json["token"]
    tm.env |= {"TRAINMASTER_HOME": str(tm.root / "laptop"), "XDG_CONFIG_HOME": str(tm.root / "config")}
    tm.env |= {"TRAINMASTER_URL": server.url, "TRAINMASTER_TOKEN": server.token}
    trapped = "trap 'sleep 2; exit 1' TERM; echo x >> $NOTES/up; while :; do sleep 0.1; done"
    recipe = tm.task(trapped, parameters={"x": [1, 2]})
    tm.call("run", recipe, "--detach")
    run = json.loads(tm.call("status", "--json").out)["runs"][0]["run"]
    tm.until_marks("up", 2)
    assert f"{run}: main/0: CANCELLED" in tm.call("cancel", run, "0").err
    assert f"{run}: CANCELLED" in tm.call("cancel", run).err
    server.token = manager
    asked = [each["action"] for each in server.ask("GET", "/audit?action=/cancel")[1]["audit"]]
    ends = [each for each in asked if each.endswith(f"/runs/{run}/cancel")]
    assert len(ends) == 1, asked
    assert len(asked) == 3, "of the task: once to ask, once for its end"


def test_a_login_with_one_home_sends_no_runs_of_another(server, tm):
    tm.write("recipe.yaml", "name: job\nexperiments:\n  main: {command: echo trained}\n")
    tm.env["XDG_CONFIG_HOME"] = str(tm.root / "config")
    at_server, mine = tm.env["TRAINMASTER_HOME"], str(tm.root / "mine")
    tm.env["TRAINMASTER_HOME"] = str(tm.root / "laptop")
    said = tm.call("login", server.url, "--token", "-", prefix=f"exec <<<{server.token};").err
    assert f"for TRAINMASTER_HOME={tm.env['TRAINMASTER_HOME']} only" in said
    sent = tm.call("run", "recipe.yaml", "--json")
    assert sent.err.startswith(f"uses the server {server.url} (context ")
    (tm.root / "beside").mkdir()
    data = tm.task("true", data={"images": {"dir": "../beside"}})
    refused = tm.call("run", data, code=2).err
    assert "data.images.dir: ../beside is outside the code, and is not sent; push it as a volume" in refused
    tm.env["TRAINMASTER_HOME"] = mine
    own = tm.call("run", data, "--json")
    assert "uses the server" not in own.err
    assert tm.status("latest")["run"] == own.json["run"] != sent.json["run"]
    tm.env["TRAINMASTER_HOME"] = at_server
    assert [row["run"] for row in tm.call("status", "--json").json["runs"]] == [sent.json["run"]]
    assert "you started none here" in tm.call("exec", "latest", "--", "id", code=2).err
