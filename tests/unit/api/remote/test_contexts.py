"""The servers that a user has logged in to: a file for its owner only, and variables of CI before it."""

from __future__ import annotations

import stat

import pytest

from trainmaster.api import Client
from trainmaster.api.remote.contexts import Contexts, ServerContext
from trainmaster.cli import opening
from trainmaster.spec.errors import NotFoundError, UsageError

ONE = ServerContext("one", "https://one.example.org", "tm_1", "ab")
TWO = ServerContext("two", "http://127.0.0.1:1", "tm_2")


@pytest.fixture
def environ(tmp_path):
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_contexts_are_kept_used_and_forgotten(environ):
    found = Contexts(environ)
    assert found.current() is None
    found.add(ONE)
    found.add(TWO)
    assert (found.all(), Contexts(environ).current()) == (([ONE, TWO], "two"), TWO)
    found.use("one")
    assert found.current() == ONE
    found.use("local")
    assert (found.current(), found.all()[1]) == (None, "")
    found.use("one")
    found.remove("one")
    assert (found.current(), found.all()[0]) == (None, [TWO])
    for ask in (found.use, found.remove):
        with pytest.raises(NotFoundError, match="There are local, two"):
            ask("one")
    for name in ("", "local", "a b", "../x"):
        with pytest.raises(UsageError, match="no name of a context"):
            found.add(ServerContext(name, ONE.url, "tm_1"))


def test_the_file_is_its_owners_and_a_damaged_one_is_said(environ):
    found = Contexts(environ)
    found.add(ONE)
    assert stat.S_IMODE(found.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(found.file.parent.stat().st_mode) == 0o700
    found.file.write_text("{")
    with pytest.raises(UsageError, match=r"cannot be read(.|\n)*--local"):
        found.current()


def test_variables_come_before_the_file(environ):
    Contexts(environ).add(ONE)
    ci = {**environ, "TRAINMASTER_URL": TWO.url, "TRAINMASTER_TOKEN": "tm_9"}
    assert Contexts(ci).current() == ServerContext("", TWO.url, "tm_9")
    known = {**environ, "TRAINMASTER_URL": ONE.url + "/"}
    assert Contexts(known).current() == ServerContext("one", ONE.url + "/", "tm_1", "ab")
    with pytest.raises(UsageError, match="no token"):
        Contexts({**environ, "TRAINMASTER_URL": TWO.url}).current()


def test_verbs_ask_the_server_in_use_unless_they_stay_local(environ, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", environ["XDG_CONFIG_HOME"])
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(opening, "_is_local", False)
    opening.refuse_on_server("it")
    Contexts(environ).add(TWO)
    assert opening.open_client().url == TWO.url
    with pytest.raises(UsageError, match="it is for the machine where runs are"):
        opening.refuse_on_server("it")
    opening.stay_local()
    local = opening.open_client()
    assert local.directory == tmp_path / "home"
    local.close()


def test_a_client_takes_a_home_or_a_server(environ, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", environ["XDG_CONFIG_HOME"])
    monkeypatch.delenv("TRAINMASTER_TOKEN", raising=False)
    with pytest.raises(UsageError, match="no token"):
        Client(TWO.url)
    Contexts(environ).add(TWO)
    Client(TWO.url).close()
    with pytest.raises(UsageError, match="URL of one"):
        Client("directory", "tm_1")
    with pytest.raises(UsageError, match="in clear"):
        Client("http://example.org", "tm_1")
