"""What a browser is shown where there is nothing to show: errors, and lists that are empty."""

from __future__ import annotations


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
        assert "log out" in found.text
    assert "log out" not in served.ask(None, "GET", "/nothing-here").text
    assert served.ask("admin", "GET", "/api/v1/nothing-here").json()["status"] == 404
    assert served.ask("admin", "GET", "/static/nothing").json()["status"] == 404
    monkeypatch.setattr("trainmaster.web.examples.examples", lambda: 1 / 0)
    broken = served.ask("admin", "GET", "/examples")
    assert (broken.status_code, "The server has made a mistake" in broken.text) == (500, True)
    assert "ZeroDivision" not in broken.text


def test_who_has_no_runs_is_told_how_to_begin(served):
    served.state.access.make_team("new", None)
    for scopes, shown in ((["read", "run"], True), (["read"], False)):
        name = f"begins-{len(scopes)}"
        served.tokens[name] = served.state.access.create_token(name, scopes, "new")["token"]
        page = served.ask(name, "GET", "/").text
        assert ("trainmaster login http://testserver\n" in page) == shown
        assert "No runs yet" in page
