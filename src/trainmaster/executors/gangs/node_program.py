"""Runs on a node, over SSH or as a plain process: ends what we have there. It imports little.

Reads one JSON object from standard input and prints one. An engine that starts processes of its own on nodes
has further answers, in a module that the object names: `RecordedCluster.answers`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from trainmaster.spec.processes import start_ticks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Answer = Callable[[Path, dict[str, Any]], dict[str, Any]]

#: What speaks with a supervisor or an engine is one of these, and is told the node's home as JSON.
_PROGRAMS = b"trainmaster.executors."
_DAEMON_PATIENCE_S = 8.0
KILL_PATIENCE_S = 5.0


def main() -> None:
    """Do what standard input asks for."""
    request = json.loads(sys.stdin.buffer.read())
    answers: dict[str, Answer] = {"stop": stop}
    if module := request.get("answers"):
        answers |= import_module(module).ANSWERS
    answer = answers[request["do"]](Path(request["directory"]), request)
    sys.stdout.write(json.dumps(answer) + "\n")


def stop(directory: Path, request: dict[str, Any]) -> dict[str, Any]:
    """End our programs there and, if asked, the supervisor with all members; remove what they left."""
    ended = []
    if _end_programs(request["home"]):
        ended.append("agent")
    # last: an agent would start another one, and tell how members end as if nothing were done to them
    if request.get("members") and _end_holder(Path(request["home"]) / "supervisor" / "lock", request["home"]):
        ended.append("supervisor")
    shutil.rmtree(directory, ignore_errors=True)
    return {"ok": True, "ended": ended}


def _end_programs(home: str) -> bool:
    """End what speaks with the supervisor of a home, or with its engine, and is no child of the engine's."""
    mark = json.dumps(home).encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            if mark in command and _PROGRAMS in command:
                found.append(int(entry.name))
    for pid in found:
        send_signal(pid, signal.SIGKILL)
    return bool(found) and wait_until(lambda: not any(map(start_ticks, found)), KILL_PATIENCE_S)


def _end_holder(lock: Path, mark: str) -> bool:
    """End the daemon whose process id is in a lock file, if it is still the one."""
    try:
        pid = int(lock.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return False
    if mark.encode() not in command:
        return False
    send_signal(pid, signal.SIGTERM)
    if not wait_until(lambda: not start_ticks(pid), _DAEMON_PATIENCE_S):
        send_signal(pid, signal.SIGKILL)
        wait_until(lambda: not start_ticks(pid), KILL_PATIENCE_S)
    return True


def wait_until(condition: Callable[[], bool], patience_s: float) -> bool:
    """Whether it comes true in time."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def send_signal(pid: int, number: int) -> None:
    """To a process, if it is there."""
    with contextlib.suppress(OSError):
        os.kill(pid, number)


if __name__ == "__main__":
    main()
