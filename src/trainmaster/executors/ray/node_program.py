"""Starts and ends a Ray of ours on a node: further answers of `gangs.node_program`.

``ray stop`` would end every Ray of the machine, so what we started is found again by process id, start time
and session.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

from trainmaster.executors.gangs import node_program
from trainmaster.executors.gangs.node_program import KILL_PATIENCE_S, send_signal, wait_until
from trainmaster.executors.supervisor.processes import kept_environment
from trainmaster.spec.private_files import write_private
from trainmaster.spec.processes import start_ticks

_RECORD = "ray.pid"
_START_TIMEOUT_S = 60.0
#: On a busy machine Ray sometimes gives up on its own raylet.
_TRIES = 2
#: Above those of other Rays, below those that the kernel gives to clients.
_PORTS = range(20000, 32600, 200)
#: Stands for one of the node's ports.
_PORT = re.compile(r"@(\d+)@")
_TERM_PATIENCE_S = 1.0


def start(directory: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Start Ray unless it runs; waits until it is up."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    if _pid(directory / _RECORD):
        return {"ok": True, "port_base": int((directory / "ports").read_text())}
    if request["port_base"]:
        base, held = request["port_base"], None
    else:
        base, held = _choose_ports(request["ports"], request["taken"])
    if not base:
        return {
            "ok": False,
            "error": f"no {request['ports']} free ports in a row are left below {_PORTS[-1]}",
        }
    with contextlib.closing(held) if held else contextlib.nullcontext():  # until Ray has bound them
        write_private(directory / "ports", str(base).encode())
        request = json.loads(_PORT.sub(lambda found: str(base + int(found[1])), json.dumps(request)))
        return {**_start(directory, request), "port_base": base}


def _start(directory: Path, request: dict[str, Any]) -> dict[str, Any]:
    write_private(directory / "token", request["token"].encode())
    for name, text in request["tls"].items():
        write_private(directory / name, text.encode())
    write_private(directory / "node.json", json.dumps(request["node"]).encode())
    Path(request["node"]["home"]).mkdir(mode=0o700, parents=True, exist_ok=True)
    if importlib.util.find_spec("ray") is None:
        return {"ok": False, "error": "Ray is not installed there; pip install 'trainmaster[ray]'"}
    error = ""
    for _ in range(_TRIES):
        pid, error = _try(directory, request)
        if pid:
            return {"ok": True, "pid": pid}
    return {"ok": False, "error": error}


def _choose_ports(count: int, taken: list[int]) -> tuple[int, socket.socket | None]:
    """The first of so many free ports, and what keeps others of us from choosing them too.

    Those that were taken before at this address come last, the oldest first.
    """
    for base in sorted(_PORTS, key=lambda base: taken.index(base) if base in taken else -1):
        held = socket.socket(socket.AF_UNIX)
        try:
            held.bind(f"\0trainmaster-ports-{base}")  # no file: it is gone with us, and any user can
            if all(map(_is_free, range(base, base + count))):
                return base, held
        except OSError:
            pass
        held.close()
    return 0, None


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _try(directory: Path, request: dict[str, Any]) -> tuple[int, str]:
    """The process that was started, or 0 and why it ended."""
    log = directory / "ray.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            request["command"],
            env={**kept_environment(), **request["env"]},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=directory,
        )
    write_private(directory / _RECORD, f"{process.pid} {start_ticks(process.pid)}".encode())

    def is_up() -> bool:
        return request["started"] in log.read_text(errors="replace")

    wait_until(lambda: is_up() or process.poll() is not None, _START_TIMEOUT_S)
    if is_up():
        return process.pid, ""
    _end_session(directory / _RECORD)
    return 0, _last_words(log) or "Ray did not start in time"


def stop(directory: Path, request: dict[str, Any]) -> dict[str, Any]:
    """End Ray, then all else of ours there."""
    own = ["ray"] if _end_session(directory / _RECORD) else []
    answer = node_program.stop(directory, request)
    return {**answer, "ended": [*own, *answer["ended"]]}


def status(directory: Path, _request: dict[str, Any]) -> dict[str, Any]:
    """Whether our Ray runs here."""
    return {"ok": True, "pid": _pid(directory / _RECORD)}


def _end_session(record: Path) -> bool:
    pid = _pid(record)
    try:
        session = int(record.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return False
    # While its leader lives the session is ours; Ray's daemons overwrite what else would tell it.
    known = _of_session(session) if pid else {}
    if pid:
        send_signal(pid, signal.SIGTERM)
        wait_until(lambda: not start_ticks(pid), _TERM_PATIENCE_S)

    def is_ended() -> bool:
        left = {each for each, ticks in known.items() if start_ticks(each) == ticks}
        left.update(_members(session, record))
        for each in left:
            send_signal(each, signal.SIGKILL)
        return not left

    wait_until(is_ended, KILL_PATIENCE_S)
    record.unlink(missing_ok=True)
    return bool(pid)


def _members(session: int, record: Path) -> list[int]:
    """Processes of the session that we started; a number that is used again must not count."""
    mark = os.fsencode(record.parent)
    found = []
    for pid in _of_session(session):
        with contextlib.suppress(OSError):
            entry = Path(f"/proc/{pid}")
            if mark in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes():
                found.append(pid)
    return found


def _of_session(session: int) -> dict[int, int]:
    """Living processes of a session, and when each was started."""
    found = {}
    for pid in [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]:
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session and (ticks := start_ticks(pid)):
                found[pid] = ticks
    return found


def _pid(record: Path) -> int:
    """The process that was recorded, 0 when it has ended."""
    try:
        pid, ticks = map(int, record.read_text().split())
    except (OSError, ValueError):
        return 0
    return pid if start_ticks(pid) == ticks else 0


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return "\n".join(lines[-12:])


ANSWERS = {"start": start, "stop": stop, "status": status}
