"""What users of a server can take from each other: `--parts checks,reads`.

checks: recipes are checked by several users as fast as they are let; the server's memory, and others' reads.
reads: one page of runs after the other over kept connections; the same from a bare application beside it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from common import TRAINMASTER, options, report, workshop
from run_lists import fill
from service import Client, Server, end_all
from simulated_runs import memory_mb, quantiles

from trainmaster.control.task.layout import Home
from trainmaster.service import Service

#: FastAPI and uvicorn with one route that answers the same bytes: no token, no database.
BARE = """
import socket, sys
import uvicorn
from fastapi import FastAPI, Request, Response
app, page = FastAPI(), open(sys.argv[1], "rb").read()
@app.get("/api/v1/runs")
def runs(request: Request, limit: int = 50) -> Response:
    return Response(page, media_type="application/json")
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run(sockets=[listening])
"""


def recipe(experiments: int) -> str:
    """A flat one, for rented machines: a team's."""
    return "name: x\nprovider: aws\nexperiments:\n" + "".join(
        f"  e{at}: {{command: a}}\n" for at in range(experiments)
    )


def token(server: Server, name: str, *team: str) -> str:
    """A new one that may only read."""
    command = [TRAINMASTER, "token", "create", name, "--scopes", "read", *team, "--json"]
    made = subprocess.run(command, env=server.env, check=True, stdout=subprocess.PIPE)
    return str(json.loads(made.stdout)["token"])


def cpu_s(pid: int) -> float:
    """That a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def family_mb(pid: int) -> float:
    """Resident memory of a process and of those that it has started."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    pids = {pid, *(int(each) for found in children for each in found.read_text().split())}
    with contextlib.suppress(FileNotFoundError):
        return sum(memory_mb(each) for each in pids)
    return memory_mb(pid)


def checks(server: Server, users: int, count: int) -> dict[str, Any]:
    """Recipes of 1,000 experiments, and in between larger ones, which are refused."""
    tokens = [token(server, f"user-{number}", "--team", "news") for number in range(users)]
    reader = Client(server, token(server, "reader"))
    done: list[int] = []
    small, large = (json.dumps({"recipe": recipe(number)}) for number in (1000, 20_000))

    def read(seconds: float) -> list[float]:
        times, end = [], time.monotonic() + seconds
        while time.monotonic() < end or not times:
            began = time.monotonic()
            reader.ask("GET", "/runs?limit=50")
            times.append(time.monotonic() - began)
            time.sleep(0.05)
        return times

    def ask(mine: str) -> None:
        connection = http.client.HTTPConnection(server.address, timeout=120)
        headers = {"Authorization": f"Bearer {mine}", "Content-Type": "application/json"}
        while len(done) < count:
            connection.request(
                "POST", "/api/v1/recipes/check", large if len(done) % 10 == 9 else small, headers
            )
            answer = connection.getresponse()
            answer.read()
            if answer.status == 429:
                time.sleep(float(answer.headers["retry-after"]))
            else:
                done.append(answer.status)

    before, memory = read(3), [family_mb(server.process.pid)]
    threads = [threading.Thread(target=ask, args=(each,)) for each in tokens]
    began, used = time.monotonic(), server.cpu_s()
    for thread in threads:
        thread.start()
    during = []
    while any(thread.is_alive() for thread in threads):
        during += read(1)
        if len(done) >= len(memory) * count // 5:
            memory.append(family_mb(server.process.pid))
    took = time.monotonic() - began
    return {
        "checks": len(done),
        "refused_as_too_large": done.count(422),
        "took_s": round(took, 1),
        "cpu_of_server_s": round(server.cpu_s() - used, 2),
        "memory_mb_with_processes": [round(each) for each in memory],
        "memory_mb_of_server_after": round(memory_mb(server.process.pid)),
        "reads_before_s": quantiles(before),
        "reads_during_s": quantiles(during),
    }


def asked(address: str, pid: int, headers: dict[str, str], clients: int, seconds: float) -> dict[str, Any]:
    """Requests of so many clients, each once a second, or as fast as answers come."""
    end, times = time.monotonic() + seconds, list[float]()

    def ask(number: int) -> None:
        connection = http.client.HTTPConnection(address, timeout=60)
        time.sleep(number / clients)
        while time.monotonic() < end:
            began = time.monotonic()
            connection.request("GET", "/api/v1/runs?limit=50", headers=headers)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            times.append(time.monotonic() - began)
            time.sleep(max(0.0, began + 1 - time.monotonic()))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    began, used = time.monotonic(), cpu_s(pid)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used = cpu_s(pid) - used
    return {
        "requests": len(times),
        "per_s": round(len(times) / (time.monotonic() - began), 1),
        "ms_of_cpu_each": round(1000 * used / len(times), 2),
        "per_s_and_core": round(len(times) / used),
        "answer_s": quantiles(times),
    }


def reads(server: Server, clients: int, seconds: float) -> dict[str, Any]:
    """Pages of 50 runs, beside the bare application with the same page."""
    mine = token(server, "lists")
    page = json.dumps(Client(server, mine).ask("GET", "/runs?limit=50"))
    place = Path(server.env["TRAINMASTER_HOME"]) / "page.json"
    place.write_text(page)
    headers = {"Authorization": f"Bearer {mine}"}
    ours = asked(server.address, server.process.pid, headers, clients, seconds)
    command = [sys.executable, "-c", BARE, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as bare:
        assert bare.stdout is not None
        theirs = asked(f"127.0.0.1:{bare.stdout.readline().strip()}", bare.pid, headers, clients, seconds)
        bare.kill()
    return {"clients": clients, "page_bytes": len(page), "ours": ours, "bare": theirs}


def main() -> None:
    arguments = options(__doc__ or "", parts="checks,reads", users=12, checks=500, clients=200, seconds=12)
    directory, env = workshop()
    with directory:
        service = Service(Home.from_environment(env))
        fill(service, 1000)
        service.close()
        subprocess.run(
            [TRAINMASTER, "team", "create", "news"], env=env, check=True, stdout=subprocess.DEVNULL
        )
        server = Server(env)
        result = {}
        try:
            if "checks" in arguments.parts:
                result["checks"] = checks(server, arguments.users, arguments.checks)
            if "reads" in arguments.parts:
                result["reads"] = reads(server, arguments.clients, arguments.seconds)
        finally:
            end_all(env["TRAINMASTER_HOME"])
    report("neighbours", result)


if __name__ == "__main__":
    main()
