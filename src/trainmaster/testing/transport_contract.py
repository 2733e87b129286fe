"""What every way to a machine must keep: inherit `TransportContract`; give it a transport and a target."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainmaster.transport.base import (
    CommandError,
    Connection,
    Exchange,
    RemoteTimeoutError,
    Target,
    Transport,
    UnreachableError,
)
from trainmaster.transport.pool import ConnectionPool

_PATIENCE_S = 60.0


class TransportContract:
    """Inherited by the tests of each transport. The machine's files must be seen from here, too."""

    @pytest.fixture
    def transport(self) -> Transport:
        """What connects."""
        raise NotImplementedError("give the contract a transport")

    @pytest.fixture
    def target(self) -> Target:
        """A machine that takes connections."""
        raise NotImplementedError("give the contract a target")

    @pytest.fixture
    def connection(self, transport: Transport, target: Target) -> Iterator[Connection]:
        """An open one."""
        with transport.connect(target) as connection:
            yield connection

    def test_a_command_runs_and_says_how_it_ended(self, connection: Connection, target: Target) -> None:
        """Its output, what it says on the side, its exit code, also where a signal ended it."""
        assert connection.target == target
        result = connection.run("read line; echo out $line; echo err >&2; exit 3", data=b"hello\n")
        assert (result.code, result.out, result.err) == (3, "out hello\n", "err\n")
        assert connection.run("kill -TERM $$").code == 128 + 15
        assert connection.run("wc -c", data=(b"x" * 100_000 for _ in range(10))).out.strip() == "1000000"
        assert connection.run("exit 0", data=b"nobody reads it" * 100_000).code == 0
        assert connection.shell("for i in 1 2\ndo echo $i\ndone\n").out == "1\n2\n"

    def test_a_command_that_must_not_fail(self, connection: Connection) -> None:
        """The error says why, and with which code."""
        assert connection.check("echo well") == "well\n"
        with pytest.raises(CommandError, match="no such thing") as caught:
            connection.check("echo no such thing >&2; exit 4")
        assert caught.value.code == 4

    def test_of_a_long_answer_the_end_is_kept(self, connection: Connection) -> None:
        """No log fills our memory."""
        result = connection.run("head -c 3000000 /dev/zero | tr '\\0' x; echo END", limit_bytes=1000)
        assert len(result.out) == 1000
        assert result.out.endswith("xEND\n")
        assert result.truncated

    def test_a_command_that_is_late_ends_with_all_it_has_started(
        self, connection: Connection, tmp_path: Path
    ) -> None:
        """And the connection outlives it."""
        sign = tmp_path / "pid"
        with pytest.raises(RemoteTimeoutError, match="not done after"):
            connection.run(f"sh -c 'echo $$ > {sign}; exec sleep 300'; true", timeout_s=2.0)
        pid = int(sign.read_text())
        assert connection.check("echo well") == "well\n"
        deadline = time.monotonic() + _PATIENCE_S
        while connection.run(f"grep -v ') Z ' /proc/{pid}/stat").code == 0:
            assert time.monotonic() < deadline, "sleep still runs"

    def test_an_exchange_asks_before_it_sends(self, connection: Connection) -> None:
        """What is sent depends on a line that is awaited."""
        heard: list[str] = []

        def answer(line: str) -> list[bytes]:
            heard.append(line)
            return [b"yes\n"]

        talk = Exchange(
            "read a; echo noise; echo want $a; read b; echo got $b", answer, b"7\n", expects="want"
        )
        assert connection.exchange(talk).out == "noise\nwant 7\ngot yes\n"
        assert heard == ["want 7"]

    def test_a_stream_carries_bytes_both_ways(self, connection: Connection) -> None:
        """Until either end hangs up; and an echo of a million bytes is whole."""
        data = os.urandom(1_000_000)
        with connection.stream("exec cat") as stream:
            stream.settimeout(_PATIENCE_S)
            for begin in range(0, len(data), 10_000):
                stream.sendall(data[begin : begin + 10_000])
                assert _read(stream, 10_000) == data[begin : begin + 10_000]
            stream.shutdown(socket.SHUT_WR)
            assert stream.recv(1) == b""
        with connection.stream("echo bye") as stream:
            stream.settimeout(_PATIENCE_S)
            assert _read(stream, 4) == b"bye\n"
            assert stream.recv(1) == b""

    def test_directories_go_there(self, connection: Connection, tmp_path: Path) -> None:
        """With links, rights, and names that a shell would take apart."""
        source, there = tmp_path / "source", tmp_path / "it's here"
        (source / "deep" / "empty").mkdir(parents=True)
        (source / "deep" / "a b'c").write_bytes(b"x" * 1_000_000)
        (source / "run.sh").touch(mode=0o755)
        (source / "link").symlink_to("run.sh")
        connection.upload(source, str(there))
        assert (there / "deep" / "a b'c").read_bytes() == b"x" * 1_000_000
        assert (there / "deep" / "empty").is_dir()
        assert (there / "link").is_symlink()
        assert os.access(there / "run.sh", os.X_OK)

    def test_ports_lead_to_the_other_end(self, connection: Connection) -> None:
        """And back."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            for way in (connection.forward,):
                with (
                    way("127.0.0.1", port) as entrance,
                    socket.create_connection(("127.0.0.1", entrance), _PATIENCE_S) as client,
                ):
                    accepted, _ = server.accept()
                    with accepted:
                        client.sendall(b"ping")
                        assert _read(accepted, 4) == b"ping"

    def test_one_that_was_closed_says_so(self, transport: Transport, target: Target) -> None:
        """Its streams end; a keeper opens another one."""
        keeper = ConnectionPool(transport)
        first = keeper.use(target, lambda it: it)
        stream = first.stream("exec sleep 300")
        first.close()
        first.close()
        assert first.is_closed
        with stream:
            stream.settimeout(_PATIENCE_S)
            assert stream.recv(1) == b""
        with pytest.raises(UnreachableError):
            first.run("true")
        assert keeper.use(target, lambda it: it.check("echo well")) == "well\n"
        keeper.close()


def _read(stream: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (piece := stream.recv(size - len(found))):
        found += piece
    return found
