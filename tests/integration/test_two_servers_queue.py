"""Two servers on one PostgreSQL are sent many runs at once: no more go on than may, and each of them once."""

from __future__ import annotations

import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

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


@pytest.fixture
def servers(tm, postgres, tmp_path):
    """Two of them, with homes of their own."""
    (tmp_path / "other").mkdir()
    other = type(tm)(tmp_path / "other")
    tm.env["TRAINMASTER_DATABASE"] = other.env["TRAINMASTER_DATABASE"] = postgres.new_url()
    token = tm.call("token", "create", "ci", "--scopes", "admin", "--json").json["token"]
    found = [RunningServer(user.start, token) for user in (tm, other)]
    for server in found:
        server.start()
    yield found
    other.clean_up()


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
