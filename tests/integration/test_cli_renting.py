"""What happens before anything is rented, from the user's seat: the price, the question, the refusals."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import wait

import pytest

TODAY = datetime.now(UTC).date()
PRICES = """provider,region,instance_type,vcpus,memory_gib,price_usd_per_hour,spot,as_of,source
lab,us-east-1,small,2,8,0.1,,{day},lab
lab,us-east-1,small,2,8,0.03,true,{day},lab
lab,us-east-1,large,4,16,0.19,,{day},lab
"""


@pytest.fixture
def lab(tm):
    """A lab that only exists on paper: nothing answers at its address."""

    def put_up(day=TODAY):
        directory = tm.home / "lab"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "prices.csv").write_text(PRICES.format(day=day))
        facts = {
            "endpoint_url": "http://127.0.0.1:1",
            "region": "us-east-1",
            "zones": ["us-east-1a", "us-east-1b"],
            "access_key_id": "a",
            "secret_access_key": "b",
            "image_id": "ami-1",
            "user": "admin",
        }
        (directory / "lab.json").write_text(json.dumps(facts))

    put_up()
    return put_up


def gang(tm, *, top=None, **keys):
    experiment = {"command": "true", "distributed": {"workers": 2}, **keys}
    return tm.recipe({"name": "job", "provider": "lab", **(top or {}), "experiments": {"main": experiment}})


def refused(tm, recipe, *arguments):
    answer = tm.call("run", recipe, *arguments, code=2)
    assert tm.runs() == []
    assert answer.out == ""
    return answer.err


def test_without_a_terminal_and_without_yes_nothing_is_rented(tm, lab):
    said = refused(tm, gang(tm))
    assert "main: 2 x small in us-east-1 at $0.2 per hour" in said
    assert "at most $0.38 per hour" in said  # two of the larger, where there is no capacity
    assert "--yes" in said
    spot = refused(tm, gang(tm, hardware={"spot": True}))
    assert "2 x small (spot)" in spot
    assert "$0.06 per hour" in spot


def test_an_open_number_of_workers_is_not_measured_in_vain(tm, lab):
    keys = {"distributed": {"workers": "1..2"}, "batch": {"global": 8}, "steps": 5}
    said = refused(tm, gang(tm, command="touch $NOTES/ran", **keys))
    assert "main: how many workers it takes, and so its price, is measured first" in said
    assert "$" not in said
    assert not (tm.notes / "ran").exists()


@pytest.mark.parametrize(
    ("arguments", "keys", "said"),
    [
        ((), {"top": {"budget": {"per_hour": "$0.15"}}}, "Raise budget.per_hour to $0.2"),
        ((), {"top": {"budget": {"total": "$0.001"}}}, "used up before anything has run"),
        ((), {"hardware": {"instance": "smal"}}, "The nearest types are small"),
        ((), {"hardware": {"gpu": "v100"}}, "It has no GPUs"),
        (("--provider", "nobody"), {}, "known are aws, hosts, im, kubernetes, lab"),
        (("--provider", "hosts"), {}, "hosts.yaml"),
        (("--keep", "soon"), {}, "--keep"),
        ((), {"data": {"x": {"dir": "nowhere"}}}, "there is no"),
        ((), {"secrets": ["NOT_SET_ANYWHERE"]}, "no value for NOT_SET_ANYWHERE"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_asked_of_anybody(tm, lab, arguments, keys, said):
    assert said in refused(tm, gang(tm, **keys), "--yes", *arguments)


def test_old_prices_are_refused_by_name_even_with_yes(tm, lab):
    old = TODAY - timedelta(days=181)
    lab(old)
    said = refused(tm, gang(tm), "--yes")
    assert str(old) in said
    assert "--allow-stale" in said
    assert "at most $0.38 per hour" in refused(tm, gang(tm), "--allow-stale")
    tm.env |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
    shipped = refused(tm, gang(tm), "--provider", "aws", "--yes")
    assert "--allow-stale" in shipped


def test_yes_gets_as_far_as_the_provider(tm, lab):
    answer = tm.call("run", gang(tm), "--yes", code=1, timeout_s=60)
    assert "does not answer" in answer.err
    assert "terminal" not in answer.err
    assert tm.runs() == []


def test_hosts_cost_nothing_and_nobody_is_asked(tm, lab):
    (tm.home / "hosts.yaml").write_text(json.dumps({"hosts": [{"address": "127.0.0.1", "port": 1}]}))
    answer = tm.call("run", gang(tm), "--provider", "hosts", code=1)  # nothing listens there
    assert "main: 1 host" in answer.err
    assert "per hour" not in answer.err
    assert "127.0.0.1" in answer.err
    assert tm.runs() == []


def test_a_quote_for_the_lab_and_for_hosts(tm, lab):
    tm.write(
        "train.py",
        """
        import time, trainmaster
        for step in range(1, 101):
            time.sleep(0.02)
            trainmaster.report(step=step)
        """,
    )
    recipe = gang(
        tm, command="python train.py", distributed={"workers": "1..2"}, batch={"global": 8}, steps=100
    )
    first = tm.call("quote", recipe, "--json", timeout_s=90, code=0)
    assert first.json["cluster"]["worker"]["provider"] == "lab"
    assert first.json["catalogue"] == "lab"
    assert first.json["cost_usd"]["p50"] > 0
    (tm.home / "hosts.yaml").write_text(json.dumps({"hosts": ["h1", "h2", "h3"]}))
    free = tm.call("quote", recipe, "--json", "--set", "provider=hosts", timeout_s=90, code=0).json
    assert free["cluster"]["worker"]["instance"] == "host"
    assert free["cluster"]["worker"]["count"] <= 2
    assert free["cost_usd"]["p95"] == 0
    known = refused(tm, recipe)  # what was measured is not measured again, and shown
    assert "1 x small" in known


def on_a_terminal(tm, answer, *arguments):
    """Call the command line with a terminal; its exit code and what it showed."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "trainmaster", *map(str, arguments)],
        cwd=tm.work,
        env=tm.env,
        stdin=follower,
        stdout=subprocess.PIPE,
        stderr=follower,
    )
    os.close(follower)
    shown, answered, until = b"", False, time.monotonic() + 60
    try:
        while time.monotonic() < until:
            if wait([leader], 0.1):
                try:
                    data = os.read(leader, 4096)
                except OSError:  # it has hung up
                    break
                shown += data
            if not answered and b"[y/N]" in shown:
                answered = True
                os.write(leader, answer.encode())
            if process.poll() is not None and not wait([leader], 0.1):
                break
        return process.wait(10), shown.decode()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()
        os.close(leader)


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [("n\n", 2, "you did not agree"), ("\n", 2, "you did not agree"), ("y\n", 1, "does not answer")],
)
def test_on_a_terminal_the_user_is_asked_and_anything_but_yes_is_no(tm, lab, answer, code, said):
    ended, shown = on_a_terminal(tm, answer, "run", gang(tm))
    assert "Rent this for at most $0.38 per hour? [y/N]" in shown
    assert said in shown
    assert ended == code
    assert tm.runs() == []
