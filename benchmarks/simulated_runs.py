"""A thousand running runs whose tasks are simulated: what drives them, and how long its turns take.

The drivers are those of a server: processes with a thread per run, real leases, commits, files and rows. Only
the tasks are none: `SimulatedExecutor` says that they run, and writes a line of metrics every two seconds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy as sa

from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, Submission
from trainmaster.db import tables as t
from trainmaster.executors.base import Capacity, GangRequest, GangStatus, MemberStatus, Phase, QueuePlace
from trainmaster.service import Service
from trainmaster.service.driving.driver import Driver, take_place
from trainmaster.spec import Recipe
from trainmaster.spec.states import EndReason, State

REPORT_S = 2.0
RECIPE = "name: simulated\nexperiments:\n  main: {command: 'true', steps: 100000}\n"


class SimulatedExecutor:
    """Gangs that run until they are stopped, and report; see `Executor`.

    Attributes:
        turns: seconds from the end of one wait to the beginning of the next, and how late the wait ended.
    """

    turns: ClassVar[list[tuple[float, float]]] = []

    def __init__(self, home: Home) -> None:
        self._home = home
        self._gangs: dict[str, GangStatus] = {}
        self._files: dict[str, Path] = {}
        self._news: dict[str, GangStatus] = {}
        self._step = 0
        self._reported_at = time.monotonic()
        self._back_at: float | None = None

    def open(self, run: str, capacity: Capacity, env: Mapping[str, str], token: int = 0) -> None:
        """All is there."""

    def submit(self, gangs: Sequence[GangRequest]) -> None:
        """They run at once."""
        for gang in gangs:
            now = time.time()
            members = tuple(MemberStatus(member.name, 1, now) for member in gang.members)
            self._files[gang.attempt] = Path(gang.members[0].env["TRAINMASTER_METRICS"])
            self._set(GangStatus(gang.attempt, Phase.RUNNING, members, started_at=now))

    def launch(self, attempt: str, env: Mapping[str, Mapping[str, str]]) -> None:
        """It runs already."""

    def observe(self, attempts: Sequence[str]) -> list[GangStatus]:
        """As they are."""
        return [self._gangs.get(each, GangStatus(each, Phase.UNKNOWN)) for each in attempts]

    def changes(self, timeout_s: float) -> list[GangStatus]:
        """Waits, and reports what is due."""
        began = time.monotonic()
        if not self._news:
            time.sleep(timeout_s)
        now = time.monotonic()
        if self._back_at is not None:
            self.turns.append((began - self._back_at, max(0.0, now - began - timeout_s)))
        if now - self._reported_at >= REPORT_S:
            self._reported_at = now
            self._report()
        news, self._news = list(self._news.values()), {}
        self._back_at = time.monotonic()
        return news

    def output(self) -> list[tuple[str, str]]:
        """Nothing is written."""
        return []

    def queue_place(self) -> QueuePlace | None:
        """There is room for all."""
        return None

    def stop(self, attempt: str, grace_s: float) -> None:
        """It ends at once."""
        gang = self._gangs.get(attempt)
        if gang is not None and gang.phase is Phase.RUNNING:
            now = time.time()
            members = tuple(
                MemberStatus(each.name, 1, each.started_at, now, None, 15, stopped=True)
                for each in gang.members
            )
            self._set(GangStatus(attempt, Phase.EXITED, members, started_at=gang.started_at, ended_at=now))

    def forget(self, attempts: Sequence[str]) -> None:
        """They are gone."""
        for each in attempts:
            self._gangs.pop(each, None)

    def close(self) -> None:
        """Nothing is open."""

    def _set(self, status: GangStatus) -> None:
        self._gangs[status.attempt] = self._news[status.attempt] = status

    def _report(self) -> None:
        self._step += 10
        for attempt, gang in self._gangs.items():
            if gang.phase is Phase.RUNNING:
                with self._files[attempt].open("a") as file:
                    file.write(json.dumps({"step": self._step, "loss": 1 / self._step}) + "\n")


def drive(number: int) -> None:
    """Be a driver with simulated executors until standard input ends; print what was seen as JSON."""
    Service.executor_of = lambda _, home: SimulatedExecutor(home)  # type: ignore[method-assign]
    service = Service.from_environment()
    assert take_place(service.home.root, number) is not None
    driver = Driver(service, os.environ, idle_s=1e9)
    import threading

    threading.Thread(target=driver.work, daemon=True).start()
    for line in sys.stdin:  # a line begins to measure anew, or asks for what was seen
        if line.strip() == "begin":
            SimulatedExecutor.turns.clear()
            began, used = time.monotonic(), time.process_time()
            continue
        turns = list(SimulatedExecutor.turns)
        seconds = time.monotonic() - began
        found = {
            "turns": len(turns),
            "turn_s": quantiles([work for work, _ in turns]),
            "overslept_s": quantiles([late for _, late in turns]),
            "cores": round((time.process_time() - used) / seconds, 3),
            "memory_mb": round(memory_mb(os.getpid()), 1),
            "threads": threading.active_count(),
        }
        print(json.dumps(found), flush=True)


def measure(env: dict[str, str], runs: int, drivers: int, seconds: float) -> dict[str, Any]:
    """Drive so many runs for a while; cancel some of them.

    Args:
        env: names an empty home.
        runs: how many.
        drivers: processes.
        seconds: how long to measure once all run.
    """
    service = Service(Home.from_environment(env))
    fill(service, runs)
    command = [sys.executable, __file__]
    processes = [
        subprocess.Popen(
            [*command, str(number)], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for number in range(drivers)
    ]
    try:
        began = time.monotonic()
        while count(service, State.RUNNING) < runs:
            if time.monotonic() - began > 600:
                raise SystemExit(f"{count(service, State.RUNNING)} of {runs} run after 600 s")
            time.sleep(0.5)
            print(
                round(time.monotonic() - began, 1),
                count(service, State.RUNNING),
                os.getloadavg()[0],
                flush=True,
            ) if os.environ.get("PROGRESS") else None
        all_run_s = time.monotonic() - began
        time.sleep(10)
        for process in processes:
            tell(process, "begin")
        time.sleep(seconds)
        found = []
        for process in processes:
            tell(process, "end")
            assert process.stdout is not None
            found.append(json.loads(process.stdout.readline()))
        cancels = [cancel_s(service, f"simulated-{number}") for number in range(0, runs, max(1, runs // 20))]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        service.close()
    return {
        "runs": runs,
        "all_run_s": round(all_run_s, 1),
        "measured_s": seconds,
        "drivers": found,
        "cancel_seen_s": quantiles(cancels),
    }


def tell(process: subprocess.Popen[str], line: str) -> None:
    """Write a line to a process."""
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def fill(service: Service, runs: int) -> None:
    """Accept runs of one recipe and one snapshot of code."""
    home = service.home
    code = home.root / "code"
    code.mkdir()
    recipe = Recipe.from_text(RECIPE, directory=code).model_dump_json()
    for number in range(runs):
        run = f"simulated-{number}"
        home.code_directory(run).mkdir(parents=True)
        new = AcceptedRun(
            run,
            "simulated",
            recipe,
            "recipe.yaml",
            "local",
            str(code),
            home.store_url,
            [("main", 1)],
            home=str(home.root),
            home_id=home.identity(),
            submission=Submission("bench", None),
        )
        service.database.create_run(new, time.time(), waits=True)


def count(service: Service, state: State) -> int:
    """How many runs are in a state."""
    query = sa.select(sa.func.count().label("runs")).where(t.run.c.state == state)
    return int(service.database.read(query)[0]["runs"])


def cancel_s(service: Service, run: str) -> float:
    """Seconds from the wish until the run is DONE."""
    began = time.monotonic()
    service.database.want_stop(run, EndReason.CANCELLED)
    while service.database.run_row(run)["state"] == State.RUNNING:
        if time.monotonic() - began > 60:
            raise SystemExit(f"{run} was not cancelled within a minute")
        time.sleep(0.01)
    return time.monotonic() - began


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Median, 99 % and maximum."""
    ordered = sorted(values)
    return {
        "p50": round(statistics.median(ordered), 4),
        "p99": round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 4),
        "max": round(ordered[-1], 4),
    }


def memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    drive(int(sys.argv[1]))
