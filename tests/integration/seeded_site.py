"""A server in this process with many runs of each state: rows are written, nothing is run."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LONG = "a-name-of-a-hundred-characters-" + "x" * 69
WAITS = {"waits_for": "2 cores that digits has", "place": 1}
RECIPE = "name: digits\nexperiments:\n  train: {command: 'true', steps: 2000}\n"
LOG_LINE = "2026-11-26 12:00:00 INFO step {0} of a long run, and a word of it\n"
#: State, reason, and what its task says of every tenth run; the others have succeeded.
STATES = {
    0: ("RUNNING", None, ""),
    1: ("RUNNING", None, ""),
    2: ("DONE", "USER_ERROR", "exit code 1\nKeyError: 'missing_key'"),
    3: ("DONE", "CANCELLED", ""),
    4: ("DONE", "OOM", "killed: out of memory (hardware.memory: 0.3 GB)"),
}


class SeededSite:
    """With ``url`` and ``token``; `stop` ends it.

    Args:
        root: an empty directory.
        runs: how many.
    """

    def __init__(self, root: Path, runs: int = 120) -> None:
        import uvicorn

        from trainmaster.api.rest.app import make_app, make_state
        from trainmaster.control.task.layout import Home
        from trainmaster.db import AcceptedRun, Submission
        from trainmaster.service import Service
        from trainmaster.spec import Recipe
        from trainmaster.web.pages import add_pages

        home = Home(root, root / "cache", f"file://{root}/store", f"sqlite:///{root / 'trainmaster.db'}")
        self.service = Service(home)
        state = make_state(self.service, {"PATH": os.environ["PATH"]})
        app = make_app(state)
        add_pages(app)
        scopes = ["read", "run", "manage", "admin"]
        self.token = str(state.access.create_token("ann", scopes)["token"])
        recipe = Recipe.from_text(RECIPE, directory=root)
        first = AcceptedRun(
            "digits-seed", "digits", recipe.model_dump_json(), "r.yaml", "local", str(root), home.store_url,
            [("train", 1)], home=str(root), home_id=home.identity(), submission=Submission("ann", None),
        )  # fmt: skip
        self.service.database.release(self.service.database.create_run(first, time.time()), time.time())
        _multiply(root / "trainmaster.db", runs)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._server = uvicorn.Server(
            uvicorn.Config(app, port=port, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def large(self, run: str, tasks: int, reports: int, keys: Sequence[str], lines: int = 0) -> None:
        """Add a run that succeeded, whose tasks have reported much.

        Args:
            run: its id.
            tasks: how many.
            reports: of each task, one a step.
            keys: what is in each report.
            lines: of each task's log.
        """
        from trainmaster.db import AcceptedRun, ClosedAttempt, RunChange, Submission, TaskChange
        from trainmaster.spec import Recipe
        from trainmaster.spec.states import EndReason, State

        home, database, ends, now = (
            self.service.home,
            self.service.database,
            EndReason.SUCCEEDED,
            time.time() - 2 * 86400,
        )
        recipe = Recipe.from_text(RECIPE, directory=home.root)
        new = AcceptedRun(
            run, "digits", recipe.model_dump_json(), "r.yaml", "local", str(home.root), home.store_url,
            [("train", tasks)], home=str(home.root), home_id=home.identity(),
            submission=Submission("ann", None),
        )  # fmt: skip
        lease = database.create_run(new, now)
        changes: list[Any] = []
        for number in range(tasks):
            place = home.attempt(run, "train", number, 1)
            place.make_directories(["worker-0"])
            place.log("worker-0").write_text("".join(LOG_LINE.format(line) for line in range(lines)))
            with place.metrics("worker-0").open("w") as file:
                for step in range(1, reports + 1):
                    value = (1 + number % 7) / step + 0.01 * math.sin(step * 7.1)
                    file.write(json.dumps({"step": step, **dict.fromkeys(keys, value)}) + "\n")
            fields = {"parameters": {"lr": 0.01 * (number + 1)}, "metrics": dict.fromkeys(keys, 0.5)}
            closes = ClosedAttempt(1, ends, "", now, now + 40, None, "[]")
            begins = TaskChange(
                "train", number, 1, State.WAITING, State.RUNNING, creates=True, opens=True, fields=fields
            )
            stops = TaskChange("train", number, 1, State.RUNNING, State.STOPPING, ends)
            changes += [
                begins,
                stops,
                TaskChange("train", number, 1, State.STOPPING, State.DONE, ends, closes=closes),
            ]
        database.commit(lease, [*changes, RunChange(State.WAITING, State.DONE, ends)], now + 40)
        database.release(lease, now + 40)

    def stop(self) -> None:
        """End it."""
        self._server.should_exit = True
        self._thread.join(10)
        self.service.close()


def _multiply(file: Path, runs: int) -> None:
    """Makes many of the one run that is there."""
    now = time.time()
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        names = [row[1] for row in database.execute("PRAGMA table_info(run)")]
        (seed,) = database.execute(f"SELECT {', '.join(names)} FROM run").fetchall()
        database.execute("DELETE FROM experiment")
        database.execute("DELETE FROM run")
        for number in range(runs):
            state, reason, message = STATES.get(number % 20, ("DONE", "SUCCEEDED", ""))
            at = now - 600 * (number + 1)
            run = LONG if number == 5 else f"digits-{(number * 7919 + 0x10000000) * 16 + number:010x}"[:17]
            waits = number % 20 == 1
            changed = {
                "id": run, "state": state, "reason": reason, "created_at": at, "session_at": at,
                "ended_at": at + 17 if reason else None, "closed_at": at + 18 if reason else None,
                "queued_at": at if waits else None, "cost_usd": 0.0073 * (number % 9), "can_move": False,
                "queued_for": json.dumps(WAITS) if waits else None,
                "labels": json.dumps({"project": "paper"}) if number % 7 == 0 else "{}",
                "lease_expires_at": now + 3600, "lease_owner": f"pid {os.getpid()}",
            }  # fmt: skip
            row = [changed.get(name, value) for name, value in zip(names, seed, strict=True)]
            database.execute(f"INSERT INTO run VALUES ({', '.join('?' * len(row))})", row)
            made = database.execute(
                "INSERT INTO experiment (run_id, ordinal, name, state, reason, tasks_total)"
                " VALUES (?, 0, 'train', ?, ?, 1)",
                (run, state, reason),
            )
            metrics = {
                "step": 1240 if state == "RUNNING" else 2000,
                "loss": 1 / (number + 2),
                "accuracy": 0.9,
            }
            database.execute(
                "INSERT INTO task (experiment_id, number, state, reason, message, parameters, metrics)"
                " VALUES (?, 0, ?, ?, ?, ?, ?)",
                (made.lastrowid, state, reason, message, json.dumps({"lr": 0.01 * (number % 5 + 1)}),
                 json.dumps(metrics)),
            )  # fmt: skip
