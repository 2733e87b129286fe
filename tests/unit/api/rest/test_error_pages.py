"""What a browser is shown where there is nothing to show: errors, and lists that are empty."""

from __future__ import annotations

import errno
import os

import pytest
from sqlalchemy import event


def test_what_is_not_there_or_goes_wrong_is_a_page_too(served, monkeypatch):
    """Of REST it is JSON, as before."""
    for path, status, title in (
        ("/nothing-here", 404, "There is no such page"),
        ("/runs/none", 404, "There is no run"),
        ("/volumes/pets?version=soon", 422, "This cannot be shown"),
    ):
        found = served.ask("admin", "GET", path)
        assert (found.status_code, found.headers["content-type"]) == (status, "text/html; charset=utf-8")
        assert f"<h1>{title}" in found.text
        assert "Log out" in found.text
    assert "Log out" not in served.ask(None, "GET", "/nothing-here").text
    assert served.ask("admin", "GET", "/api/v1/nothing-here").json()["status"] == 404
    assert served.ask("admin", "GET", "/static/nothing").json()["status"] == 404
    monkeypatch.setattr("trainmaster.web.examples.examples", lambda: 1 / 0)
    broken = served.ask("admin", "GET", "/examples")
    assert (broken.status_code, "The server has made a mistake" in broken.text) == (500, True)
    assert "ZeroDivision" not in broken.text


def test_files_that_were_replaced_below_a_server_are_told_with_what_to_do(served, monkeypatch, tmp_path):
    """What is loaded late is then of another version: each such page and route was a 500."""
    from trainmaster.api.rest.replaced import LoadedFiles

    file = tmp_path / "module.py"
    file.write_text("old")
    monkeypatch.setattr(served.app.state.files, "_were", LoadedFiles([str(file)])._were)
    monkeypatch.setattr("trainmaster.web.examples.examples", lambda: 1 / 0)
    monkeypatch.setattr(served.service, "last_event", lambda *_: 1 / 0)
    assert served.ask("admin", "GET", "/examples").status_code == 500
    assert served.ask("admin", "GET", "/api/v1/readyz").status_code == 500
    file.unlink()
    page = served.ask("admin", "GET", "/examples")
    assert (page.status_code, "Restart the server" in page.text) == (503, True)
    assert "<meta name=viewport" in page.text, "a phone shows it in letters that can be read"
    said = served.ask("admin", "GET", "/api/v1/readyz")
    assert (said.status_code, said.headers["retry-after"]) == (503, "5")
    assert "its files were replaced since" in said.json()["title"]
    assert said.json()["hint"].startswith("Restart the server")
    assert said.json()["error"] == "StoreError"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_answered_with_what_to_do(served, monkeypatch, number):
    def full(*_):
        raise OSError(number, os.strerror(number), str(served.service.home.root / "x"))

    monkeypatch.setattr("trainmaster.web.examples.examples", full)
    monkeypatch.setattr(served.service, "last_event", full)
    page = served.ask("admin", "GET", "/examples")
    assert (page.status_code, "df -h" in page.text, "Log out" in page.text) == (507, True, True)
    said = served.ask("admin", "GET", "/api/v1/readyz")
    assert (said.status_code, said.headers["content-type"]) == (507, "application/problem+json")
    assert said.json()["title"].startswith(("no space is left on the file", "a quota is used up on the file"))
    assert ("df -h" in said.json()["hint"], said.json()["error"]) == (True, "FullDiskError")


def test_another_error_of_files_is_a_mistake_of_ours(served, monkeypatch):
    def refused(*_):
        raise PermissionError(errno.EACCES, "no", "/x")

    monkeypatch.setattr("trainmaster.web.examples.examples", refused)
    monkeypatch.setattr(served.service, "last_event", refused)
    page = served.ask("admin", "GET", "/examples")
    assert (page.status_code, "The server has made a mistake" in page.text) == (500, True)
    assert served.ask("admin", "GET", "/api/v1/readyz").status_code == 500


def test_a_full_database_is_answered_at_once_and_can_be_read(served):
    """SQLite itself says that it is full, as each of its connections may have no further page."""

    def limit(pages):
        def set_it(connection, *_):
            connection.execute(f"PRAGMA max_page_count = {pages}")

        return set_it

    engine, ask = served.service.database.engine, served.ask
    secret, full, room = {"value": "x" * 60_000}, limit(1), limit(1 << 30)
    event.listen(engine, "checkout", full)
    try:
        said = ask("red-manage", "PUT", "/api/v1/secrets/BIG", json=secret)
        assert (said.status_code, said.json()["error"]) == (507, "FullDiskError"), said.text
        assert "database or disk is full" in said.json()["title"]
        assert "Free some space on the file system of home:/" in said.json()["hint"]
        headers = {"sec-fetch-site": "same-origin"}
        page = ask("red-manage", "POST", "/team/secrets", data={"name": "BIG", **secret}, headers=headers)
        assert (page.status_code, "Free some space" in page.text) == (507, True)
        assert ask("red-read", "GET", "/api/v1/runs").status_code == 200
    finally:
        event.remove(engine, "checkout", full)
        event.listen(engine, "checkout", room)
    assert ask("red-manage", "PUT", "/api/v1/secrets/BIG", json=secret).status_code < 300
    event.remove(engine, "checkout", room)


def test_who_has_no_runs_is_told_how_to_begin(served):
    served.state.access.make_team("new", None)
    for scopes, shown in ((["read", "run"], True), (["read"], False)):
        name = f"begins-{len(scopes)}"
        served.tokens[name] = served.state.access.create_token(name, scopes, "new")["token"]
        page = served.ask(name, "GET", "/").text
        assert ("trainmaster login http://testserver\n" in page) == shown
        assert "No runs yet" in page
