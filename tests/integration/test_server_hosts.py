"""`trainmaster server --url`: requests for other hosts are refused; apps have a host of their own each."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from contextlib import closing

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")


@pytest.fixture
def started(tm):
    """Starts a server, and tells what it has said."""

    def start(*options):
        process = tm.start("server", "--port", "0", *options, "--json")
        process.until(lambda: process.out.endswith("\n"), "the server is ready")
        return {**json.loads(process.out), "warnings": process.err}

    return start


def asked(at, path, host, method="GET", body=None, **headers):
    """Status, headers and text of an answer; ``host`` is all that says for whom the request is."""
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(http.client.HTTPConnection(at, timeout=60)) as connection:
        connection.request(method, path, body, {"Host": host, "X-Forwarded-Proto": "https", **more})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()


def listens(said):
    return urllib.parse.urlsplit(said["listens"]).netloc


def test_who_gives_no_url_reaches_it_by_its_own_addresses_only(started):
    said = started()
    at = listens(said)
    for host in (at, "localhost:1", "[::1]"):
        assert asked(at, "/login", host)[0] == 200
    for host in ("evil.org", "evil.org:8470", "127.0.0.1.evil.org", "10.1.2.3"):
        for path in ("/login", "/api/v1/runs", "/setup", "/static/style.css"):
            status, _, text = asked(at, path, host)
            assert (status, "--url" in json.loads(text)["hint"]) == (421, True), (host, path)
        assert asked(at, "/healthz", host)[0] == 200, "balancers ask by any address"
    assert said["url"] == said["listens"]
    assert "warning" not in said["warnings"]


def test_links_lead_to_the_url_whatever_name_was_asked_for(started, tm):
    public = ("--url", "https://tm.example.org", "--url", "https://inner.example.net:8443")
    said = started("--behind-proxy", "127.0.0.1", *public)
    at = listens(said)
    assert said["url"] == "https://tm.example.org"
    assert said["setup_url"].startswith("https://tm.example.org/setup?code=")
    assert "apps have one origin" in said["warnings"]
    token = tm.call("token", "create", "t", "--scopes", "read", "--json").json["token"]
    for host in ("tm.example.org", "inner.example.net:8443", at):
        status, _, text = asked(at, "/device/code", host, "POST", "{}", Content_Type="application/json")
        assert (status, json.loads(text)["url"]) == (200, "https://tm.example.org/device")
    assert asked(at, "/device/code", "evil.org", "POST", "{}", Content_Type="application/json")[0] == 421
    # A proxy that does not pass the host on: the page's origin is the URL's.
    form = {"Content_Type": "application/x-www-form-urlencoded", "Sec_Fetch_Site": "same-origin"}
    for origin, status in (("https://tm.example.org", 303), ("https://evil.org", 403)):
        answer = asked(at, "/login", at, "POST", f"token={token}", Origin=origin, **form)
        assert answer[0] == status


def test_each_app_has_a_host_of_its_own(started, tm):
    pytest.importorskip("tensorboard", reason="the extra `apps` is not installed")
    options = ("--url", "https://tm.example.org", "--apps-url", "https://*.apps.example.org")
    said = started("--behind-proxy", "127.0.0.1", "--apps-port", "0", *options)
    assert "warning" not in said["warnings"]
    at = listens(said)
    run = tm.run(tm.task("true"))["run"]
    token = tm.call("token", "create", "t", "--scopes", "read,run", "--json").json["token"]
    known = {"Authorization": f"Bearer {token}", "Content_Type": "application/json"}

    def api(method, path, body=None):
        status, _, text = asked(at, f"/api/v1{path}", "tm.example.org", method, json.dumps(body), **known)
        assert status < 300, text
        return json.loads(text)

    app = api("POST", "/apps", {"kind": "tensorboard", "runs": [run]})["app"]
    tm.until(lambda: api("GET", f"/apps/{app}")["state"] == "RUNNING", "the app runs")
    ticket = urllib.parse.urlsplit(api("POST", f"/apps/{app}/ticket")["url"])
    assert (ticket.scheme, ticket.netloc) == ("https", f"{app}.apps.example.org")
    apps = urllib.parse.urlsplit(said["apps_listen"]).netloc
    status, headers, _ = asked(apps, ticket.path, ticket.netloc)
    assert (status, headers["location"]) == (303, f"/apps/{app}/")
    cookie, *attributes = headers["set-cookie"].split("; ")
    assert cookie.startswith("__Host-")
    assert {"Path=/", "Secure", "HttpOnly"} <= set(attributes)
    assert asked(apps, f"/apps/{app}/", ticket.netloc, Cookie=cookie)[0] == 200
    for other, status in (("other.apps.example.org", 404), ("tm.example.org", 401), ("evil.org", 421)):
        assert asked(apps, f"/apps/{app}/", other, Cookie=cookie)[0] == status
