"""The server: its start, lists, live pages, what is sent to it, a thousand runs, pages on a slow phone.

`--parts start,lists,live,submits,runs,pages` chooses; `--postgres 1` takes a private PostgreSQL.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from common import TRAINMASTER, machine, options, report, spread, workshop
from page_loads import first_rows
from run_lists import fill
from simulated_runs import measure, memory_mb, quantiles

from trainmaster.api.rest.limits import MAX_STREAMS
from trainmaster.control.task.layout import Home
from trainmaster.service import Service
from trainmaster.service.users.access import Access

#: What any server of this kind does before it knows anything of Trainmaster.
BARE = "import time, fastapi, uvicorn, jinja2; fastapi.FastAPI(); print('ready', flush=True); time.sleep(60)"
SHORT = "name: short\nexperiments:\n  main: {command: 'true'}\n"
LIVE = """
name: live
experiments:
  main:
    command: |
      for step in $(seq 1 100000); do
        echo "{\\"step\\": $step, \\"loss\\": 0.$step}" >> "$TRAINMASTER_METRICS"; sleep 1
      done
"""


class Server:
    """`trainmaster server` on a home of its own."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env
        began = time.monotonic()
        self.process = subprocess.Popen(
            [TRAINMASTER, "server", "--port", "0", "--json"], env=env, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline())
        self.ready_s = time.monotonic() - began
        self.memory_mb = memory_mb(self.process.pid)
        self.url, self.setup_url = said["url"], said["setup_url"]
        self.address = urlsplit(self.url).netloc

    def token(self) -> str:
        """A new one."""
        command = [TRAINMASTER, "token", "create", "bench", "--scopes", "read,run", "--json"]
        made = subprocess.run(command, env=self.env, check=True, stdout=subprocess.PIPE)
        return str(json.loads(made.stdout)["token"])

    def cpu_s(self) -> float:
        """That it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End it; its drivers go on for a while."""
        self.process.terminate()
        self.process.wait()


class Client:
    """One connection to a server."""

    def __init__(self, server: Server, token: str) -> None:
        self._connection = http.client.HTTPConnection(server.address, timeout=120)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The answer."""
        data = None if body is None else json.dumps(body)
        self._connection.request(method, f"/api/v1{path}", data, self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status >= 400:
            raise SystemExit(f"{method} {path}: {answer.status} {text[:500]!r}")
        return json.loads(text)


@contextlib.contextmanager
def home(is_postgres: bool) -> Iterator[dict[str, str]]:
    """Variables that name a new home, on either database."""
    directory, env = workshop()
    with directory, contextlib.ExitStack() as stack:
        if is_postgres:
            from trainmaster.testing.private_postgres import PrivatePostgres

            server = stack.enter_context(PrivatePostgres())
            env["TRAINMASTER_DATABASE"] = server.new_url()
        try:
            yield env
        finally:
            end_all(env["TRAINMASTER_HOME"])


def end_all(directory: str) -> None:
    """End whatever still works for a home: servers, drivers, tasks."""
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"TRAINMASTER_HOME={directory}".encode() in environment.read_bytes():
                os.kill(int(environment.parent.name), signal.SIGKILL)
    time.sleep(1)


def start(env: dict[str, str], runs: int) -> dict[str, Any]:
    """From the command to ready, and its memory then; beside importing FastAPI and uvicorn alone."""
    ready, memory, bare = [], [], []
    for _ in range(runs):
        server = Server(env)
        ready.append(server.ready_s)
        memory.append(server.memory_mb)
        server.stop()
        began = time.monotonic()
        with subprocess.Popen([sys.executable, "-c", BARE], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            bare.append(time.monotonic() - began)
            process.kill()
    return {"ready_s": spread(ready), "bare_s": spread(bare), "memory_mb": spread(memory)}


def lists(env: dict[str, str], listed: int, clients: int, seconds: float) -> dict[str, Any]:
    """Pages of 50 of many runs: each client asks for one every second, newest and from the middle in turn."""
    service = Service(Home.from_environment(env))
    fill(service, listed)
    service.close()
    server = Server(env)
    token = server.token()
    times: dict[str, list[float]] = {"first": [], "middle": []}
    pages = {"first": "/runs?limit=50", "middle": f"/runs?limit=50&cursor=old-{listed // 2:05d}"}
    end = time.monotonic() + seconds

    def ask(number: int) -> None:
        client = Client(server, token)
        time.sleep(number / clients)
        while time.monotonic() < end:
            for name, path in pages.items():
                began = time.monotonic()
                assert len(client.ask("GET", path)["runs"]) == 50
                times[name].append(time.monotonic() - began)
                time.sleep(max(0.0, began + 1 - time.monotonic()))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    used = server.cpu_s()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cores = (server.cpu_s() - used) / seconds
    server.stop()
    found = {name: quantiles(values) for name, values in times.items()}
    return {"listed": listed, "clients": clients, "asked_per_s": clients, "cores": round(cores, 3), **found}


def live(env: dict[str, str], pages: int, seconds: float) -> dict[str, Any]:
    """The server's CPU while so many pages follow a run that reports each second."""
    server = Server(env)
    token = server.token()
    client = Client(server, token)
    run = client.ask("POST", "/runs", {"recipe": LIVE})["run"]
    while client.ask("GET", f"/runs/{run}")["state"] != "RUNNING":
        time.sleep(0.2)
    service = Service(Home.from_environment(env))
    access = Access(service.database)
    tokens = [access.create_token(f"page-{n}", ["read"])["token"] for n in range(0, pages, MAX_STREAMS)]
    service.close()
    waiting, got = selectors.DefaultSelector(), 0
    host, port = server.address.rsplit(":", 1)
    began, used = time.monotonic(), server.cpu_s()
    for number in range(pages):
        token = tokens[number // MAX_STREAMS]
        stream = socket.create_connection((host, int(port)))
        line = f"GET /api/v1/runs/{run}/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
        stream.sendall(line.encode())
        waiting.register(stream, selectors.EVENT_READ)
    answered: set[int] = set()
    events = 0

    def read() -> int:
        nonlocal events
        read_bytes = 0
        for key, _ in waiting.select(0.5):
            piece = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
            if not piece or b"HTTP/1.1 4" in piece:
                raise SystemExit(f"a stream has ended: {piece!r}")
            if told := piece.count(b"event: "):
                answered.add(key.fd)
                events += told
            read_bytes += len(piece)
        return read_bytes

    while len(answered) < pages:  # what was before they came is sent to each
        read()
    opening_s, opened_s = server.cpu_s() - used, time.monotonic() - began
    events, used, began = 0, server.cpu_s(), time.monotonic()
    while time.monotonic() < began + seconds or events < pages * seconds / 4:
        got += read()
    used, passed_s = server.cpu_s() - used, time.monotonic() - began
    memory = memory_mb(server.process.pid)
    server.stop()
    return {
        "pages": pages,
        "cores": round(used / passed_s, 4),
        "events": events,
        "cpu_us_per_event": round(used / events * 1e6),
        "opening_cpu_s": round(opening_s, 2),
        "opened_s": round(opened_s, 2),
        "bytes_per_page_and_s": round(got / pages / passed_s),
        "memory_mb": round(memory, 1),
    }


def submits(env: dict[str, str], runs: int, clients: int) -> dict[str, Any]:
    """So many runs sent by several clients: until each is accepted, and until all have ended."""
    server = Server(env)
    token = server.token()
    times: list[float] = []

    def send(number: int) -> None:
        client = Client(server, token)
        for _ in range(number, runs, clients):
            began = time.monotonic()
            client.ask("POST", "/runs", {"recipe": SHORT})
            times.append(time.monotonic() - began)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(clients)]
    began, used = time.monotonic(), server.cpu_s()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    accepted_s, cpu_s = time.monotonic() - began, server.cpu_s() - used
    client = Client(server, token)
    while client.ask("GET", f"/runs?limit={runs}&state=SUCCEEDED")["runs"][runs - 1 :] == []:
        if time.monotonic() - began > 600:
            raise SystemExit("not all runs have ended after 600 s")
        time.sleep(0.5)
    ended_s = time.monotonic() - began
    server.stop()
    return {
        "runs": runs,
        "clients": clients,
        "accepted_s": round(accepted_s, 2),
        "server_cpu_s": round(cpu_s, 2),
        "each_s": quantiles(times),
        "ended_s": round(ended_s, 1),
    }


def main() -> None:
    """Measure what was chosen."""
    arguments = options(
        __doc__ or "",
        parts="start,lists,live,submits,runs,pages",
        postgres=0,
        starts=5,
        listed=10_000,
        clients=20,
        watching=500,
        sent=100,
        running=1000,
        seconds=30,
    )
    drivers = len(os.sched_getaffinity(0))
    parts = {
        "start": lambda env: start(env, arguments.starts),
        "lists": lambda env: lists(env, arguments.listed, arguments.clients, arguments.seconds),
        "live": lambda env: live(env, arguments.watching, arguments.seconds),
        "submits": lambda env: submits(env, arguments.sent, 4),
        "runs": lambda env: measure(env, arguments.running, drivers, arguments.seconds),
        "pages": lambda env: pages(env),
    }
    found: dict[str, Any] = {"database": "postgresql" if arguments.postgres else "sqlite"}
    for name in arguments.parts.split(","):
        with home(bool(arguments.postgres)) as env:
            load = machine()["load"]
            found[name] = {**parts[name](env), "load_before": load, "load_after": machine()["load"]}
            print(json.dumps({name: found[name]}), file=sys.stderr)
    report("service", found)


def pages(env: dict[str, str]) -> dict[str, Any]:
    """Weight and first row of each page on a slow phone."""
    service = Service(Home.from_environment(env))
    fill(service, 1000)
    service.close()
    server = Server(env)
    client = Client(server, server.token())
    run = client.ask("POST", "/runs", {"recipe": SHORT})["run"]
    while client.ask("GET", f"/runs/{run}")["state"] != "DONE":
        time.sleep(0.5)
    try:
        return first_rows(server.setup_url, run)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
