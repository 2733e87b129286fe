"""Two servers on one PostgreSQL are asked for the same at once, many times: it is done once."""

from __future__ import annotations

import io
import itertools
import os
import tarfile
import threading
import urllib.error
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest
from running_server import RunningServer

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

AT_ONCE = 2
RUNS = 8
#: Each says in one file for all when it begins and ends: lines of one write are never mixed.
SCRIPT = """
import os, time
notes = open(os.environ["NOTES"] + "/both", "a", buffering=1)
notes.write(f"+{os.environ['TRAINMASTER_RUN']}\\n")
time.sleep(0.3)
notes.write(f"-{os.environ['TRAINMASTER_RUN']}\\n")
"""
RECIPE = "name: job\nexperiments: {main: {env: {NOTES: %s}, command: python train.py}}\n"

ROUNDS = 4
MODEL = """
import os
open(os.environ["TRAINMASTER_OUTPUT_DIR"] + "/weights", "w").write(os.environ["TRAINMASTER_RUN"])
"""
ONE = {"recipe": "name: job\nexperiments: {main: {command: python train.py}}\n"}


@pytest.fixture
def servers(tm, postgres, tmp_path):
    """Two of them, with homes of their own."""
    (tmp_path / "other").mkdir()
    other = type(tm)(tmp_path / "other")
    shared = {
        "TRAINMASTER_DATABASE": postgres.new_url(),
        "TRAINMASTER_STORE": f"file://{tmp_path}/store",
    }
    tm.env |= shared
    other.env |= shared
    token = tm.call("token", "create", "ci", "--scopes", "admin", "--json").json["token"]
    found = [RunningServer(user.start, token) for user in (tm, other)]
    for server in found:
        server.start()
    yield found
    other.clean_up()


@pytest.mark.crossings  # servers that decide at once: `test_admission.py`
def test_many_runs_at_once_wait_for_their_turn_at_both(tm, servers):
    one, two = servers
    one.ask("PUT", "/budgets", {"runs_at_once": AT_ONCE})
    wanted = {"recipe": RECIPE % tm.notes}

    def send(number):
        return servers[number % 2].send(SCRIPT, wanted, Idempotency_Key=f"k{number // 2}")[1]["run"]

    with ThreadPoolExecutor(RUNS) as pool:  # each key twice, at both
        sent = list(pool.map(send, range(2 * RUNS)))
    assert sorted(Counter(sent).values()) == [2] * RUNS

    def over():
        rows = two.ask("GET", "/runs?state=DONE")[1]["runs"]
        return len(rows) == RUNS and rows

    rows = tm.until(over, "all have had their turn")
    assert {row["reason"] for row in rows} == {"SUCCEEDED"}
    lines = (tm.notes / "both").read_text().split()
    assert Counter(lines) == dict.fromkeys([sign + run for sign in "+-" for run in set(sent)], 1)
    going = itertools.accumulate(1 if line[0] == "+" else -1 for line in lines)
    assert max(going) <= AT_ONCE
    assert one.ask("GET", "/queue")[1] == {"queue": []}


def at_once(servers, *asked):
    """Status and answer of each request: they are sent at the same moment, each to another server in turn."""
    begin = threading.Barrier(len(asked))

    def send(number):
        begin.wait()
        try:
            return servers[number % 2].ask(*asked[number])
        except urllib.error.HTTPError as refused:
            return refused.code, {}

    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(send, range(len(asked))))


def over(tm, server, run, reason):
    def is_over():
        found = server.ask("GET", f"/runs/{run}")[1]
        return found["state"] == "DONE" and found

    found = tm.until(is_over, f"{run} is over")
    assert found["reason"] == reason
    return found


def test_what_two_are_asked_at_once_is_done_once(tm, servers):
    """One test, as it takes long to start two servers."""
    _aliases_are_moved(tm, servers)
    _an_upload_is_finished(tm, servers)
    _an_app_is_opened(tm, servers)
    _a_run_is_cancelled_and_resumed(tm, servers)


def _aliases_are_moved(tm, servers):
    one, two = servers
    runs = [server.send(MODEL, ONE)[1]["run"] for server in (one, two, one)]
    for run in runs:
        over(tm, one, run, "SUCCEEDED")
        registered = at_once(servers, *[("POST", "/registry", {"model": run, "name": "net"})] * 4)
        assert sorted(status for status, _ in registered) == [200, 200, 200, 201]
    assert [each["version"] for each in two.ask("GET", "/registry/net")[1]["versions"]] == [3, 2, 1]

    where = "/registry/net/aliases/prod"
    one.ask("PUT", where, {"version": "1"})
    meant = [1]
    for _ in range(ROUNDS):  # each of them has seen the same
        wanted = [version for version in (1, 2, 3) if version != meant[-1]]
        moves = [("PUT", where, {"version": str(version), "expected": meant[-1]}) for version in wanted * 2]
        moved = [status for status, _ in at_once(servers, *moves)]
        meant.append(two.ask("GET", "/registry/net/versions/prod")[1]["version"])
        assert moved == [200 if version == meant[-1] else 409 for version in wanted * 2]
    moves = one.ask("GET", "/registry/net")[1]["moves"]
    assert [each["version"] for each in moves if each["alias"] == "prod"] == meant[::-1]


def _an_upload_is_finished(tm, servers):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for number in range(4):
            member = tarfile.TarInfo(f"{number}.bin")
            member.size = 50_000
            archive.addfile(member, io.BytesIO(os.urandom(50_000)))
    data = packed.getvalue()
    wanted = {"name": "pets.tar", "size_bytes": len(data), "kind": "volume"}
    upload = servers[0].ask("POST", "/uploads", wanted)[1]["upload"]
    half = len(data) // 2
    for begin, end in ((0, half), (half, len(data))):
        at = {"Upload_Offset": str(begin), "Content_Type": "application/offset+octet-stream"}
        with servers[begin > 0].open("PATCH", f"/api/v1/uploads/{upload}", data[begin:end], **at):
            pass
    finish = ("POST", f"/uploads/{upload}/finish", {"volume": "pets"})
    made = tm.until(
        lambda: (found := at_once(servers, *[finish] * 4)) and {each[0] for each in found} == {201} and found,
        "all know what became of it",
    )
    assert {(found["state"], found["result"]["version"]) for _, found in made} == {("DONE", 1)}
    for server in servers:
        assert [each["version"] for each in server.ask("GET", "/volumes/pets")[1]["versions"]] == [1]


def _an_app_is_opened(tm, servers):
    if find_spec("tensorboard") is None:
        return
    run = servers[0].send(MODEL, ONE)[1]["run"]
    over(tm, servers[0], run, "SUCCEEDED")
    opened = at_once(servers, *[("POST", "/apps", {"kind": "tensorboard", "runs": [run]})] * 6)
    assert {status for status, _ in opened} <= {200, 201}
    for of_one in (opened[::2], opened[1::2]):
        assert len({found["app"] for _, found in of_one}) == 1
    listed = servers[1].ask("GET", "/apps")[1]["apps"]
    assert {each["app"] for each in listed} == {found["app"] for _, found in opened}
    for each in listed:
        servers[0].open("DELETE", f"/api/v1/apps/{each['app']}").close()


def _a_run_is_cancelled_and_resumed(tm, servers):
    script = "import time, os\nopen(os.environ['NOTES'] + '/began', 'a').write('x')\ntime.sleep(600)\n"
    recipe = RECIPE.replace("main: {", "main: {grace: 1s, ") % tm.notes
    run = servers[0].send(script, {"recipe": recipe})[1]["run"]

    def began(times):
        return lambda: (tm.notes / "began").exists() and len((tm.notes / "began").read_text()) == times

    tm.until(began(1), "it runs")
    for number in (1, 2):
        cancelled = at_once(servers, *[("POST", f"/runs/{run}/cancel")] * 4)
        assert {status for status, _ in cancelled} == {200}
        over(tm, servers[1], run, "CANCELLED")
        resumed = [status for status, _ in at_once(servers, *[("POST", f"/runs/{run}/resume", {})] * 4)]
        assert 200 in resumed
        assert set(resumed) <= {200, 409}, "409: somebody else was faster"
        tm.until(began(number + 1), "it runs again")
    at_once(servers, *[("POST", f"/runs/{run}/cancel"), ("POST", f"/runs/{run}/resume", {})] * 2)
    servers[0].ask("POST", f"/runs/{run}/cancel")
    over(tm, servers[1], run, "CANCELLED")
    attempts = servers[1].ask("GET", f"/runs/{run}/attempts")[1]["attempts"]
    began_at = len((tm.notes / "began").read_text())
    assert len(attempts) in (began_at, began_at + 1), "each was started once; the last one perhaps not at all"
