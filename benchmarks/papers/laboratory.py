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
from pathlib import Path
from types import TracebackType
from typing import Any

TRAINMASTER = str(Path(sys.executable).with_name("trainmaster"))
JOBS = Path(__file__).resolve().parent / "jobs"
#: Of one run, its machines included; beyond it something hangs.
RUN_DEADLINE_S = 560.0
#: Reports, which come back by themselves, and what TensorFlow says on any machine without a GPU.
NOISE = re.compile(r"train/0: |[IEW]0000 |WARNING: All log messages before absl")


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


class Laboratory:
    """A lab, and runs on machines that are rented in it.

    Args:
        cpu: cores of this machine per vCPU.
        network: Mbit/s per published Mbit/s.
        files: what the jobs read; they travel to the hosts with the code.
    """

    def __init__(self, *, cpu: float, network: float, files: list[Path]) -> None:
        self.cpu, self.network = cpu, network
        self._directory = tempfile.TemporaryDirectory(
            prefix="trainmaster-papers-", ignore_cleanup_errors=True
        )
        self.work = Path(self._directory.name, "work")
        self.home = Path(self._directory.name, "home")
        self.env = {**os.environ, "TRAINMASTER_HOME": str(self.home), "COLUMNS": "200"}
        for name in ("TRAINMASTER_STORE", "TRAINMASTER_DATABASE", "TRAINMASTER_CATALOGUE"):
            self.env.pop(name, None)
        # Not the recipes, nor anything else that changes: the code is sent again when it does.
        shutil.copytree(JOBS, self.work / "code", ignore=shutil.ignore_patterns("__pycache__"))
        for file in files:
            shutil.copyfile(file, self.work / "code" / file.name)
        self._processes: list[subprocess.Popen[str]] = []
        self.run_id = ""  # of the newest run

    def __enter__(self) -> Laboratory:
        self._before = signal.signal(signal.SIGTERM, _leave)
        try:
            # Memory is not what these experiments are about: what the frameworks need, they have.
            self.call(
                "lab",
                "up",
                f"--cpu-scale={self.cpu}",
                f"--network-scale={self.network}",
                "--memory-scale=0.5",
            )
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
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
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
        began = time.monotonic()
        process = subprocess.Popen(
            [
                TRAINMASTER,
                "run",
                "recipe.yaml",
                "--provider=lab",
                "--yes",
                "--json",
                *(["--keep=10m"] if keep else []),
            ],
            env=self.env,
            cwd=self.work,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._processes.append(process)
        said: list[str] = []
        listener = threading.Thread(target=self._listen, args=(process, said, began, listen), daemon=True)
        listener.start()
        assert process.stdout
        try:
            process.wait(RUN_DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise ExperimentError(f"no end after {RUN_DEADLINE_S:.0f} s\n{''.join(said[-30:])}") from None
        listener.join(10)
        out = process.stdout.read()
        if process.returncode:
            raise ExperimentError(
                f"the run failed: {process.returncode}\n{out[-500:]}\n{''.join(said[-30:])}"
            )
        found = json.loads(out.splitlines()[-1])
        place = self.home / "runs" / found["run"] / "tasks" / "train" / "0" / "1"
        reports = {
            file.name.removesuffix(".metrics.jsonl"): [
                json.loads(line) for line in file.read_text().splitlines()
            ]
            for file in sorted(place.glob("*.metrics.jsonl"))
        }
        return Finished(found["run"], reports, time.monotonic() - began, found["cost_usd"])

    def _listen(
        self,
        process: subprocess.Popen[str],
        said: list[str],
        began: float,
        listen: Callable[[str], None] | None,
    ) -> None:
        """Passes on what a run says, with the time."""
        assert process.stderr
        for line in process.stderr:
            said.append(line)
            if started := re.match(r"(\S+): started", line):
                self.run_id = started[1]
            if not NOISE.match(line):
                print(f"{time.monotonic() - began:6.1f} s  {line}", end="", file=sys.stderr, flush=True)
            if listen:
                try:
                    listen(line)
                except Exception as error:  # noqa: BLE001 - else the run would wait for an answer without end
                    print(f"{error}; the run is ended", file=sys.stderr)
                    os.killpg(process.pid, signal.SIGKILL)


def _leave(signum: int, frame: Any) -> None:
    """So that a terminated script takes its lab with it."""
    sys.exit(128 + signum)
