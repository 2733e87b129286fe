"""The proxy with an app that does what apps should not, over real sockets."""

from __future__ import annotations

import asyncio
import socket

import pytest

pytest.importorskip("h11", reason="the extra `apps` is not installed")
from evil_app import WAIT_S, Setting, read_answer

from trainmaster.api.proxy import connection, proxy
from trainmaster.api.proxy.services import ServiceProxy
from trainmaster.api.server_names import ServerNames
from trainmaster.spec.errors import ProviderError

APP = "/apps/evil-1/"
SOCKET = (
    "connection: Upgrade",
    "upgrade: websocket",
    "sec-websocket-version: 13",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-protocol: v1.kernel, other",
)


def run(play, **options):
    async def main():
        async with asyncio.timeout(3 * WAIT_S), Setting(**options) as setting:
            await play(setting)

    asyncio.run(main())


def test_paths_queries_and_bodies_go_through_as_they_are():
    async def play(at):
        path = APP + "a%2Fb//c%20d?x=%5B1%5D&y"
        status, _, body = await at.ask("GET", path)
        assert (status, body.decode()) == (200, path)
        assert at.app.seen[0].startswith(f"GET {path} HTTP/1.1\r\n")
        status, _, body = await at.ask("POST", APP + "x", "content-length: 5", body=b"hello")
        assert (status, body) == (200, b"hello")
        chunks = b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        status, _, body = await at.ask("PUT", APP + "x", "transfer-encoding: chunked", body=chunks)
        assert (status, body) == (200, b"abcde")
        assert (await at.ask("HEAD", APP + "x"))[0] == 200

    run(play)


def test_a_body_of_two_lengths_is_refused():
    async def play(at):
        body = b"0\r\n\r\nGET /apps/evil-1/x HTTP/1.1\r\n\r\n"
        on = await at.connect()
        both = (f"content-length: {len(body)}", "transfer-encoding: chunked")
        assert (await at.ask("POST", APP, *both, body=body, on=on))[0] == 400
        assert await ended(on[0])
        assert at.app.seen == []

    run(play)


def test_nothing_of_ours_reaches_the_app_and_it_cannot_set_our_cookies():
    async def play(at):
        _, headers, _ = await at.ask("GET", APP + "cookies", "authorization: Bearer tm_x", cookie="good; k=v")
        assert [value for name, value in headers if name == "set-cookie"] == [
            f"a=1; Path={APP}",
            f"b=2; Path={APP}",
        ]
        (seen,) = at.app.seen
        assert "good" not in seen
        assert "tm_x" not in seen
        assert "cookie: k=v\r\n" in seen
        assert "authorization: token own\r\n" in seen

    run(play)


OURS = ("authorization: Bearer tm_ours", "cookie: trainmaster=session; __Host-trainmaster=session; theirs=1")


@pytest.mark.parametrize("path", ["api", "api/", "api/v1/runs?limit=1", "api/v1/../v1/token", "/api/v1/runs"])
def test_an_app_that_asks_for_api_is_asked_itself_and_gets_nothing_of_ours(path):
    async def play(at):
        status, _, body = await at.ask("GET", APP + path, *OURS)
        assert (status, body.decode()) == (200, APP + path)  # the app has answered
        status, _, body = await at.ask("POST", APP + path, *OURS, "content-length: 2", body=b"{}")
        assert (status, body) == (200, b"{}")
        reader, writer = await at.connect()
        writer.write(at.head("GET", f"{APP}api/kernels/1/ws", *SOCKET, *OURS).encode())
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        assert [head.split(" ")[1] for head in at.app.seen] == [APP + path] * 2 + [f"{APP}api/kernels/1/ws"]
        for head in at.app.seen:
            assert not any(ours in head for ours in ("tm_ours", "session", "good"))
            assert "cookie: theirs=1\r\n" in head

    run(play)


def test_a_page_of_an_app_that_asks_for_api_by_an_absolute_path_is_led_to_that_of_the_app():
    async def play(at):
        referer = f"referer: http://127.0.0.1:{at.port}{APP}lab"
        at.gate.more = {"is_bare": True}
        status, headers, _ = await at.ask("GET", "/api/v1/runs", referer, *OURS)
        assert (status, dict(headers)["location"]) == (307, APP + "api/v1/runs")
        assert (await at.ask("POST", "/api/v1/runs", referer, *OURS, "content-length: 0"))[0] == 404
        assert at.app.seen == []
        assert (await at.ask("GET", APP + "api/v1/runs", *OURS))[2] == b"/api/v1/runs"
        assert not any(ours in at.app.seen[0] for ours in ("tm_ours", "session", "good"))

    run(play)


def test_a_connection_is_kept_on_both_sides():
    async def play(at):
        on = await at.connect()
        for name in ("one", "two", "once", "three"):
            assert (await at.ask("GET", APP + name, on=on))[0] == 200
        assert at.app.connections == 2, "it said once that it closes"

    run(play)


def test_an_app_that_closes_what_it_had_kept_open_is_asked_again():
    async def play(at):
        on = await at.connect()
        assert (await at.ask("GET", APP + "x", on=on))[0] == 200
        assert (await at.ask("GET", APP + "fickle", on=on))[0] == 200
        assert (at.app.connections, len(at.app.seen)) == (2, 3)

    run(play)


def test_a_body_that_nobody_wants_does_not_take_the_refusal_back():
    async def play(at):
        body = b"x" * 2_000_000
        length = f"content-length: {len(body)}"
        assert (await at.ask("POST", APP + "x", length, body=body, cookie="bad"))[0] == 401
        assert (await at.ask("POST", APP + "x", length, body=body))[2] == body

    run(play)


def test_a_refusal_is_whole_and_says_that_nothing_follows():
    async def play(at):
        on = await at.connect()
        on[1].write(b"what is this\r\n\r\n")
        status, _, body = await read_answer(on[0])
        assert (status, body, await ended(on[0])) == (400, b"That is no request.", True)
        on = await at.connect()
        status, headers, _ = await at.ask(
            "POST", APP, "content-length: 5", body=b"hello", cookie="bad", on=on
        )
        assert (status, dict(headers)["connection"], await ended(on[0])) == (401, "close", True)
        on = await at.connect()
        assert (await at.ask("HEAD", APP, cookie="bad", on=on))[0] == 401
        assert await ended(on[0]), "no text comes after what was asked for without one"

    run(play)


def test_who_is_not_let_in_gets_nowhere():
    async def play(at):
        assert (await at.ask("GET", APP, cookie=""))[0] == 401
        assert (await at.ask("GET", APP, cookie="bad"))[0] == 401
        assert (await at.ask("GET", APP, "authorization: Bearer good", cookie=""))[0] == 200
        assert (await at.ask("GET", "/apps/evil-2/"))[0] == 404
        for path in ("/api/v1/runs", "/", "/login", "/apps", "/apps/../api", "http://127.0.0.1/api/v1/runs"):
            assert (await at.ask("GET", path))[0] == 404, path
        assert len(at.app.seen) == 1

    run(play)


def test_who_is_not_let_in_is_told_of_without_secrets():
    told = []

    async def play(at):
        await at.ask("GET", APP + "x?token=secret", cookie="bad")
        await at.ask("GET", "/enter/secret", cookie="")
        await at.ask("POST", APP, "content-length: 0", "origin: https://evil.example.org")
        await at.ask("GET", APP)
        await at.ask("GET", "/apps/evil-2/")

    run(play, refused=lambda *what: told.append(what))
    here = "127.0.0.1"
    assert told == [(here, f"GET {APP}x", 401), (here, "GET /enter/", 401), (here, f"POST {APP}", 403)]


def test_a_ticket_becomes_a_cookie_for_one_app():
    async def play(at):
        status, headers, _ = await at.ask("GET", "/enter/once", cookie="")
        found = dict(headers)
        assert (status, found["location"]) == (303, APP)
        assert found["set-cookie"] == (
            f"trainmaster-app=good; Path={APP}; Max-Age=60; HttpOnly; SameSite=Lax"
        )
        at.proxy._grants.is_secure = True
        kept = dict((await at.ask("GET", "/enter/once", cookie=""))[1])["set-cookie"]
        assert kept == found["set-cookie"] + "; Secure"
        assert (await at.ask("GET", "/enter/twice", cookie=""))[0] == 401
        status, headers, _ = await at.ask("GET", "/apps/evil-1?a=b")
        assert (status, dict(headers)["location"]) == (308, APP + "?a=b")

    run(play)


def test_redirects_stay_in_the_app_or_are_held():
    async def play(at):
        status, headers, _ = await at.ask("GET", APP + "redirect")
        assert (status, dict(headers)["location"]) == (302, APP + "api/v1/runs")
        status, headers, body = await at.ask("GET", APP + "leave")
        assert (status, "location" in dict(headers)) == (502, False)
        assert b"https://evil.example.org/" in body

    run(play)


def test_an_app_that_dies_hangs_or_talks_nonsense_is_told_so():
    async def play(at):
        on = await at.connect()
        for name in ("dies", "nonsense"):
            assert (await at.ask("GET", APP + name, on=on))[0] == 502, name
        status, _, body = await at.ask("GET", APP + "hang", on=on)
        assert (status, b"in time" in body) == (504, True)
        assert (await at.ask("GET", APP + "x", on=on))[0] == 200
        reader, writer = await at.connect()
        writer.write(at.head("GET", APP + "half").encode())
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await read_answer(reader)
        at.app.server.close()
        at.gate.port = 1
        assert (await at.ask("GET", APP + "x"))[0] in (200, 502)

    run(play, answer_s=0.2)


def test_a_browser_that_is_gone_frees_the_app():
    async def play(at):
        _, writer = await at.connect()
        writer.write(at.head("POST", APP + "hang", "content-length: 1").encode() + b"x")
        await asyncio.wait_for(at.app.asked.wait(), WAIT_S)
        writer.close()
        at.app.release.set()
        await asyncio.wait_for(at.app.closed.wait(), WAIT_S)

    run(play)


def test_an_app_is_left_when_the_browser_goes_and_when_it_does_not_answer():
    async def play(at):
        on = await at.connect()
        assert (await at.ask("GET", APP + "hang", on=on))[0] == 504
        at.app.release.set()
        await asyncio.wait_for(at.app.closed.wait(), 10)  # while the browser is still there
        at.app.closed.clear()
        assert (await at.ask("GET", APP + "x", on=on))[0] == 200
        on[1].close()
        await asyncio.wait_for(at.app.closed.wait(), 10)

    run(play, answer_s=0.2)


def test_large_answers_are_streamed():
    async def play(at):
        status, _, body = await at.ask("GET", APP + "large")
        assert (status, len(body), body[-1]) == (200, 4 << 20, 63)

    run(play)


def test_websockets_keep_their_protocol_and_any_size():
    async def play(at):
        reader, writer = await open_socket(at)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert head.startswith("HTTP/1.1 101")
        assert "v1.kernel" in head
        assert "trainmaster" not in head
        assert await reader.readexactly(5) == b"hello"
        data = bytes(range(256)) * 8192

        async def send():
            writer.write(data)
            await writer.drain()

        sending = asyncio.create_task(send())
        assert await asyncio.wait_for(reader.readexactly(len(data)), WAIT_S) == data
        await sending
        uses = at.gate.uses
        writer.write(b"\x8a\x80abcd")
        await reader.readexactly(6)
        assert at.gate.uses == uses, "a pong is nobody's work"
        writer.write(b"\x81\x80abcd")
        await reader.readexactly(6)
        assert at.gate.uses == uses + 1

    run(play)


def test_another_sites_page_opens_no_websocket_and_writes_nothing():
    async def play(at):
        for origin in ("https://evil.example.org", "null", f"https://127.0.0.1:{at.port}"):
            assert (await at.ask("GET", APP + "ws", *SOCKET, f"origin: {origin}"))[0] == 403
            assert (await at.ask("POST", APP, "content-length: 0", f"origin: {origin}"))[0] == 403
        ours = f"origin: http://127.0.0.1:{at.port}"
        assert (await at.ask("GET", APP + "ws", *SOCKET, ours))[0] == 101
        assert f"origin: http://127.0.0.1:{at.gate.port}" in at.app.seen[-1]
        assert (await at.ask("GET", APP + "ws", *SOCKET, cookie="bad"))[0] == 401

    run(play)


def test_what_is_open_ends_when_its_rights_do():
    async def play(at):
        sockets = [await open_socket(at) for _ in range(3)]
        for reader, _ in sockets:
            await reader.readuntil(b"hello")
        at.gate.allowed = set()
        for reader, _ in sockets:
            assert await ended(reader)
        assert (await at.ask("GET", APP))[0] == 401

    run(play, check_s=0.05)


def test_rights_that_cannot_be_asked_end_what_is_open_and_nothing_else(caplog):
    async def play(at):
        admit = at.gate.admit

        def asked(app, cookies, bearer):
            if "good" in cookies and not bearer and at.gate.uses:
                raise KeyError("a kind of app that is not known")
            return admit(app, cookies, bearer)

        at.gate.admit, at.gate.uses, at.gate.used = asked, 0, lambda _: None
        broken, other = await open_socket(at), await at.connect()
        other[1].write(at.head("GET", APP + "ws", *SOCKET, "authorization: Bearer good").encode())
        for reader, _ in (broken, other):
            await reader.readuntil(b"hello")
        at.gate.uses = 1
        assert await ended(broken[0])
        at.gate.allowed = set()
        assert await ended(other[0]), "the others are asked for as before"

    run(play, check_s=0.05)
    assert "rights to the app evil-1 cannot be asked" in caplog.text


def test_who_says_nothing_takes_no_place_for_long(monkeypatch):
    async def play(at):
        known = await at.connect()
        assert (await at.ask("GET", APP, on=known))[0] == 200
        assert connection.FIRST_S == 10.0
        monkeypatch.setattr(connection, "FIRST_S", 0.05)
        silent, _ = await at.connect()
        assert await ended(silent)
        assert (await at.ask("GET", APP, on=known))[0] == 200

    run(play)


def test_strangers_of_one_address_do_not_take_all_places(monkeypatch):
    monkeypatch.setattr(proxy, "MOST_STRANGERS", 3)

    async def play(at):
        known = await at.connect()
        assert (await at.ask("GET", APP, on=known))[0] == 200
        silent = [await at.connect() for _ in range(4)]
        assert await ended(silent[3][0]), "it is closed at once"
        assert (await at.ask("GET", APP, on=known))[0] == 200
        assert (await at.ask("GET", APP, on=silent[0]))[0] == 200
        assert (await at.ask("GET", APP, on=await at.connect()))[0] == 200

    run(play)


def test_with_all_places_taken_others_are_closed(monkeypatch):
    monkeypatch.setattr(proxy, "MOST_CONNECTIONS", 1)

    async def play(at):
        known = await at.connect()
        assert (await at.ask("GET", APP, on=known))[0] == 200
        assert await ended((await at.connect())[0])
        assert (await at.ask("GET", APP, on=known))[0] == 200

    run(play)


def test_fifty_sockets_end_with_the_server():
    async def play(at):
        sockets = [await open_socket(at) for _ in range(50)]
        for reader, _ in sockets:
            await reader.readuntil(b"hello")
        await asyncio.wait_for(at.proxy.stop(), WAIT_S)
        for reader, _ in sockets:
            assert await ended(reader)
        with pytest.raises(ConnectionRefusedError):
            await at.connect()

    run(play)


async def open_socket(at):
    on = await at.connect()
    on[1].write(at.head("GET", APP + "ws", *SOCKET).encode())
    return on


async def ended(reader):
    try:
        return await asyncio.wait_for(reader.read(), WAIT_S) == b""
    except ConnectionError:
        return True


def test_an_app_that_knows_no_prefix_gets_paths_without_it_and_its_pages_find_what_they_name():
    async def play(at):
        def leads():
            return socket.create_connection(("127.0.0.1", at.gate.port))

        at.gate.more = {"is_bare": True, "open": leads}
        status, _, body = await at.ask("GET", APP + "jobs/1?x=a%2Fb")
        assert (status, body) == (200, b"/jobs/1?x=a%2Fb")
        status, headers, _ = await at.ask("GET", APP + "redirect")
        assert ("location", APP + "api/v1/runs") in headers
        referer = f"referer: http://127.0.0.1:{at.port}{APP}jobs/1"
        status, headers, _ = await at.ask("GET", "/static/x.js?v=1", referer)
        assert status == 307
        assert ("location", APP + "static/x.js?v=1") in headers
        assert (await at.ask("POST", "/static/x.js", referer, "content-length: 0"))[0] == 404
        assert (await at.ask("GET", "/static/x.js"))[0] == 404

    run(play)


def test_what_pages_ask_for_by_themselves_is_no_use():
    async def play(at):
        at.gate.more = {"polls": r"(GET|HEAD) api/|\w+ lab/"}
        await at.ask("GET", APP + "api/kernels")
        await at.ask("PUT", APP + "lab/api", "content-length: 0")
        assert at.gate.uses == 0
        await at.ask("GET", APP + "lab")
        await at.ask("POST", APP + "api/sessions", "content-length: 0")
        await at.ask("GET", APP + "files/api/kernels")
        assert at.gate.uses == 3

    run(play)


def test_a_machine_that_cannot_be_reached_is_said_to_be():
    async def play(at):
        def leads():
            raise ProviderError("the machine is gone", "Try again.")

        at.gate.more = {"open": leads}
        status, _, body = await at.ask("GET", APP)
        assert (status, body.decode()) == (502, "the machine is gone\nTry again.")

    run(play)


@pytest.mark.parametrize("host", ["evil.org", "127.0.0.1.evil.org:80", "10.1.2.3", "a b", "[::g]"])
def test_what_is_asked_of_another_host_is_refused_before_anything_is_looked_at(host):
    async def play(at):
        for path in (APP, "/enter/once", "/services/digits/"):
            assert (await at.ask("GET", path, host=host))[0] == 421
        assert (at.gate.asked, at.app.seen) == (0, [])
        assert (await at.ask("GET", APP, host="localhost"))[0] == 200

    run(play)


def test_the_address_at_which_a_connection_arrives_is_a_name_of_the_server(monkeypatch):
    told = asyncio.StreamWriter.get_extra_info

    def arrived(writer, name, default=None):
        return ("10.1.2.3", 8471) if name == "sockname" else told(writer, name, default)

    monkeypatch.setattr(asyncio.StreamWriter, "get_extra_info", arrived)

    async def play(at):
        found = [(await at.ask("GET", APP, host=host))[0] for host in ("10.1.2.3:8471", "10.1.2.4", "8471")]
        assert found == [200, 421, 421]

    run(play)


OWN = "evil-1.apps.example.org"
OWN_HOSTS = {
    "is_secure": True,
    "domain": "apps.example.org",
    "hosts": ServerNames(frozenset({"*.apps.example.org"})),
}


def test_an_app_with_a_host_of_its_own_is_entered_there_with_a_cookie_of_that_host():
    async def play(at):
        status, headers, _ = await at.ask("GET", "/enter/once", cookie=None, host="other-1.apps.example.org")
        assert status == 404, "the cookie would be that of another app's host"
        assert "set-cookie" not in dict(headers)
        _, headers, _ = await at.ask("GET", "/enter/once", cookie=None, host=OWN)
        found = dict(headers)
        assert found["location"] == APP
        assert found["set-cookie"].startswith("__Host-trainmaster-app=good; Path=/; ")
        assert "Secure" in found["set-cookie"]
        assert "Domain" not in found["set-cookie"]
        assert (await at.ask("GET", APP + "x", host=OWN))[2].decode() == APP + "x"
        assert "good" not in at.app.seen[0]

    run(play, **OWN_HOSTS)


@pytest.mark.parametrize(
    ("host", "more", "status"),
    [
        ("other-1.apps.example.org", (), 404),
        ("services.apps.example.org", (), 404),
        ("a.evil-1.apps.example.org", (), 421),
        ("apps.example.org", (), 421),
        ("127.0.0.1", (), 401),  # no cookie is good there
        ("127.0.0.1", ("authorization: Bearer good",), 200),
        (OWN, ("cookie: trainmaster-app=good",), 200),
        (OWN, ("sec-fetch-site: same-origin", "sec-fetch-mode: cors"), 200),
        (OWN, ("sec-fetch-site: same-site", "sec-fetch-mode: no-cors", "sec-fetch-dest: script"), 403),
        (OWN, ("sec-fetch-site: same-site", "sec-fetch-mode: navigate", "sec-fetch-dest: iframe"), 403),
        (OWN, ("sec-fetch-site: cross-site", "sec-fetch-mode: navigate", "sec-fetch-dest: document"), 200),
    ],
)
def test_the_host_of_an_app_is_that_apps_only_and_pages_of_others_get_nothing_there(host, more, status):
    async def play(at):
        assert (await at.ask("GET", APP, *more, host=host))[0] == status

    run(play, **OWN_HOSTS)


def test_a_cookie_that_another_apps_page_can_set_is_not_looked_at():
    async def play(at):
        status, _, _ = await at.ask("GET", APP, "cookie: trainmaster-app=good", cookie=None, host=OWN)
        assert (status, at.gate.asked) == (401, 1)

    run(play, **OWN_HOSTS)


def test_websockets_and_writes_are_taken_from_the_apps_own_host_only():
    async def play(at):
        for origin, status in ((f"https://{OWN}", 200), ("https://other-1.apps.example.org", 403)):
            answer = await at.ask(
                "POST", APP + "x", f"origin: {origin}", "content-length: 2", body=b"{}", host=OWN
            )
            assert answer[0] == status
        other = "origin: https://other-1.apps.example.org"
        assert (await at.ask("GET", APP + "ws", *SOCKET, other, host=OWN))[0] == 403

    run(play, **OWN_HOSTS)


def test_absolute_paths_at_the_host_of_an_app_are_those_of_the_app():
    async def play(at):
        status, headers, _ = await at.ask("GET", "/static/app.js?v=1", host=OWN)
        assert (status, dict(headers)["location"]) == (307, APP + "static/app.js?v=1")

    run(play, **OWN_HOSTS)


def test_apps_are_asked_where_there_are_services_too():
    async def play(at):
        at.proxy._services = ServiceProxy(None)
        assert (await at.ask("GET", APP + "x"))[0] == 200
        assert (await at.ask("GET", "/services"))[0] == 404

    run(play)
