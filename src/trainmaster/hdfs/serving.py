"""`serve`: the daemons of one node, formatted, started and known to each other; `end` ends them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.hdfs.configuration import CLASSES, DATANODE, NAMENODE, Daemon
from trainmaster.hdfs.hadoop import Hadoop, find_hadoop, heap_mib
from trainmaster.hdfs.namesystem import ask_namenode, in_words
from trainmaster.hdfs.watchdog import ORDER, PID, STATE, last_words, write
from trainmaster.spec.errors import ProviderError, UsageError, fails_as
from trainmaster.spec.plain_json import kept

_WATCHDOG: Final = "trainmaster.hdfs.watchdog"
_START_S: Final = 180.0
_END_S: Final = 15.0
_FORMAT_S: Final = 180.0
_LOOK_S: Final = 0.1
_DATANODE_HEAP_MIB: Final = 512
_MOST_RESERVED_BYTES: Final = 1 << 30
_PAGES: Final = ("hdfs", "datanode", "static", "secondary")


@dataclass(frozen=True, slots=True)
class RunningHdfs:
    """An HDFS that runs.

    Attributes:
        address: of its NameNode.
        rpc_port: for ``hdfs://``.
        http_port: for ``webhdfs://``.
        id: another one has another.
    """

    address: str
    rpc_port: int
    http_port: int
    id: str

    @property
    def web(self) -> str:
        """Host and port of WebHDFS."""
        return f"{self.address}:{self.http_port}"


def served_as_json(served: RunningHdfs) -> dict[str, str | int]:
    """To be written down; `typed` reads it."""
    return {name: getattr(served, name) for name in RunningHdfs.__slots__}


def serve(
    place: Path,
    address: str,
    served: RunningHdfs | None,
    *,
    copies: int,
    hadoop: str = "",
    venv: str = "",
    environment: Mapping[str, str] | None = None,
) -> RunningHdfs:
    """Have a DataNode run on this node, and the NameNode if there is none yet; may be repeated.

    Args:
        place: a directory of the run's own.
        address: of this node, where the others reach it.
        served: the HDFS that it joins, or goes on with; None: it begins a new one, or goes on with its own.
        copies: of each block.
        hadoop: a directory with Hadoop, as the recipe names it.
        venv: what the recipe's ``setup`` has made.
        environment: variables; None for this process's.

    Raises:
        UsageError: there is no Java or Hadoop here.
        ProviderError: the daemons do not start.
    """
    known = kept(RunningHdfs, place / "served.json")
    if served is None or served.address == address:  # here is the NameNode: it goes on with what it has
        has_files = (place / NAMENODE / "name/current/VERSION").exists()
        is_meant = known is not None and (served is None or known.id == served.id)
        served = known if has_files and is_meant else None
    if known is not None and known != served:
        end(place)
        shutil.rmtree(place)
    place.mkdir(parents=True, exist_ok=True)
    if known is None or known != served or not is_guarded(place):
        found = find_hadoop(hadoop, venv, os.environ if environment is None else environment)
        served = _begin(place, address, served, copies, found)
    assert served is not None
    _wait(place, served)
    return served


def is_guarded(place: Path) -> bool:
    """Whether somebody looks after the daemons of a place."""
    try:
        with (place / PID).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def end(place: Path) -> None:
    """End the daemons of a place."""
    with contextlib.suppress(OSError):
        (place / ORDER).unlink()
    until = time.monotonic() + _END_S
    while is_guarded(place) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    if is_guarded(place):
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((place / PID).read_text()), signal.SIGKILL)  # what it guards dies with it


def _begin(place: Path, address: str, served: RunningHdfs | None, copies: int, hadoop: Hadoop) -> RunningHdfs:
    is_first = served is None
    if served is None:
        rpc_port, http_port = _free_ports(address, 2)
        served = RunningHdfs(address, rpc_port, http_port, secrets.token_hex(8))
    heads = served.address == address
    reserved = _reserved_bytes(place)
    pages = _pages(place, hadoop)
    commands: dict[str, list[str]] = {}
    for kind in (NAMENODE, DATANODE) if heads else (DATANODE,):
        own = place / kind
        ports = _free_ports(address, 3)
        daemon = Daemon(
            kind,
            own,
            address,
            served.address,
            served.rpc_port,
            served.http_port,
            (ports[0], ports[1], ports[2]),
            copies,
            reserved,
        )
        for folder in ("conf", "tmp"):
            (own / folder).mkdir(parents=True, exist_ok=True)
        for name, text in daemon.files().items():
            (own / "conf" / name).write_text(text)
        heap = heap_mib(_memory_bytes()) if kind == NAMENODE else _DATANODE_HEAP_MIB
        classes = [str(own / "conf"), *pages]
        commands[kind] = hadoop.command(CLASSES[kind], classes, heap, scratch=str(own / "tmp"))
        if kind == DATANODE:
            (own / "takes").write_text(f"{address}:{ports[0]}")
    if is_first:
        _format(place, commands[NAMENODE])
    write(place / "served.json", served_as_json(served))
    write(place / ORDER, {"daemons": commands})
    with contextlib.suppress(OSError):
        (place / STATE).unlink()
    with (place / "watchdog.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", _WATCHDOG, str(place)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env=_plain_environment(),
        )
    return served


def _plain_environment() -> dict[str, str]:
    """Nothing of keys that data are fetched with, and nothing that would name another Hadoop."""
    kept = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH", "TMPDIR")
    return {name: os.environ[name] for name in kept if name in os.environ} | {
        "HADOOP_USER_NAME": "trainmaster"
    }


def _format(place: Path, command: list[str]) -> None:
    log = place / NAMENODE / "log"
    with log.open("ab") as out:
        try:
            code = subprocess.run(
                [*command, "-format", "-force", "-nonInteractive"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=_plain_environment(),
                timeout=_FORMAT_S,
                check=False,
            ).returncode
        except (OSError, subprocess.SubprocessError) as error:
            raise UsageError(
                f"{command[0]} does not start: {error}", "Is it a Java for this machine?"
            ) from error
    if code != 0:
        raise UsageError(
            f"HDFS cannot be formatted: {last_words(log)}",
            "Are Java and Hadoop whole, and do they fit together?",
        )


def _wait(place: Path, served: RunningHdfs) -> None:
    """Until the NameNode knows the DataNode of this place."""
    until = time.monotonic() + _START_S
    takes = (place / DATANODE / "takes").read_text()
    said: object = ""
    ended: set[int] = set()
    while time.monotonic() < until:
        daemons = kept(dict[str, Any], place / STATE) or {}
        for name, state in daemons.items():
            if state.get("failed"):
                end(place)
                raise ProviderError(
                    f"the {'NameNode' if name == NAMENODE else 'DataNode'} does not start: {state['failed']}",
                    f"Its log is {place / name / 'log'}.",
                )
        try:
            found = ask_namenode(served.address, served.http_port)
            if takes in found.live and not found.is_starting:
                return
            if found.was_full and (pid := daemons.get(NAMENODE, {}).get("pid")) not in (None, *ended):
                _require_room(place)
                os.kill(pid, signal.SIGTERM)  # the watchdog starts another one, which takes writes again
                ended.add(pid)
            said = f"it knows {', '.join(sorted(found.live)) or 'no DataNode'}"
        except OSError as error:
            said = error
        time.sleep(_LOOK_S)
    raise ProviderError(
        f"the NameNode at {served.web} does not answer, or does not know the DataNode {takes}: {said}",
        "Do the nodes reach each other at these addresses?",
    )


def _reserved_bytes(place: Path) -> int:
    return min(shutil.disk_usage(place).total // 20, _MOST_RESERVED_BYTES)


def _require_room(place: Path) -> None:
    free_bytes, wanted_bytes = shutil.disk_usage(place).free, _reserved_bytes(place)
    if free_bytes < wanted_bytes:
        words = f"{in_words(free_bytes)} are free in {place}, and the NameNode wants {in_words(wanted_bytes)}"
        raise UsageError(words, "Free space there.")


def _pages(place: Path, hadoop: Hadoop) -> list[str]:
    """Daemons ask for web pages on their class path; without any, empty ones do."""
    if hadoop.has_pages:
        return []
    for name in _PAGES:
        folder = place / "web/webapps" / name / "WEB-INF"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "web.xml").write_text("<web-app/>")
    return [str(place / "web")]


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _free_ports(address: str, count: int) -> tuple[int, ...]:
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            one = stack.enter_context(socket.socket())
            with fails_as(f"HDFS cannot listen at {address}", "It must be an address of the node's own."):
                one.bind((address, 0))
            found.append(one.getsockname()[1])
        return tuple(found)
