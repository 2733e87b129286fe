"""Pages of volumes: sent by a plain form, shown as text, removed."""

from __future__ import annotations

import os
import warnings

import pytest

from trainmaster.control.task.layout import Home
from trainmaster.service import Service

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("pyarrow", reason="the extra `volumes` is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

from trainmaster.api.rest.app import make_app, make_state
from trainmaster.web.pages import add_pages


@pytest.fixture
def site(tmp_path):
    home = Home(tmp_path, tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{tmp_path / 'tm.db'}")
    service = Service(home)
    state = make_state(service, {"PATH": os.environ["PATH"]})
    app = make_app(state)
    add_pages(app)
    state.access.make_team("red", None)

    def ask(method, path, scopes=("read", "run"), **more):
        name = "-".join(scopes)
        if name not in tokens:
            tokens[name] = state.access.create_token(name, list(scopes), "red")["token"]
        headers = {"authorization": f"Bearer {tokens[name]}"}
        return browser.request(method, path, headers=headers, **more)

    tokens = {}
    browser = TestClient(app, raise_server_exceptions=False, follow_redirects=False)
    yield ask
    state.finishing.stop()
    service.close()


def test_a_plain_form_makes_a_version(site):
    files = [("file", ("<i>train.csv", b"<b>x,y\n1,2\n3,4\n")), ("file", ("notes.txt", b"hello"))]
    answer = site("POST", "/volumes", data={"volume": "pets"}, files=files)
    assert (answer.status_code, answer.headers["location"]) == (303, "/volumes/pets")
    shown = site("GET", "/volumes/pets")
    assert (shown.status_code, "<strong>2</strong> rows" in shown.text) == (200, True)
    assert "&lt;i&gt;train.csv" in shown.text
    assert '<button class="danger" aria-label="Remove version 1" data-ask="Remove version 1 of' in shown.text
    assert "&lt;b&gt;x" in shown.text
    for name in ("<b>x", "<i>train", "<script>", " style="):
        assert name not in shown.text
    listed = site("GET", "/volumes")
    assert '<a href="/volumes/pets">pets</a>' in listed.text
    assert len(listed.content) < 30_000
    answer = site("POST", "/volumes/pets", data={"version": 1})
    assert (answer.status_code, answer.headers["location"]) == (303, "/volumes")
    assert site("GET", "/volumes/pets").status_code == 404


def test_what_is_wrong_is_a_page(site):
    one = [("file", ("a.txt", b"hello"))]
    answer = site("POST", "/volumes", data={"volume": "../pets"}, files=one)
    assert (answer.status_code, "no name of a volume" in answer.text) == (422, True)
    large = [("file", ("a.txt", bytes(5 << 20)))]
    assert site("POST", "/volumes", data={"volume": "pets"}, files=large).status_code == 413
    assert (
        site("POST", "/volumes", data={"volume": "pets"}, files=[("file", ("../a", b"x"))]).status_code == 422
    )


def test_who_only_reads_sees_no_form(site):
    shown = site("GET", "/volumes", ("read",))
    assert (shown.status_code, "Send files" in shown.text) == (200, False)
    assert site("POST", "/volumes", ("read",), data={"volume": "pets"}).status_code in (403, 422)
    assert site("POST", "/volumes/pets", ("read",), data={"version": 1}).status_code == 403


def test_an_upload_on_its_way_is_shown_and_given_up(site):
    body = {"name": "<b>large.csv", "size_bytes": 5_000_000, "kind": "volume"}
    upload = site("POST", "/api/v1/uploads", json=body).json()["upload"]
    assert "&lt;b&gt;large.csv" in site("GET", "/volumes").text
    assert site("POST", f"/uploads/{upload}/delete").status_code == 303
    assert "large.csv" not in site("GET", "/volumes").text
