"""What a home says of tasks of teams on its own machine, and whom they run as."""

from __future__ import annotations

import ipaddress
import os
import pwd
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainmaster.control.decide.effects import Policy
from trainmaster.control.decide.outcome import classify
from trainmaster.control.task.isolation import MOST_GRACE_S, Isolation
from trainmaster.control.task.layout import Home
from trainmaster.db import queries
from trainmaster.executors.base import GangStatus, MemberStatus, Phase
from trainmaster.service import cloud_metadata
from trainmaster.service.driving import local_runs
from trainmaster.service.driving.local_runs import (
    LocalRuns,
    close_metadata,
    isolation_of,
    keep,
    local_runs_of,
    open_metadata,
)
from trainmaster.spec.addresses import METADATA
from trainmaster.spec.errors import UsageError
from trainmaster.spec.states import EndReason


@pytest.fixture
def home():
    """Not below /dev/shm, where files of unit tests may lie: tasks of other users have one of their own."""
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
        yield Home.from_environment({"TRAINMASTER_HOME": f"{scratch}/home"})


@pytest.fixture(autouse=True)
def rules(monkeypatch):
    """What was asked of the packet filter, which is left alone; nothing answers."""
    asked = []
    monkeypatch.setattr(cloud_metadata, "keep_away", lambda home: asked.append("keep away") or "")
    monkeypatch.setattr(cloud_metadata, "let_through", lambda home: asked.append("let through"))
    monkeypatch.setattr(cloud_metadata, "ADDRESSES", ())
    return asked


@pytest.fixture
def as_root(monkeypatch):
    users = {"tm-red": 990, "tm-toor": 0}

    def find(name):
        return SimpleNamespace(pw_uid=users[name], pw_gid=users[name])

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "getgrouplist", lambda name, group: [group, 44, 0])
    monkeypatch.setattr(pwd, "getpwnam", find)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("none", "None"),
        ("user", "user:tm-{team}"),
        ("user:x-{team}", "user:x-{team}"),
        ("user,metadata", "user:tm-{team},metadata"),
        ("user:x-{team},metadata", "user:x-{team},metadata"),
        ("user,max=24h,metadata", "user:tm-{team},metadata,max=86400s"),
        ("container:registry:5000/i:1", "container:registry:5000/i:1"),
        ("container:i:1,max=90m", "container:i:1,max=5400s"),
    ],
)
def test_what_may_be_said(text, meant):
    assert str(LocalRuns.parse(text)) == meant


@pytest.mark.parametrize(
    "text",
    [
        "",
        "users",
        "user:nobody",
        "user:{team}-{team}",
        "none:x",
        "none,metadata",
        "container:i,metadata",
        "none,max=1h",
        "user,max=",
        "user,max=0s",
        "user,max=soon",
        "user,most=1h",
    ],
)
def test_what_means_nothing(text):
    with pytest.raises(UsageError) as caught:
        LocalRuns.parse(text)
    assert "user:tm-{team}" in caught.value.hint


def test_a_home_keeps_it_until_it_is_taken_back(home):
    assert local_runs_of(home, None, {}) == ""
    with pytest.raises(UsageError, match="does not run the code of others"):
        isolation_of(home, "red")
    keep(home, "container:i:1")
    assert isolation_of(home, "red").image == "i:1"
    assert local_runs_of(home, "none", {}) == ""
    assert LocalRuns.of(home) is None


def test_a_team_runs_as_its_own_user(home, as_root):
    keep(home, "user")
    found = isolation_of(home, "red")
    assert (found.uid, found.gid, found.groups, found.user) == (990, 990, (990, 44), "tm-red")
    for team, words in (("blue", "no user tm-blue"), ("toor", "as mighty as the server")):
        with pytest.raises(UsageError, match=words):
            isolation_of(home, team)


@pytest.mark.parametrize("place", ["/srv", "/var/../opt"])
def test_a_home_that_cannot_be_hidden_is_no_home_for_tasks_of_teams(home, as_root, place):
    shared = Home(Path(place), home.cache, home.store_url, home.database_url)
    with pytest.raises(UsageError, match="cannot be hidden"):
        LocalRuns.parse("user").isolation(shared, "red")


def test_only_root_may_do_so(home, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="not run by root") as caught:
        local_runs_of(home, "user", {})
    assert "container" in caught.value.hint
    assert LocalRuns.of(home) is None


def test_all_of_the_server_is_hidden_once(tmp_path, home, monkeypatch):
    tmp_path.chmod(0o755)
    closed = tmp_path / "closed"
    (closed / "store").mkdir(parents=True)
    closed.chmod(0o700)
    monkeypatch.setenv("HOME", "/")
    whole = Home.from_environment(
        {
            "TRAINMASTER_HOME": str(home.root),
            "TRAINMASTER_CACHE": str(home.root / "cache"),
            "TRAINMASTER_STORE": f"file://{closed}/store",
        }
    )
    monkeypatch.setattr(local_runs, "_closed", lambda path: closed if path.is_relative_to(closed) else path)
    assert local_runs._hidden(whole) == (closed, home.root)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root tries it")
def test_a_python_that_is_closed_to_the_users_of_teams_is_told_when_it_is_tried(home, monkeypatch):
    home.root.chmod(0o700)
    python = home.root / "python"
    python.symlink_to(Path(sys.executable).resolve())
    monkeypatch.setattr(sys, "executable", str(python))
    found = LocalRuns.parse("user").check(home, os.environ)
    assert found.startswith(f"possible, but without Trainmaster's Python: {python.resolve()} is closed")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root tries it")
def test_rules_are_there_while_the_home_keeps_that_users_stay_away_from_metadata(home, rules):
    local_runs_of(home, "user", {})
    assert rules == ["keep away"]
    close_metadata(home)
    assert rules == ["keep away"] * 2
    assert "reach what a cloud tells" in local_runs_of(home, "user,metadata", {})
    assert rules[2:] == ["let through"]
    close_metadata(home)
    local_runs_of(home, "user", {}, keeps=False)
    assert rules[3:] == ["keep away", "let through"]
    local_runs_of(home, "none", {})
    assert rules[5:] == ["let through"]


@pytest.mark.parametrize(
    ("rows", "gone"),
    [
        ([], True),
        ([{"team": "red", "state": "DONE"}, {"team": None, "state": "RUNNING"}], True),
        ([{"team": "red", "state": "WAITING"}], False),
    ],
)
def test_rules_go_with_the_server_if_no_task_of_a_team_goes_on(home, rules, monkeypatch, rows, gone):
    monkeypatch.setattr(queries, "runs", lambda database: rows)
    open_metadata(home, None)
    assert rules == []
    keep(home, "user")
    open_metadata(home, None)
    assert rules == ["let through"] * gone


def test_all_that_is_tried_is_covered_by_a_rule():
    for address in map(ipaddress.ip_address, cloud_metadata.ADDRESSES):
        assert any(address in network for network in METADATA), address
    tables = cloud_metadata.table("C", 4) + cloud_metadata.table("C", 6)
    assert all(tables.count(f"-d {network} -j REJECT") == 1 for network in METADATA)


def test_what_is_written_is_read_again():
    assert LocalRuns.parse("user:tm-{team},metadata,max=86400s") == LocalRuns.parse("user,metadata,max=24h")


def test_the_longest_time_holds_for_all_and_is_told_as_such():
    isolation = Isolation(990, 990, most_s=3600.0)
    policies = {
        "none": Policy(grace_s=1e9),
        "less": Policy(timeout_s=60.0, grace_s=5.0),
        "more": Policy(timeout_s=7200.0, retries=2),
    }
    found = isolation.bounded(policies)
    assert {name: each.timeout_s for name, each in found.items()} == {"none": 3600, "less": 60, "more": 3600}
    assert found["none"].grace_s == MOST_GRACE_S
    assert found["less"] == policies["less"]
    assert found["more"].retries == 2
    stopped = (MemberStatus("worker-0", stopped=True),)
    gang = GangStatus("a", Phase.EXITED, stopped, started_at=0.0, ended_at=3601.0)
    told = classify(gang, found["more"].timeout_s, timeout_name=found["more"].timeout_name)
    assert told.reason is EndReason.TIMEOUT
    assert told.message == "stopped after 3601 s (longest time of a team's tasks on this machine: 3600s)"
    assert Isolation(990, 990).bounded(policies) == policies
