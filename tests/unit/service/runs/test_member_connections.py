"""`MemberConnections`: streams to ports of members, on this machine and over a client like OpenSSH's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from contextlib import closing
from types import SimpleNamespace

import pytest

from trainmaster.service.runs import member_connections, member_ways
from trainmaster.service.runs.member_connections import MemberConnections
from trainmaster.service.runs.member_ways import SshWay
from trainmaster.service.users.caller import TooOftenError
from trainmaster.spec.errors import NotFoundError, NotListeningError, ProviderError, UsageError

#: Lets a socket file lead to a port as `ssh -L FILE:localhost:PORT` does, until its standard input ends.
CLIENT = """
import os, socket, sys, threading
place, _, port = sys.argv[sys.argv.index("-L") + 1].split(":")
if int(port) == 9:
    sys.exit("this machine is gone")
listener = socket.socket(socket.AF_UNIX)
listener.bind(place)
listener.listen()
def move(source, sink):
    while data := source.recv(65536):
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)
def serve():
    while True:
        near = listener.accept()[0]
        far = socket.create_connection(("127.0.0.1", int(port)))
        threading.Thread(target=move, args=(near, far), daemon=True).start()
        threading.Thread(target=move, args=(far, near), daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
print("welcome to this machine")
print(sys.argv[-1].split()[1].strip(";"), flush=True)
sys.stdin.read()
"""
#: Says back what it hears, in capitals; first at which port it listens.
SERVER = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    with listener.accept()[0] as stream:
        while data := stream.recv(65536):
            stream.sendall(data.upper())
"""


class Echo:
    """A process of a run that listens."""

    def __init__(self, run):
        environ = {**os.environ, "TRAINMASTER_RUN": run, "TRAINMASTER_ROLE": "worker"}
        environ["TRAINMASTER_INDEX"] = "0"
        self.process = subprocess.Popen([sys.executable, "-c", SERVER], env=environ, stdout=subprocess.PIPE)
        self.port = int(self.process.stdout.readline())

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def echo():
    with closing(Echo(f"run-{os.getpid()}")) as found:
        yield found


def connections(provider):
    return MemberConnections(SimpleNamespace(provider_of=lambda _: provider), {})


def said(stream, text):
    with stream:
        stream.sendall(text)
        stream.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: stream.recv(65536), b""))


def test_a_port_of_a_run_on_this_machine_and_no_other(echo, monkeypatch):
    run = f"run-{os.getpid()}"
    monkeypatch.setattr(member_ways, "members_of", lambda *_: {"worker-0", "worker-1"})
    local = connections("local")
    assert said(local.open(run, None, echo.port), b"abc") == b"ABC"
    assert said(local.open(run, "worker-0", echo.port), b"abc") == b"ABC"
    for other, member in (("another-run", None), (run, "worker-1")):
        with pytest.raises(NotListeningError, match=str(echo.port)):
            local.open(other, member, echo.port)
    with pytest.raises(NotFoundError, match="worker-0, worker-1"):
        local.open(run, "worker-2", echo.port)
    for port in (0, -1, 65536):
        with pytest.raises(UsageError, match="no port"):
            local.open(run, None, port)


def test_streams_to_a_machine_share_a_client_that_ends_with_them(echo, monkeypatch):
    way = SshWay("node-1", (sys.executable, "-c", CLIENT), "address", "home", "aws")
    monkeypatch.setattr(member_connections, "find_way", lambda *_, **__: way)
    with closing(connections("aws")) as found:
        results = []

        def ask(count):
            results.append(said(found.open("r", None, echo.port), b"a" * count))

        threads = [threading.Thread(target=ask, args=(count,)) for count in (10, 10_000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(results) == 2
        assert set("".join(each.decode() for each in results)) == {"A"}
        (forward,) = found._forwards.values()
        assert not forward.is_over
        with pytest.raises(ProviderError, match="this machine is gone"):
            found.open("r", None, 9)
        forward._process.kill()
        forward._process.wait()
        assert said(found.open("r", None, echo.port), b"again") == b"AGAIN"
        (forward,) = found._forwards.values()
    assert forward._process.returncode is not None
    assert not forward._place.exists()


@pytest.mark.parametrize("lets_in", [True, False])
def test_however_many_ask_at_once_a_machine_is_logged_in_to_once(echo, monkeypatch, lets_in):
    made, begun = [], threading.Barrier(8)
    way = SshWay("node-1", (sys.executable, "-c", CLIENT), "address", "home", "aws")
    monkeypatch.setattr(member_connections, "find_way", lambda *_, **__: (begun.wait(60) and None) or way)
    real = member_connections._Forward

    def make(*args):
        made.append(args)
        return real(*args)

    monkeypatch.setattr(member_connections, "_Forward", make)
    monkeypatch.setattr(member_connections, "_WAY_S", -1.0)
    with closing(connections("aws")) as found:
        results = []

        def ask():
            try:
                results.append(said(found.open("r", None, echo.port if lets_in else 9), b"a"))
            except ProviderError as error:
                results.append(str(error))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(made) == 1
        assert len(results) == 8
        if lets_in:
            assert set(results) == {b"A"}
        else:
            assert all("this machine is gone" in each for each in results)
        assert not found._making


def test_a_machine_that_never_lets_us_in_is_given_up(monkeypatch):
    silent = "import sys; print('welcome', flush=True); sys.stdin.read()"
    way = SshWay("node-1", (sys.executable, "-c", silent), "address", "home", "aws")
    monkeypatch.setattr(member_connections, "find_way", lambda *_, **__: way)
    monkeypatch.setattr(member_connections, "_READY_S", 0.01, raising=False)
    with (
        closing(connections("aws")) as found,
        pytest.raises(ProviderError, match=r"node-1 cannot be reached: it has not let us in"),
    ):
        found.open("r", None, 80)


def test_a_machine_that_says_a_line_without_end_is_heard_in_pieces(echo, monkeypatch):
    client = CLIENT.replace('print("welcome', 'print("x" * 100_000 + "welcome', 1)
    way = SshWay("node-1", (sys.executable, "-c", client), "address", "home", "aws")
    monkeypatch.setattr(member_connections, "find_way", lambda *_, **__: way)
    with closing(connections("aws")) as found:
        assert said(found.open("r", None, echo.port), b"abc") == b"ABC"


def test_ways_are_asked_for_once_in_a_while_and_forwards_are_bounded_and_ended_unasked(echo, monkeypatch):
    asked = []

    def find_way(_, run, *__, **___):
        asked.append(run)
        return SshWay("node-1", (sys.executable, "-c", CLIENT), "address", "home", "aws")

    monkeypatch.setattr(member_connections, "find_way", find_way)
    monkeypatch.setattr(member_connections, "_MAX_OF_RUN", 1)
    monkeypatch.setattr(member_connections, "_MAX", 2)
    monkeypatch.setattr(member_connections, "_WAY_S", 3600.0)
    monkeypatch.setattr(member_connections, "_LOOK_S", 0.01)
    with closing(connections("aws")) as found:
        for _ in range(2):
            assert said(found.open("r", None, echo.port), b"abc") == b"ABC"
        assert asked == ["r"]
        with pytest.raises(TooOftenError, match="1 of 1"):
            found.open("r", None, echo.port + 1)
        assert said(found.open("s", None, echo.port), b"abc") == b"ABC"
        with pytest.raises(TooOftenError, match="0 of 2"):
            found.open("t", None, echo.port)
        monkeypatch.setattr(member_connections, "_MAX_OF_RUN", 2)
        monkeypatch.setattr(member_connections, "_MAX", 3)
        with pytest.raises(ProviderError, match="gone"):
            found.open("r", None, 9)
        assert ("r", None) not in found._ways
        ended, tending = [each._process for each in found._forwards.values()], found._tending
        monkeypatch.setattr(member_connections, "_IDLE_S", -1.0)
        tending.join(60)
        assert not found._forwards
        assert all(each.returncode is not None for each in ended)
