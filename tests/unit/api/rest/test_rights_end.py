"""Rights that end, by what was begun with them: nothing more is given two seconds later.

On a server and a proxy over TCP, with the pauses that they have. In each column everything is begun with one
token, the right is taken away, and each thing is looked at.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from contextlib import suppress

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("h11", reason="the extra `apps` is not installed")
pytest.importorskip("websockets.sync.client", reason="the extra `tunnel` is not installed")

import uvicorn
from served_home import Served
from served_services import add_service
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from trainmaster.api.proxy.admissions import CHECK_S
from trainmaster.api.proxy.grants import Grants
from trainmaster.api.proxy.proxy import AppProxy
from trainmaster.api.proxy.services import ServiceProxy
from trainmaster.api.rest.limits import CHECK_EVERY_S
from trainmaster.db import tables as t
from trainmaster.service.apps.app_access import AppAccess
from trainmaster.service.endpoints.endpoint_access import EndpointAccess
from trainmaster.service.endpoints.endpoints import TARGETS_VALID_S
from trainmaster.service.quotes.quote_requests import LOOK_EVERY_S
from trainmaster.service.run_planning import RunPlanner
from trainmaster.service.workflows.triggers import LOOK_S
from trainmaster.spec.errors import InterruptedByUser
from trainmaster.testing.waits import until

RUN = "job-red"
RENTED = "name: {name}\nprovider: aws\n{on}experiments:\n  main: {{command: 'true', workers: 1}}\n"


class Member(threading.Thread):
    """A process of the run that says something for ever, by HTTP."""

    def __init__(self):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.is_over = threading.Event()
        self.start()

    def run(self):
        with suppress(OSError):
            while True:
                threading.Thread(target=self.speak, args=self.listener.accept()[:1], daemon=True).start()

    def speak(self, connection):
        with suppress(OSError), connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            while not self.is_over.wait(0.05):
                connection.sendall(b"2\r\nhi\r\n")

    def open(self, run, member, port, patience_s=0.0):
        """As `MemberConnections.open`."""
        return socket.create_connection(("127.0.0.1", self.port))

    def end(self):
        self.is_over.set()
        self.listener.close()


class Listener(threading.Thread):
    """Reads an answer to its end."""

    def __init__(self, port, head, body=b""):
        super().__init__(daemon=True)
        self.got, self.is_over = b"", False
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall("\r\n".join([*head, "", ""]).encode() + body)
        self.start()

    def run(self):
        with suppress(OSError), self.socket:
            while piece := self.socket.recv(65536):
                self.got += piece
        self.is_over = True

    @property
    def status(self):
        return int(self.got.split(b" ", 2)[1])


class Tunnel(threading.Thread):
    """A websocket to a port of a member."""

    def __init__(self, url, token):
        super().__init__(daemon=True)
        self.got, self.is_over, self.code = b"", False, None
        self.socket = connect(url, additional_headers={"authorization": f"Bearer {token}"})
        self.socket.send(b"GET / HTTP/1.1\r\n\r\n")
        self.start()

    def run(self):
        try:
            while True:
                self.got += self.socket.recv()
        except ConnectionClosed as closed:
            self.code = closed.rcvd.code if closed.rcvd else None
        self.is_over = True


class Place(Served):
    """A server and a proxy that listen, a manager, and all that he has begun with one token."""

    def __init__(self, root, patch):
        super().__init__(root)
        self.member, self.may_quote = Member(), threading.Event()
        state, database = self.state, self.service.database
        patch.setattr(state.members, "open", self.member.open)
        patch.setattr(RunPlanner, "quote", self.quote)
        patch.setattr(RunPlanner, "interrupt", lambda _: self.may_quote.set())
        rented = t.run.update().where(t.run.c.id == RUN).values(provider="aws", state="RUNNING", reason=None)
        database.write(lambda connection, _: connection.execute(rented))
        add_service(database, RUN, "digits", self.member.port)
        access = AppAccess(self.service, state.access, state.members)
        services = ServiceProxy(EndpointAccess(self.service, state.members, state.access))
        self.proxy = AppProxy(Grants(access), services)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.proxy_port = self.listener.getsockname()[1]
        config = uvicorn.Config(
            self.app, port=0, log_level="critical", lifespan="off", ws="websockets-sansio"
        )
        self.server = uvicorn.Server(config)
        self.listeners = []
        self.thread = threading.Thread(target=lambda: asyncio.run(self.serve()), daemon=True)
        self.thread.start()
        until(lambda: self.server.started, "the server listens")
        self.port = self.server.servers[0].sockets[0].getsockname()[1]
        state.quotes.start()
        state.triggers.start()
        state.accounts.create_user("ann")
        state.accounts.set_member("red", "ann", "manager")
        scopes = ["read", "run", "infer", "manage"]
        made = state.access.create_token("first", scopes, "red", account="ann")["token"]
        first = state.access.by_token(made)
        self.token = state.accounts.make_token(first, "second", scopes)["token"]

    def quote(self, *_):
        self.may_quote.wait(60)
        raise InterruptedByUser("it was interrupted", "")

    async def looked(self):
        """The rights of all who listen were looked at once."""
        for streams in (self.state.streams, self.state.tunnels, self.state.transfers):
            await streams.look()

    async def serve(self):
        self.loop = asyncio.get_running_loop()
        await self.proxy.start(self.listener)
        await self.server.serve()
        await self.proxy.stop()

    def end(self):
        self.may_quote.set()
        self.member.end()
        self.state.triggers.stop()
        self.state.quotes.stop()
        self.server.should_exit = True
        self.state.hubs.end()
        self.thread.join(60)
        for each in self.listeners:
            each.join(60)
        self.tunnel.socket.close()
        self.service.close()

    # --- asking -------------------------------------------------------------------------------------

    def api(self, method, path, body=None, token=None):
        """Status and JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"authorization": f"Bearer {token or self.token}", "content-type": "application/json"}
        connection.request(method, f"/api/v1{path}", None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text) if text else None

    def listen(self, path, *headers, method="GET", port=None, token=True, body=b""):
        bearer = [f"authorization: Bearer {self.token}"] if token else []
        head = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", "connection: close", *bearer, *headers]
        self.listeners.append(Listener(port or self.port, head, body))
        return self.listeners[-1]

    def watched(self, path):
        """As somebody sees it who may still."""
        return self.api("GET", path, token=self.tokens["red-manage"])[1]

    def begin(self):
        """Everything, with the one token."""
        assert self.api("POST", "/webhooks", {"target": "https://e.org/", "topics": ["run.ended"]})[0] == 201
        self.stream = self.listen(f"/api/v1/runs/{RUN}/stream")
        self.tunnel = Tunnel(f"ws://127.0.0.1:{self.port}/api/v1/runs/{RUN}/ports/1", self.token)
        code, found = self.api("POST", "/apps", {"kind": "port", "runs": [RUN], "port": 1})
        assert code == 201, found
        self.app_path = f"/apps/{found['app']}/"
        ticket = self.api("POST", f"/apps/{found['app']}/ticket")[1]["url"]
        enters = self.listen("/enter/" + ticket.partition("/enter/")[2], port=self.proxy_port, token=False)
        until(lambda: b"set-cookie: " in enters.got, "a cookie")
        self.cookie = enters.got.partition(b"set-cookie: ")[2].partition(b";")[0].decode()
        self.shown = self.of_app()
        self.asked = self.of_service()
        body = {"recipe": RENTED.format(name="nightly", on="on: webhook\n"), "max_usd": 1}
        assert self.api("POST", "/workflows", body)[0] == 201
        code, self.invited = self.api("POST", "/invites", {"role": "viewer"})
        assert code == 201
        quoted = {"recipe": RENTED.format(name="q", on=""), "policy": "cost-opt"}
        self.quoted = self.api("POST", "/quotes", quoted)[1]["id"]
        self.poll = self.listen(f"/api/v1/quotes/{self.quoted}?wait_s=30")
        upload = {"name": "a", "size_bytes": 1 << 24, "kind": "volume"}
        self.upload = self.api("POST", "/uploads", upload)[1]["upload"]
        self.sending = self.send(0, b"x" * 1000)
        speaks = (self.stream, self.tunnel, self.shown, self.asked)
        until(lambda: all(each.got for each in speaks), "all is open")
        until(lambda: self.watched(f"/quotes/{self.quoted}")["state"] == "RUNNING", "the quote is made")

    def of_app(self):
        return self.listen(self.app_path, f"cookie: {self.cookie}", port=self.proxy_port, token=False)

    def of_service(self):
        return self.listen("/services/digits/x", port=self.proxy_port)

    def send(self, offset, data):
        return self.listen(
            f"/api/v1/uploads/{self.upload}",
            f"upload-offset: {offset}",
            "content-type: application/offset+octet-stream",
            f"content-length: {1 << 24}",
            method="PATCH",
            body=data,
        )


def over(listener):
    until(lambda: listener.is_over, "it ends")
    return listener


def refused(listener):
    until(lambda: listener.got, "an answer")
    assert listener.status in (401, 403, 404), listener.got


def api_call(at):
    assert at.api("POST", "/quotes", {"recipe": RENTED.format(name="q", on="")})[0] in (401, 403)
    for path in ("/tokens", "/webhooks"):
        assert at.api("GET", path)[0] in (401, 403) or at.state.access.by_token(at.token).scopes == {"read"}


def stream(at):
    assert b"event: state" in over(at.stream).got


def websocket(at):
    assert over(at.tunnel).code == 1008


def app(at):
    assert not over(at.shown).got.endswith(b"0\r\n\r\n"), "half an answer must not look whole"
    refused(at.of_app())


def service(at):
    assert over(at.asked).status == 200
    refused(at.of_service())


def workflow(at):
    until(lambda: at.watched("/workflows/nightly")["state"] == "PAUSED", "the workflow is paused")
    last = at.watched("/workflows/nightly")["last"]
    again = ": take it over or register it again"
    assert (last["state"], last["message"].endswith(again)) == ("REFUSED", True)


def invite(at):
    answer = at.ask(None, "POST", "/join", data={"code": at.invited["code"], "name": "eve"})
    assert (answer.status_code, "eve" in {each["name"] for each in at.state.accounts.users()}) == (422, False)


def quote(at):
    until(lambda: at.watched(f"/quotes/{at.quoted}")["state"] == "DONE", "the quote ends")
    found = at.watched(f"/quotes/{at.quoted}")
    assert found["answer"] is None
    assert any(
        why in found["error"]["title"] for why in ("any more", "was revoked", "has expired", "may not")
    )
    assert at.may_quote.is_set(), "who measures is told"


def poll(at):
    until(lambda: at.poll.got, "an answer")
    if at.poll.status == 200:  # the quote has ended a moment before, for the same reason
        assert b'"answer":null' in at.poll.got
        return
    refused(at.poll)


def upload(at):
    refused(at.sending)
    refused(at.send(1000, b"y"))
    row = at.service.database.read(t.upload.select().where(t.upload.c.id == at.upload))[0]
    assert row["received_bytes"] == 0


THINGS = [api_call, stream, websocket, app, service, workflow, invite, quote, poll, upload]


def expire(at):
    over_now = t.token.update().where(t.token.c.name == "second").values(expires_at=time.time() - 1)
    at.service.database.change_rights(lambda connection, _: connection.execute(over_now))


RIGHTS = {
    "removed from the team": lambda at: at.state.accounts.remove_member("red", "ann"),
    "lowered to viewer": lambda at: at.state.accounts.set_member("red", "ann", "viewer"),
    "account disabled": lambda at: at.state.accounts.change_user("ann", is_disabled=True),
    "token revoked": lambda at: at.state.access.revoke_token("second"),
    "token expired": expire,
    "maker's token revoked": lambda at: at.state.access.revoke_token("first"),
}


@pytest.fixture(scope="module", params=RIGHTS)
def lost(request, tmp_path_factory):
    """Where that right was lost."""
    with pytest.MonkeyPatch.context() as patch:
        at = Place(tmp_path_factory.mktemp("place"), patch)
        try:
            at.begin()
            open_ones = (at.stream, at.tunnel, at.shown, at.asked, at.sending, at.poll)
            asyncio.run_coroutine_threadsafe(at.looked(), at.loop).result(60)
            assert not any(each.is_over for each in open_ones)
            assert at.api("GET", "/tokens")[0] == 200
            RIGHTS[request.param](at)
            yield at
        finally:
            at.end()


@pytest.mark.parametrize("thing", THINGS, ids=lambda thing: thing.__name__)
def test_what_was_begun_ends_with_the_right(lost, thing):
    thing(lost)


def test_no_right_is_good_for_longer_than_two_seconds_after_its_end():
    pauses_s = (CHECK_EVERY_S, CHECK_S, TARGETS_VALID_S, LOOK_S, LOOK_EVERY_S)
    assert max(pauses_s) < 2.0
