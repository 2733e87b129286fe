"""What goes between a browser and an app, and what does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.api.proxy.headers import UpstreamTarget, is_websocket, location, to_app, to_browser

APP = UpstreamTarget("tb-1", 6006, "token abc")
ORIGIN = "https://apps.example.org"


def sent(*headers):
    given = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    return [(name.decode(), value.decode()) for name, value in to_app(given, APP, ORIGIN, "10.0.0.7")]


def test_an_app_gets_nothing_of_ours_and_its_own_name():
    found = sent(
        ("host", "apps.example.org"),
        ("cookie", "trainmaster=a; theirs=b; __Host-trainmaster=c"),
        ("cookie", "trainmaster-app=d; __Secure-trainmaster-app=e; more=f=g"),
        ("authorization", "Bearer tm_secret"),
        ("origin", ORIGIN),
        ("referer", f"{ORIGIN}/apps/tb-1/data?x=1"),
        ("connection", "keep-alive, x-private"),
        ("x-private", "1"),
        ("x-forwarded-for", "1.2.3.4"),
        ("te", "trailers"),
        ("accept", "a"),
        ("accept", "b"),
    )
    assert found == [
        ("host", "127.0.0.1:6006"),
        ("accept", "a"),
        ("accept", "b"),
        ("cookie", "theirs=b; more=f=g"),
        ("origin", "http://127.0.0.1:6006"),
        ("referer", "http://127.0.0.1:6006/apps/tb-1/data?x=1"),
        ("authorization", "token abc"),
        ("x-forwarded-for", "10.0.0.7"),
        ("x-forwarded-host", "apps.example.org"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-prefix", "/apps/tb-1"),
    ]


def test_the_page_of_another_app_is_not_named():
    assert "referer" not in dict(sent(("referer", f"{ORIGIN}/apps/tb-2/secret")))


def got(*headers):
    given = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    found, outside = to_browser(given, APP, ORIGIN)
    return [(name.decode(), value.decode()) for name, value in found], outside


def test_cookies_of_an_app_are_for_its_own_paths():
    found, _ = got(
        ("set-cookie", "a=1; Path=/; HttpOnly"),
        ("set-cookie", "b=2; Domain=example.org; Path=/apps/tb-1/lab/; SameSite=Lax"),
        ("set-cookie", "trainmaster=3"),
        ("set-cookie", "__Host-Trainmaster=3; Path=/"),
        ("set-cookie", "c"),
        ("clear-site-data", '"*"'),
        ("service-worker-allowed", "/"),
    )
    assert found == [
        ("set-cookie", "a=1; HttpOnly; Path=/apps/tb-1/"),
        ("set-cookie", "b=2; SameSite=Lax; Path=/apps/tb-1/lab/"),
    ]


@pytest.mark.parametrize(
    ("sends", "becomes"),
    [
        ("/apps/tb-1/tree?a=%2F#x", "/apps/tb-1/tree?a=%2F#x"),
        ("lab", "lab"),
        ("?a=b", "?a=b"),
        ("/api/v1/runs", "/apps/tb-1/api/v1/runs"),
        ("/apps/tb-2/", "/apps/tb-1/apps/tb-2/"),
        ("/apps/tb-10/", "/apps/tb-1/apps/tb-10/"),
        ("http://127.0.0.1:6006/login?next=/", "/apps/tb-1/login?next=/"),
        ("http://127.0.0.1:6006", "/apps/tb-1/"),
        (f"{ORIGIN}/apps/tb-1/x", "/apps/tb-1/x"),
        ("https://evil.example.org/", None),
        ("//evil.example.org/", None),
        ("/\\evil.example.org/", None),
        ("javascript:alert(1)", None),
        ("../../tb-2/", None),
        ("/apps/tb-1/../tb-2/", None),
        ("/apps/tb-1/%2E%2e/tb-2/", None),
        (" /x", None),
    ],
)
def test_an_app_sends_browsers_to_itself_only(sends, becomes):
    assert location(sends, APP, ORIGIN) == becomes
    found, outside = got(("location", sends))
    assert (dict(found).get("location"), outside) == (becomes, "" if becomes else sends)


@given(st.text(alphabet="/.:ab\\%2eE?#@\t \n-1tpsh", max_size=40))
def test_whatever_an_app_says_a_browser_stays_in_it(text):
    from urllib.parse import urljoin, urlsplit

    found = location(text, APP, ORIGIN)
    if found is not None:
        parts = urlsplit(urljoin(f"{ORIGIN}/apps/tb-1/", found))
        assert (f"{parts.scheme}://{parts.netloc}", parts.path[:11]) == (ORIGIN, "/apps/tb-1/")


@pytest.mark.parametrize(
    ("headers", "is_one"),
    [
        ({"connection": "keep-alive, Upgrade", "upgrade": "WebSocket"}, True),
        ({"connection": "upgrade", "upgrade": "h2c"}, False),
        ({"connection": "keep-alive", "upgrade": "websocket"}, False),
        ({"upgrade": "websocket"}, False),
        ({"connection": "upgrade"}, False),
    ],
)
def test_what_asks_for_a_websocket(headers, is_one):
    assert is_websocket([(name.encode(), value.encode()) for name, value in headers.items()]) is is_one
