"""What is asked of a page or a route, however odd, is answered or refused: it is no mistake of the server."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from itertools import cycle
from urllib.parse import quote

import pytest
from fastapi.dependencies.models import Dependant
from test_pages import Site

from trainmaster.service.runs.run_details import RunDetails
from trainmaster.spec.errors import UsageError

ODD = ("\x00", "9" * 23, "²", "inf", "a" * 5000, "../..", "9999999999d", "((", "0001-01-01", "nan")
#: What is there; and what has no end, or is an app's.
THERE = {"run": "digits-1", "experiment": "tune", "task": "0", "number": "0", "attempt": "1"}
ENDLESS = ("stream", "events", "live", "proxy", "mcp")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(tmp_path_factory.mktemp("site"))
    yield found
    found.service.close()


def routes_of(routes, prefix: str = "") -> Iterator[tuple[str, Dependant]]:
    """Paths that are read, and what they take."""
    for each in routes:
        if router := getattr(each, "original_router", None):
            yield from routes_of(router.routes, prefix + each.include_context.prefix)
        elif "GET" in (getattr(each, "methods", None) or ()) and hasattr(each, "dependant"):
            yield prefix + each.path_format, each.dependant


def taken(dependant: Dependant, kind: str) -> Iterator[str]:
    """Names of parameters; a form's are those of its model."""
    for field in getattr(dependant, kind):
        yield from getattr(field.field_info.annotation, "model_fields", None) or (field.alias,)
    for each in dependant.dependencies:
        yield from taken(each, kind)


def test_no_odd_value_of_a_parameter_is_a_mistake_of_the_server(site: Site) -> None:
    """Each parameter has two of them, in turn."""
    odd, mistakes, asked = cycle(ODD), [], 0
    for path, dependant in routes_of(site.app.routes):
        if any(word in path for word in ENDLESS):
            continue
        names = dict.fromkeys(taken(dependant, "path_params"))
        for name in (*taken(dependant, "query_params"), *names):
            for value, _ in zip(odd, range(2), strict=False):
                given = {each: THERE.get(each, "x") for each in names} | {name: value}
                filled = path.format(**{each: quote(given[each], safe="") for each in names})
                answer = site.browser.get(filled, params={} if name in names else {name: value})
                asked += 1
                if answer.status_code >= 500:
                    mistakes.append((answer.status_code, path, name, value[:20]))
    assert mistakes == []
    assert asked > 400


@pytest.mark.parametrize(
    "place",
    [
        b"[" * 30_000,
        b"[1e999,0,{}]",
        b'[0,0,{"1/log":1e999}]',
        b'[0,0,{"x/log":1}]',
        b'[0,0,{"":1}]',
        b"[%d,0,{}]" % 10**30,
        b'[0,0,{"1/metrics":%d}]' % 10**30,
    ],
)
def test_a_damaged_place_in_a_stream_is_refused(site: Site, place: bytes) -> None:
    after = base64.urlsafe_b64encode(zlib.compress(place)).decode().rstrip("=")
    answer = site.browser.get("/api/v1/runs/digits-1/stream", params={"after": after})
    assert (answer.status_code, "is no place in a stream" in answer.json()["title"]) == (422, True)


@pytest.mark.parametrize("path", ["runs/digits-1/events?after=", "models?cursor=digits-1/tune/"])
def test_a_number_that_no_database_keeps_is_a_mistake_of_who_asks(site: Site, path: str) -> None:
    assert site.browser.get(f"/api/v1/{path}{'9' * 23}").status_code == 422


@pytest.mark.parametrize("was", ["{", "[]", '{"name": 3}', "[" * 5000])
def test_a_hidden_field_that_somebody_has_changed_is_named(site: Site, was: str) -> None:
    typed = {"recipe": "name: job\nexperiments: {main: {command: 'true'}}\n", "name": "job", "was": was}
    for path in ("/new/quote", "/new/dry-run"):
        sent = site.browser.post(path, data=typed)
        assert sent.status_code == 422
        assert "Load this page again" in sent.text
    told = site.browser.post("/new/recipe", data=typed, headers={"hx-request": "true"}).json()
    assert "<li>was" in told["checked"]


def test_who_has_followed_a_link_to_a_file_that_is_not_there_sees_a_page(site: Site) -> None:
    path, clicked = "/api/v1/models/digits-1/tune/0.zip", {"sec-fetch-mode": "navigate"}
    told, seen = site.browser.get(path), site.browser.get(path, headers=clicked)
    assert told.headers["content-type"] == "application/problem+json"
    assert (seen.status_code, "<h1>" in seen.text) == (told.status_code, True)
    out = site.browser.get(path, headers={**clicked, "authorization": ""})
    assert out.headers["location"].startswith("/login?next=%2Fapi%2Fv1%2Fmodels"), "then it is downloaded"


def test_checkpoints_that_cannot_be_looked_for_are_not_said_to_be_none(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunDetails, "checkpoints", lambda _: (_ for _ in ()).throw(UsageError("no keys")))
    page = site.page("/runs/digits-2/history")
    assert ("no keys" in page, "None: " in page) == (True, False)
