"""`port-forward` against `ssh -L`: bytes per second to a machine, without and with a server between.

The machine is an SSH server of this one, started for this. Each way takes turns, so that what else runs here
weighs on all; the ratios are what counts. Run it with `python benchmarks/port_forward.py`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trainmaster.api.port_forward import PortForward
from trainmaster.service.runs import member_connections
from trainmaster.service.runs.member_connections import MemberConnections
from trainmaster.service.runs.member_ways import SshWay
from trainmaster.transport.forwarding import SocketStream


@contextmanager
def ssh_server(root: Path) -> Iterator[tuple[str, ...]]:
    """The client's words for a server of this benchmark's own."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", root / name], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {
        "Port": port, "ListenAddress": "127.0.0.1", "HostKey": root / "host", "StrictModes": "no",
        "AuthorizedKeysFile": root / "user.pub", "PidFile": "none",
    }  # fmt: skip
    (root / "settings").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") or "sshd"
    Path("/run/sshd").mkdir(exist_ok=True)
    with subprocess.Popen([sshd, "-D", "-f", root / "settings"]) as process:
        words = ("ssh", "-p", str(port), "-i", str(root / "user"), "-o", "BatchMode=yes",
                 "-o", f"UserKnownHostsFile={root}/known", "-o", "StrictHostKeyChecking=no",
                 "-o", "LogLevel=ERROR", "-o", "ConnectionAttempts=30")  # fmt: skip
        try:
            yield words
        finally:
            process.terminate()


@contextmanager
def source(total_bytes: int) -> Iterator[int]:
    """A port that sends so much to what connects."""
    block = bytes(1 << 20)

    def send(stream: socket.socket) -> None:
        with stream, suppress(ConnectionError):  # a client that only looks whether it is there hangs up
            for _ in range(total_bytes >> 20):
                stream.sendall(block)

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                stream = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=send, args=(stream,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]


@contextmanager
def openssh(words: tuple[str, ...], port: int) -> Iterator[int]:
    """`ssh -L`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        local = int(free.getsockname()[1])
    command = [*words, "-L", f"{local}:localhost:{port}", "127.0.0.1", "echo up; exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield local
        process.terminate()


@contextmanager
def through_a_server(root: Path, port: int) -> Iterator[int]:
    """`port-forward` on a context."""
    import uvicorn

    from trainmaster.api.remote.connection import RestConnection
    from trainmaster.api.remote.tunnels import WebsocketStream
    from trainmaster.api.rest.app import make_app, make_state
    from trainmaster.control.task.layout import Home
    from trainmaster.service import Service

    home = Home(root, root / "cache", f"file://{root}/store", f"sqlite:///{root}/trainmaster.db")
    service = Service(home)
    state = make_state(service, {})
    state.submissions.need_entry = lambda *_: None  # type: ignore[method-assign] # there is no run
    state.members._service = SimpleNamespace(provider_of=lambda _: "aws")  # type: ignore[assignment]
    token = state.access.create_token("t", ["read", "run"])["token"]
    settings = {"ws": "websockets-sansio", "ws_per_message_deflate": False, "log_level": "warning"}
    server = uvicorn.Server(uvicorn.Config(make_app(state), port=0, **settings))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    connection = RestConnection(url, token)
    with PortForward(lambda: WebsocketStream(connection, "run", None, port), 0, print) as forward:
        yield forward.port
    server.should_exit = True
    thread.join()
    service.close()


def rate(port: int) -> float:
    """MB per second through a port."""
    began, total = time.perf_counter(), 0
    with socket.create_connection(("127.0.0.1", port)) as stream:
        while piece := stream.recv(1 << 18):
            total += len(piece)
    return total / 1e6 / (time.perf_counter() - began)


def main() -> None:
    """Print MB per second of each way, and its ratio to `ssh -L`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        words = stack.enter_context(ssh_server(root))
        way = SshWay("machine", words, "127.0.0.1", "home", "aws")
        member_connections.find_way = lambda *_, **__: way
        port = stack.enter_context(source(options.megabytes << 20))
        service: Any = SimpleNamespace(provider_of=lambda _: "aws")
        members = MemberConnections(service, {})
        stack.callback(members.close)
        direct = PortForward(lambda: SocketStream(members.open("run", None, port)), 0, print)
        ways = {
            "ssh -L": stack.enter_context(openssh(words, port)),
            "port-forward": stack.enter_context(direct).port,
            "port-forward through a server": stack.enter_context(through_a_server(root, port)),
        }
        for _ in range(options.rounds):
            for name, local in ways.items():
                rates.setdefault(name, []).append(rate(local))
    middle = {name: statistics.median(found) for name, found in rates.items()}
    print(
        json.dumps(
            {
                name: {"mb_per_s": round(found, 1), "of_ssh": round(found / middle["ssh -L"], 2)}
                for name, found in middle.items()
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
