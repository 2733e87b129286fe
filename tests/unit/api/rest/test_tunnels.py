"""Websockets to members: who may open which, and a terminal there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from concurrent.futures import CancelledError

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("websockets", reason="the extra `tunnel` is not installed")
from served_home import Served
from starlette.testclient import WebSocketDenialResponse

from trainmaster.api.rest import tunnels
from trainmaster.spec.errors import NotFoundError

API = "/api/v1/runs"
PATHS = ("ports/80", "exec?command=true")


def refused(served, who, run, path, **headers):
    """Status and problem of a websocket that is not opened."""
    if who:
        headers["authorization"] = f"Bearer {served.tokens[who]}"
    with (
        pytest.raises(WebSocketDenialResponse) as refusal,
        served.browser.websocket_connect(f"{API}/{run}/{path}", headers=headers),
    ):
        pass
    return refusal.value.status_code, refusal.value.json()


@pytest.mark.parametrize("path", PATHS)
def test_who_may_not_is_told_as_by_other_routes(served, path):
    assert refused(served, None, "job-red", path)[0] == 401
    assert refused(served, "red-read", "job-red", path)[0] == 403
    assert refused(served, "red-infer", "job-red", path)[0] == 403
    assert refused(served, "red-run", "job-blue", path)[0] == 404
    assert refused(served, "admin", "no-run", path)[0] == 404
    status, problem = refused(served, "red-user", "job-red", path)
    assert (status, "closed to others" in problem["title"]) == (403, True)
    version = {"trainmaster-version": "99.0"}
    assert refused(served, "red-user", "job-red", path, **version)[0] == 426


def test_a_cookie_opens_none_as_pages_of_others_can_send_it(served):
    caller = served.state.access.by_token(served.tokens["admin"])
    cookie = f"{served.state.cookie}={served.state.access.open_session(caller)}"
    assert refused(served, None, "job-own", "ports/80", cookie=cookie)[0] == 401


def test_its_clients_do_nothing_else_on_the_machine_of_the_server(served):
    assert served.state.members._is_for_others


def test_it_is_in_the_audit(served):
    refused(served, "red-user", "job-red", "ports/81")
    path = "/api/v1/audit?action=ports/81"
    (entry,) = served.ask("admin", "GET", path).json()["audit"]
    assert (entry["action"], entry["status"]) == (f"CONNECT {API}/job-red/ports/81", 403)


class Alone(Served):
    """A server that only its owner uses: the machines of its own are open to him."""

    def __init__(self, root):
        super().__init__(root)
        self.state.access.teams = list  # there are none
        (root / "runs" / "job-own" / "code").mkdir(parents=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    found = Alone(tmp_path_factory.mktemp("alone"))
    yield found
    found.service.close()


def test_a_shell_has_a_terminal_of_the_size_that_is_said(alone):
    headers = {"authorization": f"Bearer {alone.tokens['owner']}"}
    path = f"{API}/job-own/exec?term=xterm&columns=70&rows=20"
    with alone.browser.websocket_connect(path, headers=headers) as socket:
        socket.send_bytes(b"\0tty; stty size; echo $TERM\n")
        said = b""
        while b"xterm\r\n" not in said.partition(b"20 70")[2]:
            said += socket.receive_bytes()[1:]
        assert b"/dev/pts/" in said
        socket.send_bytes(b'\4{"columns": 99, "rows": 33}')
        socket.send_bytes(b"\0stty size; exit 7\n")
        while (message := socket.receive_bytes())[:1] != b"\3":
            said += message[1:]
        assert b"33 99" in said
        assert json.loads(message[1:]) == {"exit": 7}


def test_what_is_wrong_with_a_command_is_told(alone):
    headers = {"authorization": f"Bearer {alone.tokens['owner']}"}
    path = f"{API}/job-own/exec?command=true&member=worker-9"
    with alone.browser.websocket_connect(path, headers=headers) as socket:
        status = json.loads(socket.receive_bytes()[1:])
    assert (status["problem"]["status"], "worker-9" in status["problem"]["title"]) == (404, True)
    assert refused(alone, "owner", "job-own", "ports/70000")[0] == 422
    assert refused(alone, "owner", "job-own", "exec?term=${x}")[0] == 422


def test_a_command_ends_with_its_caller(alone, tmp_path):
    headers = {"authorization": f"Bearer {alone.tokens['owner']}"}
    pid = tmp_path / "pid"
    path = f"{API}/job-own/exec?command=echo $$ > {pid}; echo up; exec sleep 600"
    # The client cancels what has not ended by itself when it goes away: either is well.
    with (
        contextlib.suppress(CancelledError),
        alone.browser.websocket_connect(path, headers=headers) as socket,
    ):
        assert socket.receive_bytes() == b"\1up\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize("path", ["ports/9", "exec?command=true"])
def test_members_are_waited_for_in_threads_of_their_own(alone, monkeypatch, path):
    asked = []

    async def opens(user, work):
        asked.append(user)
        raise NotFoundError("no machine", "Wait.")

    monkeypatch.setattr(alone.state.openings, "run", opens)
    if path.startswith("ports"):
        assert refused(alone, "owner", "job-own", path)[0] == 404
    else:
        headers = {"authorization": f"Bearer {alone.tokens['owner']}"}
        with alone.browser.websocket_connect(f"{API}/job-own/{path}", headers=headers) as socket:
            assert json.loads(socket.receive_bytes()[1:])["problem"]["status"] == 404
    assert asked == ["o"]


@pytest.mark.parametrize("fails", [False, True])
def test_who_may_no_more_is_cut_off_also_if_his_client_reads_nothing(alone, tmp_path, monkeypatch, fails):
    """The command ends, although telling why waits for the client."""
    name = f"short-{fails}"
    token = alone.state.access.create_token(name, ["read", "run"])["token"]
    monkeypatch.setattr(tunnels, "_TELL_S", 0.01)
    monkeypatch.setattr(alone.state.tunnels, "_check_every_s", 0.01)
    monkeypatch.setattr(alone.state.tunnels, "_watching", None)  # that of the other tests' event loop
    (tmp_path / "pid").touch()
    asked = f"command=echo $$ > {tmp_path / 'pid'}; echo up; exec sleep 600"
    scope = {
        "type": "websocket", "path": f"{API}/job-own/exec", "raw_path": b"", "query_string": asked.encode(),
        "headers": [(b"authorization", f"Bearer {token}".encode()), (b"host", b"testserver")],
        "root_path": "", "scheme": "ws", "client": ("127.0.0.1", 1), "server": ("testserver", 80),
        "subprotocols": [], "state": {}, "extensions": {}, "asgi": {"version": "3.0"},
    }  # fmt: skip

    def look_fails(_):
        raise RuntimeError("a mistake")

    async def work():
        heard, never = iter([{"type": "websocket.connect"}]), asyncio.Event()

        async def receive():
            if (message := next(heard, None)) is not None:
                return message
            return await never.wait()

        async def send(message):
            if message["type"] == "websocket.accept":
                return
            if fails:
                monkeypatch.setattr(alone.state.tunnels, "_ask", look_fails)
            else:
                alone.state.access.revoke_token(name)
            await never.wait()

        async with asyncio.timeout(60):
            await alone.app(scope, receive, send)

    asyncio.run(work())
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
