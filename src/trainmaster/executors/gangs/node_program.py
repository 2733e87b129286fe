"""Runs on a node, over SSH or as a plain process: starts and ends what we have there. It imports little.

Reads one JSON object from standard input and prints one. ``ray stop`` would end every Ray of the machine, so
what we started is found again by process id, start time and session.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from trainmaster.executors._processes import kept_environment
from trainmaster.spec.private_files import write_private
from trainmaster.spec.processes import start_ticks

#: An agent that is a process of its own, and what speaks with Ray. What they are told has their node's home.
AGENT_PROGRAM = "trainmaster.executors.ssh.node_agent"
HEAD_PROGRAM = "trainmaster.executors.ray.head"
#: A script of a node, and what it tells.
STATUSES = "statuses"
_START_TIMEOUT_S = 60.0
#: On a busy machine Ray sometimes gives up on its own raylet.
_TRIES = 2
#: Above those of other Rays, below those that the kernel gives to clients.
_PORTS = range(20000, 32600, 200)
#: Stands for one of the node's ports.
_PORT = re.compile(r"@(\d+)@")
_TERM_PATIENCE_S = 1.0
_DAEMON_PATIENCE_S = 8.0
_KILL_PATIENCE_S = 5.0


def main() -> None:
    """Do what standard input asks for."""
    request = json.loads(sys.stdin.buffer.read())
    directory = Path(request["directory"])
    answers = {"prepare": prepare, "start": start, "stop": stop, "status": status}
    answer = answers[request["do"]](directory, request)
    sys.stdout.write(json.dumps(answer) + "\n")


def prepare(directory: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Make the directories of a node where nothing else is started, and what other nodes call there."""
    for place in (directory, Path(request["home"])):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.chmod(0o700)
    write_private(directory / STATUSES, request[STATUSES].encode())
    return {"ok": True}


def start(directory: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Start Ray unless it runs; waits until it is up."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    if _pid(directory / "ray.pid"):
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
    write_private(directory / "ray.pid", f"{process.pid} {start_ticks(process.pid)}".encode())
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if request["started"] in log.read_text(errors="replace"):
            return process.pid, ""
        if process.poll() is not None:
            break
        time.sleep(0.05)
    _end_session(directory / "ray.pid")
    return 0, _last_words(log) or "Ray did not start in time"


def stop(directory: Path, request: dict[str, Any]) -> dict[str, Any]:
    """End Ray, what speaks with it, and, if asked, the supervisor with all members; remove what they left."""
    ended = []
    if _end_session(directory / "ray.pid"):
        ended.append("ray")
    if _end_agents(request["home"]):
        ended.append("agent")
    # last: an agent would start another one, and tell how members end as if nothing were done to them
    if request.get("members") and _end_holder(Path(request["home"]) / "supervisor" / "lock", request["home"]):
        ended.append("supervisor")
    shutil.rmtree(directory, ignore_errors=True)
    return {"ok": True, "ended": ended}


def _end_agents(home: str) -> bool:
    """End what speaks with the supervisor of a home, or with Ray, and is no child of Ray's."""
    mark = json.dumps(home).encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            if mark in command and any(
                program.encode() in command for program in (AGENT_PROGRAM, HEAD_PROGRAM)
            ):
                found.append(int(entry.name))
    for pid in found:
        _signal(pid, signal.SIGKILL)
    return bool(found) and _await(lambda: not any(map(start_ticks, found)), _KILL_PATIENCE_S)


def status(directory: Path, _request: dict[str, Any]) -> dict[str, Any]:
    """Whether our Ray runs here."""
    return {"ok": True, "pid": _pid(directory / "ray.pid")}


def _end_holder(lock: Path, mark: str) -> bool:
    """End the daemon whose process id is in a lock file, if it is still the one."""
    try:
        pid = int(lock.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return False
    if mark.encode() not in command:
        return False
    _signal(pid, signal.SIGTERM)
    if not _await(lambda: not start_ticks(pid), _DAEMON_PATIENCE_S):
        _signal(pid, signal.SIGKILL)
        _await(lambda: not start_ticks(pid), _KILL_PATIENCE_S)
    return True


def _end_session(record: Path) -> bool:
    pid = _pid(record)
    try:
        session = int(record.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return False
    # While its leader lives the session is ours; Ray's daemons overwrite what else would tell it.
    known = _of_session(session) if pid else {}
    if pid:
        _signal(pid, signal.SIGTERM)
        _await(lambda: not start_ticks(pid), _TERM_PATIENCE_S)
    deadline = time.monotonic() + _KILL_PATIENCE_S
    while time.monotonic() < deadline:
        left = {each for each, ticks in known.items() if start_ticks(each) == ticks}
        left.update(_members(session, record))
        if not left:
            break
        for each in left:
            _signal(each, signal.SIGKILL)
        time.sleep(0.05)
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


def _await(condition: Any, patience_s: float) -> bool:  # noqa: ANN401 - a callable; keeps imports few
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return "\n".join(lines[-12:])


if __name__ == "__main__":
    main()
