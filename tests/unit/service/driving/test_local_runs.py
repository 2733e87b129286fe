"""What a home says of tasks of teams on its own machine, and whom they run as."""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainmaster.control.layout import Home
from trainmaster.service.driving import local_runs
from trainmaster.service.driving.local_runs import LocalRuns, isolation_of, keep, local_runs_of
from trainmaster.spec.errors import UsageError


@pytest.fixture
def home(tmp_path):
    return Home.from_environment({"TRAINMASTER_HOME": str(tmp_path / "home")})


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
        ("container:registry:5000/i:1", "container:registry:5000/i:1"),
    ],
)
def test_what_may_be_said(text, meant):
    assert str(LocalRuns.parse(text)) == meant


@pytest.mark.parametrize("text", ["", "users", "user:nobody", "user:{team}-{team}", "none:x"])
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
