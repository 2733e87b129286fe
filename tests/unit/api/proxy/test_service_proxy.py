"""The proxy in front of services, with replicas that do what replicas should not, over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("h11", reason="the extra `apps` is not installed")
from evil_app import WAIT_S, EvilApp, read_answer

from trainmaster.api.proxy import proxy
from trainmaster.api.proxy.grants import Grants
from trainmaster.api.proxy.proxy import AppProxy
from trainmaster.api.proxy.services import ServiceProxy
from trainmaster.service.endpoints.endpoints import ReadyReplica
from trainmaster.service.users.caller import ForbiddenError, UnknownCallerError
from trainmaster.spec.errors import NotFoundError, ProviderError

SERVICE = "/services/digits/"


class Gate:
    """Lets requests with the token ``good`` ask ``digits``."""

    def __init__(self):
        self.is_open = False
        self.found, self.asked, self.turned, self.told = [], 0, [], {}
        self.error = None

    def targets(self, name, bearer, team):
        self.asked += 1
        if self.error is not None:
            raise self.error
        if bearer != "good" and not self.is_open:
            raise UnknownCallerError("the token is not known", "Ask for a new one.")
        if name != "digits":
            raise NotFoundError(f"there is no service {name!r}", "")
        return self.found

    def turned_away(self, name, bearer, team):
        self.turned.append(name)

    def report(self, in_flight):
        self.told = dict(in_flight)

    def connect(self, replica):
        if replica.port == 0:
            raise ProviderError("the machine is gone", "")
        return socket.create_connection(("127.0.0.1", replica.port), WAIT_S)


class Setting:
    """Replicas, the gate, the proxy, and a client of bytes."""

    def __init__(self, count=2, answer_s=60.0, **options):
        self.count, self.answer_s, self.options = count, answer_s, options

    async def __aenter__(self):
        self.apps = [EvilApp() for _ in range(self.count)]
        self.gate = Gate()
        self.gate.found = [await self.replica(number) for number in range(self.count)]
        self.services = ServiceProxy(self.gate, **self.options)
        self.proxy = AppProxy(None, self.services, answer_s=self.answer_s)
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        await self.proxy.start(listener)
        self.writers = []
        return self

    async def replica(self, number, in_flight=0, is_here=True):
        port = await self.apps[number].start()
        return ReadyReplica(f"ep-1-{number}", "job-1", None, port, is_here, f"digits@{number + 1}", in_flight)

    async def __aexit__(self, *_):
        for writer in self.writers:
            writer.close()
        for app in self.apps:
            app.release.set()
        await self.proxy.stop()
        for app in self.apps:
            app.server.close()

    async def ask(self, method, path, *headers, body=b"", token="good", on=None, host=None):
        """Status, headers by name, body."""
        reader, writer = on or await self.connect()
        kept = [f"authorization: Bearer {token}"] if token else []
        size = (
            [f"content-length: {len(body)}"]
            if body and not any("chunked" in each for each in headers)
            else []
        )
        lines = [f"{method} {path} HTTP/1.1", f"host: {host or f'127.0.0.1:{self.port}'}", *kept, *size]
        writer.write("\r\n".join([*lines, *headers, "", ""]).encode() + body)
        status, found, text = await read_answer(reader, method)
        return status, {name.lower(): value for name, value in found}, text

    async def connect(self):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 22)
        self.writers.append(writer)
        return reader, writer

    def seen(self):
        return [len(app.seen) for app in self.apps]


def run(play, **options):
    async def main():
        async with asyncio.timeout(3 * WAIT_S), Setting(**options) as setting:
            await play(setting)

    asyncio.run(main())


async def ended(reader):
    try:
        async with asyncio.timeout(WAIT_S):
            return await reader.read() == b""
    except ConnectionResetError:
        return True


def test_who_was_let_in_to_a_service_is_no_stranger(monkeypatch):
    monkeypatch.setattr(proxy, "MOST_STRANGERS", 1)

    async def play(at):
        stranger = await at.connect()
        assert await ended((await at.connect())[0]), "there is a place for one"
        assert (await at.ask("GET", SERVICE, on=stranger))[0] == 200
        assert (await at.ask("GET", SERVICE, on=await at.connect()))[0] == 200

    run(play)


def test_a_replica_gets_the_path_without_the_service_and_nothing_of_ours():
    async def play(at):
        status, headers, body = await at.ask(
            "POST", SERVICE + "v2/a%2Fb?x=1", "cookie: trainmaster=x", body=b"hello"
        )
        assert (status, body) == (200, b"hello")
        assert headers["trainmaster-model"] == "digits@1"
        head = at.apps[0].seen[0].lower()
        assert head.startswith("post /v2/a%2fb?x=1 http/1.1\r\n")
        assert "x-forwarded-prefix: /services/digits\r\n" in head
        assert "good" not in head
        assert "cookie" not in head
        chunks = b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        assert (await at.ask("POST", SERVICE, "transfer-encoding: chunked", body=chunks))[2] == b"abcde"
        assert (await at.ask("HEAD", SERVICE + "x"))[0] == 200
        status, headers, _ = await at.ask("GET", SERVICE + "redirect")
        assert (status, headers["location"]) == (302, "/services/digits/api/v1/runs")

    run(play, count=1)


def test_a_service_that_has_an_api_of_its_own_is_asked_for_that():
    async def play(at):
        cookie = "cookie: trainmaster=session; __Host-trainmaster=session"
        for path in ("api", "api/v1/runs?limit=1"):
            assert (await at.ask("GET", SERVICE + path, cookie))[2].decode() == f"/{path}"
        assert not any(ours in head for head in at.apps[0].seen for ours in ("good", "session"))
        assert (await at.ask("GET", "/api/v1/runs", cookie))[0] == 404
        assert at.seen() == [2]

    run(play, count=1)


def test_requests_go_to_the_least_busy_replica():
    async def play(at):
        slow = asyncio.create_task(at.ask("GET", SERVICE + "hang"))
        await at.apps[0].asked.wait()
        for _ in range(3):
            assert (await at.ask("GET", SERVICE))[0] == 200
        assert at.seen() == [1, 3]
        at.apps[0].release.set()
        assert (await slow)[0] == 200
        for _ in range(4):
            await at.ask("GET", SERVICE)
        assert at.seen() == [3, 5], "in turns, if they are equally busy"

    run(play)


def test_what_the_proxies_of_other_servers_have_there_counts():
    async def play(at):
        at.gate.found = [
            at.gate.found[0],
            ReadyReplica("ep-1-1", "job-1", None, at.gate.found[1].port, True, None, 2),
        ]
        for _ in range(2):
            assert (await at.ask("GET", SERVICE))[0] == 200
        assert at.seen() == [2, 0]

    run(play)


def test_a_replica_that_cannot_be_reached_is_passed_over():
    async def play(at):
        at.apps[0].server.close()
        for method in ("POST", "GET"):
            assert (await at.ask(method, SERVICE + "x", body=b"a"))[0] == 200
        assert at.seen() == [0, 2]

    run(play)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_if_none_can_be_reached_those_are_asked_that_there_are_by_now(method):
    """A replica was replaced in the second for which we know where replicas are."""

    async def play(at):
        at.apps[0].server.close()
        later, at.gate.found = at.gate.found[1:], at.gate.found[:1]
        await at.services.admitted(("digits", "good", ""))
        at.gate.found, patiences_s, target = later, [], at.services.target

        def noted(name, replica, connect_s):
            patiences_s.append(connect_s)
            return target(name, replica, connect_s)

        at.services.target = noted
        assert (await at.ask(method, SERVICE + "x", body=b"a"))[0] == 200
        assert at.seen() == [0, 1]
        assert patiences_s[0] < patiences_s[-1] <= 30, "what nobody else can answer is waited for"

    run(play)


async def breaks_off(*_):
    return False


def test_a_request_that_may_be_sent_twice_waits_for_a_replica_that_is_slow_to_reach():
    """The first one ends as its machine is taken back, the machine of the second one answers late."""

    async def play(at):
        second, late = at.gate.found[1], [True]

        def connect(replica):
            if late:
                late.clear()
                raise ProviderError("the machine does not answer in time", "")
            return socket.create_connection(("127.0.0.1", replica.port), WAIT_S)

        at.gate.connect = connect
        at.gate.found[1] = ReadyReplica(
            second.replica, second.run, "node-1", second.port, False, "digits@2", 0
        )
        at.apps[0].answer = breaks_off
        assert (await at.ask("GET", SERVICE))[0] == 200
        assert at.seen() == [1, 1], "a replica that has broken off is not asked again"

    run(play, count=2)


def test_a_machine_that_lets_everybody_wait_holds_up_nobody_elses_requests():
    async def play(at):
        waits, ends, busy = asyncio.Event(), threading.Event(), []
        loop = asyncio.get_running_loop()

        def connect(replica):
            busy.append(replica)
            loop.call_soon_threadsafe(waits.set)
            ends.wait(WAIT_S)
            raise ProviderError("the machine is gone", "")

        at.gate.connect = connect
        at.gate.found = [ReadyReplica("ep-1-0", "job-1", "node-1", 9, False, None, 0)]
        asked = [asyncio.create_task(at.ask("GET", SERVICE)) for _ in range(40)]
        try:
            await waits.wait()
            async with asyncio.timeout(3):
                assert (await at.ask("GET", SERVICE, token="wrong"))[0] == 401
            assert len(busy) <= 4, "one place has so many threads, however many ask for it"
        finally:
            ends.set()
        assert {status for status, _, _ in await asyncio.gather(*asked)} == {503}

    run(play)


def test_if_none_can_be_reached_one_is_told_to_come_again():
    async def play(at):
        at.gate.found = [ReadyReplica(f"ep-1-{n}", "job-1", f"node-{n}", 0, False, None, 0) for n in range(3)]
        status, headers, body = await at.ask("POST", SERVICE, body=b"a")
        assert (status, headers["retry-after"]) == (503, "2")
        assert json.loads(body) == {"error": "no replica of digits can be reached"}

    run(play, count=0)


def test_a_replica_on_another_machine_is_asked_through_its_connection():
    async def play(at):
        first = at.gate.found[0]
        at.gate.found = [ReadyReplica(first.replica, first.run, "node-1", first.port, False, None, 0)]
        for _ in range(3):
            assert (await at.ask("POST", SERVICE, body=b"a"))[2] == b"a"
        assert at.apps[0].connections == 1, "kept for the next request"

    run(play, count=1)


def test_only_what_may_be_done_twice_is_sent_twice():
    async def play(at):
        status, _, body = await at.ask("POST", SERVICE + "dies", body=b"a")
        assert (status, json.loads(body)["error"]) == (
            502,
            "a replica of digits has broken off before it answered",
        )
        assert sum(at.seen()) == 1
        assert (await at.ask("GET", SERVICE + "dies"))[0] == 502
        assert sum(at.seen()) == 3, "both were asked"

    run(play)


@pytest.mark.parametrize("what", ["nonsense", "half"])
def test_a_replica_that_lies_gives_no_answer_that_looks_whole(what):
    async def play(at):
        try:
            status, _, _ = await at.ask("POST", SERVICE + what, body=b"a")
        except (asyncio.IncompleteReadError, ConnectionError):
            status = "broken off"
        assert status == {"nonsense": 502, "half": "broken off"}[what]
        assert (await at.ask("POST", SERVICE, body=b"a"))[0] == 200

    run(play)


def test_a_replica_that_says_that_it_is_healthy_and_answers_nothing_is_asked_last():
    async def play(at):
        at.apps[0].answer = breaks_off
        for _ in range(20):
            assert (await at.ask("GET", SERVICE))[0] == 200
        assert at.seen() == [1, 20]
        slow = asyncio.create_task(at.ask("GET", SERVICE + "hang"))
        await at.apps[1].asked.wait()
        assert (await at.ask("POST", SERVICE, body=b"a"))[0] == 200, "also if the other one is busy"
        at.apps[1].release.set()
        assert (await slow)[0] == 200

    run(play, clock=lambda: 1000.0)


def test_a_replica_that_hangs_is_given_up():
    async def play(at):
        status, _, body = await at.ask("POST", SERVICE + "hang", body=b"a")
        assert (status, json.loads(body)["error"]) == (504, "a replica of digits does not answer in time")
        assert sum(at.seen()) == 1

    run(play, answer_s=0.05)


def test_while_no_replica_is_ready_one_is_told_to_come_again():
    async def play(at):
        at.gate.found = []
        status, headers, body = await at.ask("POST", SERVICE, body=b"a")
        assert (status, headers["retry-after"], headers["content-type"]) == (503, "2", "application/json")
        assert json.loads(body) == {"error": "no replica of digits is ready"}
        assert at.gate.turned == ["digits"]

    run(play)


def test_who_may_not_ask_is_told_why():
    async def play(at):
        status, headers, _ = await at.ask("GET", SERVICE, token=None)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        status, headers, _ = await at.ask("GET", SERVICE, token="bad")
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        status, headers, _ = await at.ask("GET", "/services/theirs/")
        assert (status, "www-authenticate" in headers) == (404, False)
        assert (await at.ask("GET", "/services/"))[0] == 404
        assert (await at.ask("GET", "/apps/evil-1/"))[0] == 404
        at.gate.error = ForbiddenError("it may not ask models", "That needs the scope 'infer'.")
        status, _, body = await at.ask("GET", SERVICE)
        assert (status, json.loads(body)["error"]) == (
            403,
            "it may not ask models. That needs the scope 'infer'.",
        )
        assert at.seen() == [0, 0]

    run(play)


def test_a_body_that_is_too_large_is_refused_also_if_it_does_not_say_so():
    async def play(at):
        assert (await at.ask("POST", SERVICE, body=b"x" * 101))[0] == 413
        assert at.seen() == [0]
        chunks = b"64\r\n" + b"x" * 100 + b"\r\n1\r\nx\r\n0\r\n\r\n"
        assert (await at.ask("POST", SERVICE, "transfer-encoding: chunked", body=chunks))[0] == 413
        assert (await at.ask("POST", SERVICE, body=b"x" * 100))[0] == 200

    run(play, count=1, body_bytes=100)


def test_where_nobody_needs_a_token_pages_of_others_ask_nothing():
    async def play(at):
        at.gate.is_open = True
        assert (await at.ask("GET", SERVICE, token=None))[0] == 200
        assert (await at.ask("GET", SERVICE, "origin: https://evil.org", token=None))[0] == 403
        assert (await at.ask("GET", SERVICE, token=None, host="evil.org:80"))[0] == 421

    run(play)


class Talking(EvilApp):
    """Says one word, and the next one when it may."""

    async def answer(self, head, reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
        await writer.drain()
        await self.release.wait()
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")
        return True


async def talk(at):
    """A request whose answer has begun."""
    at.apps.append(Talking())
    at.gate.found = [await at.replica(len(at.apps) - 1)]
    reader, writer = await at.connect()
    writer.write(f"GET {SERVICE} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer good\r\n\r\n".encode())
    await reader.readuntil(b"one\r\n")
    return reader


def test_answers_come_as_they_are_made_and_end_after_a_switch():
    async def play(at):
        reader = await talk(at)
        at.gate.found = []
        await at.services.admitted(("digits", "good", ""), again=True)
        at.apps[0].release.set()
        await reader.readuntil(b"two\r\n")

    run(play, count=0)


def test_what_is_open_ends_with_the_right_to_it():
    async def play(at):
        reader = await talk(at)
        at.gate.error = UnknownCallerError("the token was revoked", "")
        assert await ended(reader)

    run(play, count=0)


def test_a_websocket_goes_through():
    async def play(at):
        reader, writer = await at.connect()
        lines = (
            f"GET {SERVICE}ws HTTP/1.1", "host: localhost", "authorization: Bearer good",
            "connection: Upgrade", "upgrade: websocket", "sec-websocket-version: 13",
            "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
        )  # fmt: skip
        writer.write("\r\n".join([*lines, "", ""]).encode())
        head = await reader.readuntil(b"hello")
        assert head.startswith(b"HTTP/1.1 101 ")
        writer.write(b"some bytes")
        assert await reader.readexactly(10) == b"some bytes"

    run(play, count=1)


def test_what_is_in_flight_is_told_and_what_is_over_once_more():
    async def play(at):
        slow = asyncio.create_task(at.ask("GET", SERVICE + "hang"))
        await at.apps[0].asked.wait()
        await at.services.tell_once()
        assert at.gate.told == {"ep-1-0": 1}
        at.apps[0].release.set()
        await slow
        while at.gate.told != {"ep-1-0": 0}:
            await at.services.tell_once()
        at.gate.told = None
        await at.services.tell_once()
        assert at.gate.told is None
        measured = at.services.measured("job-1", "digits")
        assert (measured["requests_per_s"] > 0, measured["errors_per_s"]) == (True, 0)
        assert measured["p50_s"] == measured["p95_s"] > 0

    run(play, count=1)


async def turn():
    """Let the others go on."""
    await asyncio.wait([asyncio.get_running_loop().create_task(asyncio.to_thread(int))])


def test_of_a_thousand_requests_during_a_switch_none_is_lost():
    """Old replicas end when they have answered what they have, once nobody sends them more."""
    answered = 0

    async def play(at):
        nonlocal answered
        old, at.gate.found = at.gate.found, at.gate.found[:2]
        models = set()

        async def client():
            nonlocal answered
            on = await at.connect()
            for _ in range(50):
                status, headers, body = await at.ask("POST", SERVICE + "x", body=b"hello", on=on)
                assert (status, body) == (200, b"hello")
                models.add(headers["trainmaster-model"])
                answered += 1

        async def switch():
            while answered < 300:
                await turn()
            at.gate.found, asked = old[2:], at.gate.asked
            while at.gate.asked < asked + 2:
                await turn()
            while at.services.in_flight("ep-1-0") or at.services.in_flight("ep-1-1"):
                await turn()
            for app in at.apps[:2]:
                app.server.close()

        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(client())
            group.create_task(switch())
        assert answered == 1000
        assert models == {"digits@1", "digits@2", "digits@3", "digits@4"}
        assert at.gate.asked > 2

    run(play, count=4, clock=lambda: answered / 100)


def test_services_have_no_page_at_the_host_of_an_app():
    async def play(at):
        at.proxy._grants = Grants(SimpleNamespace(cookie="c"))
        at.proxy._grants.label = lambda _: "te-1"
        status, _, body = await at.ask("GET", SERVICE)
        assert (status, b"no service at this host" in body, at.seen()) == (404, True, [0, 0])

    run(play)
