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


def test_a_home_that_is_named_has_contexts_of_its_own(environ, tmp_path):
    first, second = ({**environ, "TRAINMASTER_HOME": str(tmp_path / name)} for name in "ab")
    Contexts(environ).add(ONE)
    assert Contexts(first).current() is None, "a login without a home is not for a home that is named"
    Contexts(second).add(TWO)
    assert (Contexts(first).current(), Contexts(environ).current()) == (None, ONE)
    assert Contexts(second).all() == ([TWO], "two")
    assert Contexts(second).file.is_relative_to(tmp_path / "b"), "it goes when the home does"
    same = {**environ, "TRAINMASTER_HOME": "~/.trainmaster"}
    assert Contexts(same).current() == ONE, "the home that is meant without the variable"


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


def test_verbs_ask_the_server_in_use_unless_they_stay_local(environ, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", environ["XDG_CONFIG_HOME"])
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(opening, "_is_local", False)
    opening.refuse_on_server("it")
    Contexts(environ).add(ONE)
    assert opening.context() is None, "somebody logged in with another home"
    Contexts().add(TWO)
    assert opening.open_client().url == TWO.url
    assert capsys.readouterr().err == ""
    opening.open_client(starts=True)
    said = f"uses the server {TWO.url} (context two); `trainmaster --local` uses this machine's home\n"
    assert capsys.readouterr() == ("", said)
    with pytest.raises(UsageError, match="it is for the machine where runs are"):
        opening.refuse_on_server("it")
    opening.stay_local()
    local = opening.open_client(starts=True)
    assert capsys.readouterr() == ("", "")
    assert local.directory == tmp_path / "home"
    local.close()


def test_a_client_takes_a_home_or_a_server(environ, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", environ["XDG_CONFIG_HOME"])
    monkeypatch.delenv("TRAINMASTER_TOKEN", raising=False)
    with pytest.raises(UsageError, match="no token"):
        Client(TWO.url)
    Contexts().add(TWO)
    Client(TWO.url).close()
    with pytest.raises(UsageError, match="URL of one"):
        Client("directory", "tm_1")
    with pytest.raises(UsageError, match="in clear"):
        Client("http://example.org", "tm_1")
