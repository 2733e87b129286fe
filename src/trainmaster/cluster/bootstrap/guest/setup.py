"""Makes the virtual environment of a recipe's ``setup``: once, however many want it at the same time.

Read from standard input: this program's arguments (a line of JSON). It says ``@@have`` if it is there, else,
when all is over, ``@@log BASE64`` with the end of what was said, and then ``@@done`` or ``@@error REASON``.
"""

# ruff: noqa: T201 - it runs by itself, with the standard library of somebody else's Python
from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.cluster.bootstrap.guest.answering import Refused, answer, only_one

_VARIABLE = "TRAINMASTER_SETUP"
_END_TRIES = 200
_LOG_BYTES = 1 << 19
_WORDS_BYTES = 2000


def perform(order: dict[str, Any]) -> str:
    """Make it if it is not there; what to say."""
    path = Path(order["path"])
    log = path.with_name(path.name + ".log")
    path.parent.mkdir(parents=True, exist_ok=True)
    with only_one(path.with_name(path.name + ".lock"), "at this setup", order["wait_s"]):
        if _read(path / "ready") == order["identity"]:
            return "have"
        try:
            _make(path, log, order)
        finally:
            _end(path)
            print(f"@@log {base64.b64encode(_tail(log, _LOG_BYTES)).decode()}", flush=True)
    return "done"


def _make(path: Path, log: Path, order: dict[str, Any]) -> None:
    _end(path)  # left over by a process that was killed
    shutil.rmtree(path, ignore_errors=True)
    log.write_bytes(b"")
    python = order["python"]
    # With SSH_CLIENT bash would take itself for a login's and run its start-up files.
    env = {name: value for name, value in os.environ.items() if not name.startswith("SSH_")}
    env[_VARIABLE] = _marker(path)
    found = subprocess.run([python, "-I", "-c", "import ensurepip, venv"], capture_output=True, check=False)
    if found.returncode != 0:
        raise Refused(
            f"its {python} cannot make virtual environments: install python{order['minor']}-venv there "
            f"(Debian: apt install python{order['minor']}-venv)"
        )
    code = _run([python, "-m", "venv", str(path)], log, env, path.parent)
    if code == 0:
        env |= {"PATH": os.environ.get("PATH", os.defpath), **order["env"], "VIRTUAL_ENV": str(path)}
        env["PATH"] = f"{path / 'bin'}:{env['PATH']}"
        script = ["bash", "-euo", "pipefail", "-c", "--", order["script"], "setup"]
        code = _run(script, log, env, Path(order["cwd"]))
    if code != 0:
        words = _tail(log, _WORDS_BYTES).decode("utf-8", "replace").strip().splitlines()[-3:]
        raise Refused(f"setup {code} " + (" / ".join(words) if words else "without a word"))
    (path / "ready").write_text(order["identity"], encoding="utf-8")


def _run(command: list[str], log: Path, env: dict[str, str], cwd: Path) -> int:
    with log.open("ab") as output:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=cwd,
            check=False,
        )
    return done.returncode


def _end(path: Path) -> None:
    """Kill every process of a setup, also those in sessions of their own; they inherit its marker."""
    needle = f"{_VARIABLE}={_marker(path)}".encode()
    for _ in range(_END_TRIES):
        found = False
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # gone, or another user's
                if entry.name.isdigit() and needle in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
                    found = True
        if not found:
            return
        time.sleep(0.01)


def _marker(path: Path) -> str:
    """Differs from that of the same path in another container of the machine."""
    status = path.parent.stat()
    return f"{path} {status.st_dev}:{status.st_ino}"


def _tail(log: Path, limit_bytes: int) -> bytes:
    with contextlib.suppress(FileNotFoundError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - limit_bytes))
        return file.read()
    return b""


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8")
    return ""


if __name__ == "__main__":
    sys.exit(answer(perform))
