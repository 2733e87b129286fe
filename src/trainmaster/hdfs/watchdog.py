"""Runs on a node: the parent of its daemons, which starts them again when they die.

``python -m trainmaster.hdfs.watchdog PLACE``, where ``PLACE/order.json`` says what is wanted. It ends, and
they with it, on SIGTERM, and when that file is gone: with the directory of its run. ``PLACE/state.json`` says
which daemons run; ``PLACE/pid`` is locked as long as it lives.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

ORDER: Final = "order.json"
STATE: Final = "state.json"
PID: Final = "pid"
LOG_BYTES: Final = 4 << 20
_LOOK_S: Final = 0.2
_GRACE_S: Final = 5.0
_PARENT_DEATH_SIGNAL: Final = 1
#: A daemon that ends so often within this time would go on doing so.
MOST_ENDS: Final = 5
WITHIN_S: Final = 300.0
_FIRST_PAUSE_S: Final = 0.5


def pause_s(ended_at_s: Sequence[float]) -> float | None:
    """How long to wait before a daemon is started again; None if it is given up.

    Args:
        ended_at_s: all times when it has ended, the last one now.

    >>> pause_s([100.0]), pause_s([100.0, 101.0]), pause_s([0, 1, 2, 3, 4.0])
    (0.5, 1.0, None)
    """
    now_s = ended_at_s[-1]
    lately = sum(now_s - each < WITHIN_S for each in ended_at_s)
    return None if lately >= MOST_ENDS else _FIRST_PAUSE_S * 2 ** (lately - 1)


class WatchedDaemon:
    """One daemon, which the watchdog starts again.

    Attributes:
        failed: what it said last, once it is given up.
    """

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_at_s: list[float] = []
        self._start_at_s = 0.0
        self.failed = ""

    def look(self, now_s: float) -> None:
        """Start it if it does not run and is due."""
        if self.failed or (self._process is not None and self._process.poll() is None):
            return
        if self._process is not None:
            self._process = None
            self._ended_at_s.append(now_s)
            wait_s = pause_s(self._ended_at_s)
            if wait_s is None:
                self.failed = last_words(self._log) or "it ended without a word"
                return
            self._start_at_s = now_s + wait_s
        if now_s >= self._start_at_s:
            if self._log.exists() and self._log.stat().st_size > LOG_BYTES:
                self._log.replace(self._log.with_suffix(".1"))
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._log.parent,
                    preexec_fn=_die_with_parent,
                )

    @property
    def state(self) -> dict[str, Any]:
        """What the user reads about it."""
        pid = self._process.pid if self._process else None
        return {"pid": pid, "ends": len(self._ended_at_s), "failed": self.failed}

    def end(self) -> None:
        """End it."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def last_words(log: Path) -> str:
    """The last line of a log that tells of something going wrong, or its last one."""
    try:
        lines = log.read_bytes()[-20_000:].decode(errors="replace").splitlines()
    except OSError:
        return ""
    said = [
        line.strip() for line in lines if line.strip() and not line.startswith(("\tat ", "/***", "SHUTDOWN"))
    ]
    told = [line for line in said if "Exception" in line or " FATAL " in line or " ERROR " in line]
    return (told or said or [""])[-1][:500]


def main(place: Path) -> int:
    """Look after the daemons until they are not wanted any more; the exit code."""
    with (place / PID).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0  # there is one
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        ended: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        order = json.loads((place / ORDER).read_bytes())
        daemons = [
            WatchedDaemon(name, command, place / name / "log") for name, command in order["daemons"].items()
        ]
        told: dict[str, Any] = {}
        try:
            while not ended and (place / ORDER).exists():
                for daemon in daemons:
                    daemon.look(time.monotonic())
                state = {daemon.name: daemon.state for daemon in daemons}
                if state != told:
                    write(place / STATE, state)
                    told = state
                time.sleep(_LOOK_S)
        except FileNotFoundError:  # its directory is being removed
            pass
        finally:
            for daemon in reversed(daemons):
                daemon.end()
            with contextlib.suppress(OSError):
                (place / STATE).unlink()
    return 0


def write(path: Path, what: object) -> None:
    """Write JSON; readers see it whole."""
    draft = path.with_name(f".{path.name}")
    draft.write_text(json.dumps(what))
    draft.replace(path)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
