"""Services on this machine: replicas that are killed, that get another model, that lose their driver."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import threading
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

SERVER = """
    import http.server, json, os, pathlib, sys

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # head and body are two packets: the second would wait 40 ms

        def do_GET(self):
            said = pathlib.Path(model, "weights").read_text() if model else ""
            body = json.dumps({"pid": os.getpid(), "model": said}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    model = os.environ.get("TRAINMASTER_MODEL_DIR")
    if model and "sick" in pathlib.Path(model, "weights").read_text():
        sys.exit("it cannot load this")

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 128

    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
RECIPE = """
name: {name}
experiments:
  api:
    serve: {{command: 'exec python server.py {{{{port}}}}', health: /healthz, start: 60s, {serve}}}
"""


def replicas(tm, state="READY"):
    """Task, port and version of the replicas in a state."""
    with sqlite3.connect(tm.home / "trainmaster.db") as rows:
        return rows.execute(
            "select task, port, version from replica where state = ? order by task", [state]
        ).fetchall()


def ask(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
        return json.load(answer)


def test_a_replica_that_is_killed_is_replaced_and_one_that_is_ready_outlives_its_driver(tm):
    tm.write("server.py", SERVER)
    call = tm.start("run", tm.recipe(RECIPE.format(name="echo", serve="replicas: 2")))
    run = call.run_id()
    call.until(lambda: len(replicas(tm)) == 2, "two replicas are ready")
    (first, port, _), (second, other, _) = replicas(tm)
    os.kill(ask(port)["pid"], signal.SIGKILL)
    call.until(lambda: [each[0] for each in replicas(tm)] == [second, 2], "another one takes its place")
    assert first == 0
    pid = ask(other)["pid"]
    call.kill()
    assert ask(other)["pid"] == pid
    again = tm.start("resume", run)
    again.until(lambda: tm.status(run)["driver"], "somebody drives it")
    again.until(lambda: len(replicas(tm)) == 2, "both are ready")
    assert ask(other)["pid"] == pid
    refused = tm.call("run", tm.recipe(RECIPE.format(name="echo", serve="replicas: 1")), code=2)
    assert f"that of {run}" in refused.err
    tm.call("cancel", run)
    again.wait(1)
    summary = tm.status(run)
    assert (summary["state"], summary["reason"]) == ("DONE", "CANCELLED")
    assert not replicas(tm)
    assert not replicas(tm, "STARTING")
    tm.until_quiet()


def test_a_service_follows_its_alias_and_loses_no_request_and_refuses_a_sick_version(tm):
    pytest.importorskip("fastapi", reason="the extra `server` is not installed")
    tm.write("server.py", SERVER)
    for name in ("one", "two", "sick"):
        recipe = {
            "name": name,
            "experiments": {"train": {"command": f"echo {name} > $TRAINMASTER_OUTPUT_DIR/weights"}},
        }
        run = tm.run(tm.recipe(recipe))["run"]
        tm.call("models", "register", run, "digits", *(("--alias", "production") if name == "one" else ()))
    serve = "model: digits@production, replicas: 1, drain: 20s"
    call = tm.start("run", tm.recipe(RECIPE.format(name="digits", serve=serve)))
    call.until(lambda: replicas(tm), "it is ready")
    assert ask(replicas(tm)[0][1])["model"] == "one\n"
    tm.call("models", "promote", "digits@3", "production")
    call.until(lambda: "digits@1 goes on" in call.err + call.out, "the sick version is refused")
    assert [each[2] for each in replicas(tm)] == ["digits@1"]
    server = tm.start("server", "--port", "0", "--json")
    server.until(lambda: server.out.endswith("\n"), "the server is ready")
    token = tm.call("token", "create", "caller", "--scopes", "infer", "--json").json["token"]
    address = json.loads(server.out)["apps_url"] + "/services/digits/"
    is_over, answers = threading.Event(), Counter()

    def ask_on():
        while not is_over.is_set() or answers.total() < 400:
            wanted = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(wanted, timeout=60) as answer:  # raises if one is lost
                answers[json.load(answer)["model"], answer.headers["trainmaster-model"]] += 1

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask_on) for _ in range(4)]
        try:
            call.until(lambda: answers or any(each.done() for each in asking), "the first answers")
            tm.call("models", "promote", "digits@2", "production")
            call.until(lambda: [each[2] for each in replicas(tm)] == ["digits@2"], "the switch")
            call.until(lambda: not replicas(tm, "DRAINING"), "the old one has drained")
        finally:
            is_over.set()
        for each in asking:
            each.result()
    server.send(signal.SIGTERM)
    server.wait()
    assert set(answers) == {("one\n", "digits@1"), ("two\n", "digits@2")}
    assert answers.total() >= 400
    call.send(signal.SIGINT)
    call.wait(130)
    tm.until_quiet()


def test_a_program_that_has_the_port_of_a_service_is_not_taken_for_its_replica(tm):
    tm.write("server.py", SERVER)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        recipe = tm.recipe(RECIPE.format(name="echo", serve=f"port: {port}"))
        call = tm.call("run", recipe, code=1)
        own = f"experiments: {{a: {{env: {{TRAINMASTER_PORT: {port}}}, command: 'echo $TRAINMASTER_PORT'}}}}"
        plain = tm.call("run", tm.recipe(own, "own.yaml")).err  # nothing is to listen there
        assert f"\n{port}\n" in plain
    assert f"something else listens at port {port} of this machine" in call.err
    assert "is ready" not in call.err
    again = tm.start("run", recipe)
    again.until(lambda: replicas(tm), "the port is free now")
    assert "`trainmaster services open echo` says where" in again.err
    assert tm.call("services", "show", "echo", "--json").json["path"] == "", "it has a command of its own"
    tm.call("cancel", again.run_id())
    again.wait(1)
    tm.until_quiet()
