"""What the contract of executors stands on: a place of its own for each test, requests, waiting."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from trainmaster.executors.base import Capacity, Executor, GangRequest, GangStatus, MemberRequest, Phase
from trainmaster.executors.telemetry.logs import read_log
from trainmaster.testing.waits import until

RUN = "contract-0"
SECRET = "correct-horse-battery-staple"  # noqa: S105 - to look for, not to hide
PATIENCE_S = 20.0


class ContractTools:
    """The node and the helpers; see `ExecutorContract`.

    Every test gets a node of its own with 4 slots; ``executor`` is connected for the run `RUN`.
    """

    slots = 4

    @pytest.fixture
    def connect(self, tmp_path: Path) -> Iterator[Callable[[], Executor]]:
        """Makes unconnected executors for one and the same node, and ends all processes afterwards."""
        raise NotImplementedError("give your tests a `connect` fixture")

    def lose_supervisor(self, executor: Executor) -> None:
        """Kill, with SIGKILL, whatever starts the members."""
        pytest.skip("this executor has nothing that can be killed")

    @pytest.fixture
    def executor(self, connect: Callable[[], Executor]) -> Executor:
        """A connected one."""
        return self.open(connect())

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "attempts"
        self.directory.mkdir()

    # -- helpers

    def open(self, executor: Executor, slots: int | None = None, token: int = 0) -> Executor:
        """Connect with the environment of this process."""
        env = {**os.environ, "SECRET_OF_THE_CALLER": SECRET}
        executor.open(RUN, Capacity(slots=slots or self.slots), env, token)
        return executor

    def gang(self, task: str, *scripts: str, **options: object) -> GangRequest:
        """An attempt with one worker per script; it takes a slot per worker."""
        members = tuple(
            MemberRequest(name=f"worker-{index}", script=script, cwd=str(self.directory))
            for index, script in enumerate(scripts)
        )
        return self.request(task, members, **options)

    def request(self, task: str, members: Sequence[MemberRequest], **options: object) -> GangRequest:
        """An attempt of given members."""
        values: dict[str, Any] = {
            "attempt": f"{RUN}/train/{task}/1",
            "directory": str(self.directory / task),
            "members": tuple(members),
            "slots": len(members),
            "group": "train",
            "group_slots": 100,
            "grace_s": 5.0,
        }
        return GangRequest(**{**values, **options})

    def wait(self, executor: Executor, request: GangRequest, phase: Phase = Phase.EXITED) -> GangStatus:
        """Until an attempt has come to a phase."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            status = executor.observe([request.attempt])[0]
            if status.phase is phase:
                return status
            assert time.monotonic() < deadline, f"not {phase}: {status}"
            executor.changes(0.5)

    def run(self, executor: Executor, request: GangRequest) -> GangStatus:
        """Submit and wait for the end."""
        executor.submit([request])
        return self.wait(executor, request)

    def pid_in(self, name: str) -> int:
        """The process id that a script wrote to a file."""
        path = self.directory / name
        until(lambda: path.exists() and path.read_text().endswith("\n"), f"{name} is written")
        return int(path.read_text())

    def log(self, request: GangRequest, member: str = "worker-0") -> bytes:
        """All that a member has written."""
        return read_log(Path(request.directory), member, 0).data


def alive(pid: int) -> bool:
    """The process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def shell_quoted(text: str) -> str:
    """For use in a script."""
    return "'" + text.replace("'", "'\\''") + "'"
