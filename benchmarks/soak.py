"""A server that works for long: `--minutes 60`; does what it holds stay flat?

Runs, uploads, 50 streams that are followed for some seconds each, checks of recipes, lists and tokens that
are made and revoked, all again and again. Twelve times one looks what the process of the server has of
memory, descriptors, threads and children, and its home of files. What has grown is from the fourth look on.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import options, report
from neighbours import recipe, token
from service import LIVE, SHORT, Server, end_all, home
from simulated_runs import memory_mb

from trainmaster.api.rest.limits import MAX_STREAMS

LOOKS = 12
#: The first ones are for warming up.
WARM = 3
FOLLOWED_S = 10.0


def held(server: Server) -> dict[str, int]:
    """What a server has at this moment."""
    pid, place = server.process.pid, Path(server.env["TRAINMASTER_HOME"])
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return {
        "memory_mb": round(memory_mb(pid)),
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": len(list(Path(f"/proc/{pid}/task").iterdir())),
        "children": sum(len(each.read_text().split()) for each in children),
        "database_kb": sum(each.stat().st_size for each in place.glob("trainmaster.db*")) // 1000,
        "uploads": sum(len(files) for _, _, files in os.walk(place / "store" / "uploads")),
    }


class Users:
    """They do everything again and again, each kind of thing in threads of its own.

    Attributes:
        over: set when they are to end.
        done: how often each was done, and what went wrong otherwise.
    """

    def __init__(self, server: Server, secret: str) -> None:
        self.server, self.secret = server, secret
        self.over, self.done = threading.Event(), Counter[str]()

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        """JSON of an answer, over a connection of its own; 429 is waited for."""
        told = {"Authorization": f"Bearer {self.secret}", "Content-Type": "application/json", **headers}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        connection = http.client.HTTPConnection(self.server.address, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, f"/api/v1{path}", data, told)
            answer = connection.getresponse()
            text = answer.read()
        if answer.status == 429:
            self.over.wait(float(answer.headers["retry-after"]))
            return self.ask(method, path, body, **headers) if not self.over.is_set() else {}
        if answer.status >= 400:
            raise OSError(f"{answer.status} {text[:80]!r}")
        return json.loads(text) if text else None

    def again(self, work: Callable[..., object], pause_s: float, *arguments: object) -> threading.Thread:
        """Do it until all is over."""

        def go_on() -> None:
            while not self.over.is_set():
                try:
                    work(*arguments)
                    self.done[work.__name__] += 1
                except (OSError, http.client.HTTPException) as error:
                    self.done[f"{work.__name__}: {error}"] += 1
                self.over.wait(pause_s)

        thread = threading.Thread(target=go_on, daemon=True)
        thread.start()
        return thread

    def follow(self, run: str, secret: str) -> None:
        """Some of what a run says, and away without a word."""
        connection = http.client.HTTPConnection(self.server.address, timeout=60)
        with contextlib.closing(connection):
            headers = {"Authorization": f"Bearer {secret}"}
            connection.request("GET", f"/api/v1/runs/{run}/stream", headers=headers)
            answer, end = connection.getresponse(), time.monotonic() + FOLLOWED_S
            if answer.status != 200:
                raise OSError(f"{answer.status} {answer.read()[:80]!r}")
            while time.monotonic() < end and answer.readline():
                pass

    def upload(self) -> None:
        """A mebibyte, which is given up."""
        found = self.ask("POST", "/uploads", {"name": "x", "size_bytes": 1 << 20, "kind": "volume"})
        piece = {"Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}
        self.ask("PATCH", f"/uploads/{found['upload']}", bytes(1 << 20), **piece)
        self.ask("DELETE", f"/uploads/{found['upload']}")

    def train(self) -> None:
        """A short run, to its end."""
        run = self.ask("POST", "/runs", {"recipe": SHORT})["run"]
        while not self.over.wait(0.5) and self.ask("GET", f"/runs/{run}")["state"] != "DONE":
            pass

    def check(self) -> None:
        """A recipe of 200 experiments."""
        self.ask("POST", "/recipes/check", {"recipe": recipe(200)})

    def read(self) -> None:
        """Lists."""
        for path in ("/runs?limit=50", "/models", "/budgets", "/queue"):
            self.ask("GET", path)

    def lend(self) -> None:
        """A token that is revoked."""
        name = f"t{time.monotonic_ns()}"
        self.ask("POST", "/tokens", {"name": name, "scopes": ["read"]})
        self.ask("DELETE", f"/tokens/{name}")


def main() -> None:
    arguments = options(__doc__ or "", minutes=10, streams=50, postgres=0)
    with home(bool(arguments.postgres)) as env:
        server = Server(env)
        looks = []
        try:
            users = Users(server, token(server, "owner", "--scopes", "admin"))
            run = users.ask("POST", "/runs", {"recipe": LIVE})["run"]
            secrets = [token(server, f"s{number}") for number in range(arguments.streams // MAX_STREAMS + 1)]
            threads = [
                users.again(users.follow, 0.1, run, secrets[number // MAX_STREAMS])
                for number in range(arguments.streams)
            ]
            everything = (users.upload, users.train, users.check, users.read, users.lend)
            threads += [users.again(each, 1.0) for each in everything for _ in range(2)]
            for _ in range(LOOKS):
                time.sleep(arguments.minutes * 60 / LOOKS)
                looks.append(held(server))
            users.over.set()
            for thread in threads:
                thread.join(60)
        finally:
            server.stop()
            end_all(env["TRAINMASTER_HOME"])
    grown = {key: looks[-1][key] - looks[WARM][key] for key in looks[0]}
    report("soak", {"minutes": arguments.minutes, "done": users.done, "looks": looks, "grown": grown})


if __name__ == "__main__":
    main()
