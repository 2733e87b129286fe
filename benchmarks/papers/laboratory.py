"""`Laboratory`: a lab of its own for an experiment, in a home of its own; nothing of it stays."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any

TRAINMASTER = str(Path(sys.executable).with_name("trainmaster"))
JOBS = Path(__file__).resolve().parent / "jobs"
#: Of one run, its machines included; beyond it something hangs. `make seeds` ends a whole script earlier.
RUN_DEADLINE_S = 1800.0
#: A machine that is silent for so long is given up; on a busy machine none may answer for a minute.
PATIENCE = "5m"
#: Reports, which come back by themselves, and what TensorFlow says on any machine without a GPU.
NOISE = re.compile(r"train/0: |\S+/0: step=|(\S+ \| )?([IEW]0000 |WARNING: All log messages before absl)")


class ExperimentError(Exception):
    """A run or the lab failed; the text has what it said."""


@dataclass(frozen=True)
class Finished:
    """One run.

    Attributes:
        reports: what each member reported, by member, such as ``worker-0``.
        seconds: from its start until its end, machines included.
        cost_usd: at the published prices of the machines.
    """

    run: str
    reports: dict[str, list[dict[str, Any]]]
    seconds: float
    cost_usd: float


class Call:
    """A command under way, which is to print one JSON object at its end; what it says is passed on.

    Attributes:
        run_id: of the run that it has started, once it says so.
        seconds: from its start until its end.
    """

    def __init__(
        self, command: list[str], env: dict[str, str], place: Path, listen: Callable[[str], None]
    ) -> None:
        self.run_id = ""
        self._said: list[str] = []
        self._began = time.monotonic()
        self.seconds = 0.0
        self._process = subprocess.Popen(
            command,
            env=env,
            cwd=place,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, args=(listen,), daemon=True)
        self._listener.start()

    @property
    def is_over(self) -> bool:
        """It has ended."""
        return self._process.poll() is not None

    @property
    def said(self) -> str:
        """The end of what it has said."""
        return "".join(self._said[-30:])

    def end(self, deadline_s: float) -> dict[str, Any]:
        """Wait for it.

        Raises:
            ExperimentError: it did not succeed, or not within so long.
        """
        try:
            self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise ExperimentError(f"no end after {deadline_s:.0f} s\n{self.said}") from None
        self.seconds = time.monotonic() - self._began
        self._listener.join(10)
        assert self._process.stdout
        out = self._process.stdout.read()  # short: the pipe has room for it
        if self._process.returncode:
            raise ExperimentError(f"it failed: {self._process.returncode}\n{out[-500:]}\n{self.said}")
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    def first(self, deadline_s: float) -> dict[str, Any]:
        """The object that it prints while it goes on.

        Raises:
            ExperimentError: it ended without one, or there is none after so long.
        """
        assert self._process.stdout
        if not wait([self._process.stdout], deadline_s) or not (line := self._process.stdout.readline()):
            raise ExperimentError(f"it does not print what it should\n{self.said}")
        found: dict[str, Any] = json.loads(line)
        return found

    def interrupt(self) -> None:
        """As Ctrl-C does; waits for its end."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Whatever of it is still there."""
        if not self.is_over:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _listen(self, listen: Callable[[str], None]) -> None:
        """Passes on what a run says, with the time."""
        assert self._process.stderr
        for line in self._process.stderr:
            self._said.append(line)
            if started := re.match(r"(\S+): started", line):
                self.run_id = started[1]
            if not NOISE.match(line):
                print(f"{time.monotonic() - self._began:6.1f} s  {line}", end="", file=sys.stderr, flush=True)
            try:
                listen(line)
            except Exception as error:  # noqa: BLE001 - else the run would wait for an answer without end
                print(f"{error}; the run is ended", file=sys.stderr)
                self.kill()


class Laboratory:
    """A lab, and runs on machines that are rented in it.

    Args:
        cpu: cores of this machine per vCPU.
        network: Mbit/s per published Mbit/s.
        files: what the jobs read; they travel to the hosts with the code.
        memory: share of the published memory. It is not what these experiments are about: what the
            frameworks need, they have.
        credits: so many times as fast as on EC2 CPU credits run out; 0: they do not.
    """

    def __init__(
        self, *, cpu: float, network: float, files: list[Path], memory: float = 0.5, credits: float = 0
    ) -> None:
        self._scales = {
            "cpu-scale": cpu,
            "network-scale": network,
            "memory-scale": memory,
            "credits": credits,
        }
        self._directory = tempfile.TemporaryDirectory(
            prefix="trainmaster-papers-", ignore_cleanup_errors=True
        )
        self.work = Path(self._directory.name, "work")
        self.home = Path(self._directory.name, "home")
        self.env = {
            **os.environ,
            "TRAINMASTER_HOME": str(self.home),
            "XDG_CONFIG_HOME": str(Path(self._directory.name, "config")),  # no server that is in use
            "COLUMNS": "200",
            "TRAINMASTER_NODE_PATIENCE": PATIENCE,
        }
        for name in ("TRAINMASTER_STORE", "TRAINMASTER_DATABASE", "TRAINMASTER_CATALOGUE"):
            self.env.pop(name, None)
        # Not the recipes, nor anything else that changes: the code is sent again when it does.
        shutil.copytree(JOBS, self.work / "code", ignore=shutil.ignore_patterns("__pycache__"))
        for file in files:
            shutil.copyfile(file, self.work / "code" / file.name)
        self._calls: list[Call] = []

    def __enter__(self) -> Laboratory:
        self._before = signal.signal(signal.SIGTERM, _leave)
        try:
            self.call("lab", "up", *(f"--{name}={value}" for name, value in self._scales.items()))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends whatever runs here, and the lab."""
        for call in self._calls:
            call.kill()
        try:
            if (self.home / "lab").exists():
                self.call("lab", "down")
        finally:
            signal.signal(signal.SIGTERM, self._before)
            self._directory.cleanup()

    def call(self, *arguments: str) -> str:
        """A command of Trainmaster's; what it prints.

        Raises:
            ExperimentError: it failed.
        """
        done = subprocess.run(
            [TRAINMASTER, *arguments],
            env=self.env,
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode:
            raise ExperimentError(
                f"trainmaster {' '.join(arguments)}: {done.returncode}\n{done.stderr[-3000:]}"
            )
        return done.stdout

    @property
    def run_id(self) -> str:
        """Of the newest run."""
        return self._calls[-1].run_id

    def delay(self, one_way_ms: float) -> None:
        """Between all hosts, each way; also for what already runs."""
        self.call("lab", "delay", "all", "all", f"{one_way_ms:g}" if one_way_ms else "none")

    def run(
        self, recipe: str, *, keep: bool = False, listen: Callable[[str], None] | None = None
    ) -> Finished:
        """Rents what the recipe needs (or takes what an earlier one kept), and runs it.

        Args:
            recipe: YAML; its code is the directory of the jobs, with the files.
            keep: leave the machines for the next run.
            listen: is called with each line that it says, its members included, in a thread.

        Raises:
            ExperimentError: it did not succeed.
        """
        (self.work / "recipe.yaml").write_text(recipe)
        options = ["--provider=lab", "--yes", "--json", *(["--keep=10m"] if keep else [])]
        call = self.start("run", "recipe.yaml", *options, listen=listen)
        found = call.end(RUN_DEADLINE_S)
        place = self.home / "runs" / found["run"] / "tasks" / "train" / "0" / "1"
        reports = {
            file.name.removesuffix(".metrics.jsonl"): [
                json.loads(line) for line in file.read_text().splitlines()
            ]
            for file in sorted(place.glob("*.metrics.jsonl"))
        }
        return Finished(found["run"], reports, call.seconds, found["cost_usd"])

    def start(self, *arguments: str, listen: Callable[[str], None] | None = None) -> Call:
        """A command of Trainmaster's that runs beside what follows.

        Args:
            arguments: of it.
            listen: is called with each line that it says, in a thread.
        """
        call = Call([TRAINMASTER, *arguments], self.env, self.work, listen or (lambda line: None))
        self._calls.append(call)
        return call


def _leave(signum: int, frame: Any) -> None:
    """So that a terminated script takes its lab with it."""
    sys.exit(128 + signum)
