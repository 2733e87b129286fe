"""`PrivateRay`: a real Ray of one's own, whose nodes are namespaces of this machine; others work in it, too.

It needs root, and Ray where this Python is.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trainmaster.executors.ray.tls import CertificateAuthority, variables
from trainmaster.testing.private_network import NodesServer, NoNetworkError
from trainmaster.testing.private_server import ending_with_us, kill_group, spawn, stay

_START_S: Final = 400.0
_PROGRAMS: Final = ("ip", "unshare")
#: What a node has, as far as Ray knows.
CPUS: Final = 2
GPUS: Final = 1
_MEMORY: Final = 2_000_000_000
_START: Final = "from ray.scripts.scripts import main; main()"


def check_installed() -> None:
    """Nothing if all parts are there.

    Raises:
        NoNetworkError: which part is missing.
    """
    missing = [name for name in _PROGRAMS if shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin") is None]
    missing += [name for name in ("ray", "grpc") if importlib.util.find_spec(name) is None]
    if missing:
        raise NoNetworkError(f"{', '.join(missing)} not installed")
    if os.geteuid() != 0:
        raise NoNetworkError("a Ray with nodes of its own needs root")


class PrivateRay(NodesServer):
    """See `NodesServer`.

    Args:
        nodes: how many; the first is the head.
        guard: what those need who speak with it: nothing, its ``token``, or a certificate of its: ``tls``.

    Attributes:
        scratch: directory that all see.
        enter: command that runs what follows it on its head.
        way: what `ray.yaml` has of the way to it: by that command.
        client: the same by Ray Client, from this machine.
        user_environ: what somebody here needs for that, of whom it asks a token or a certificate.
        starts: how often all of it was started.
    """

    def __init__(self, nodes: int = 3, guard: str = "") -> None:
        super().__init__("ray", "ry", 84, nodes)
        self.scratch = self._place / "scratch"
        self.starts = 0
        head = self._network.address(self.names[0])
        self.client = f"address: ray://{head}:10001\n"
        self.enter = self._place / "enter"
        self.way = f"address: {head}:6379\nvia: {self.enter}\npython: {sys.executable}\n"
        self._token, self._guard = secrets.token_hex(16), guard
        self.user_environ = self._guarded("")

    # --- its life ------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """See `PrivateServer`."""
        check_installed()
        self._network.make()
        for name in ("scratch", "r", *(f"{kind}.{name}" for kind in ("var", "r") for name in self.names)):
            (self._place / name).mkdir()
            (self._place / name).chmod(0o1777)
        if self._guard == "tls":
            authority = CertificateAuthority.make()
            for name in ("", *self.names):
                (folder := self._place / f"tls.{name}").mkdir()
                for file, text in authority.files(self._network.address(name)).items():
                    (folder / file).write_text(text)
        # Without an address, Ray takes that of any head whose process it sees: here also those of other Rays.
        known = {
            "RAY_ADDRESS": f"{self._network.address(self.names[0])}:6379",
            **self._guarded(self.names[0]),
        }
        has = [f"{name}={value}" for name, value in known.items()]
        words = shlex.join([*self._entering(self.names[0]), "env", *has])  # as in a container of its head
        self.enter.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        self.enter.chmod(0o755)

    def start(self) -> None:
        """See `PrivateServer`."""
        self.starts += 1
        for path in self.scratch.iterdir():  # as machines that boot clear it
            shutil.rmtree(path, ignore_errors=True)
        self.boot(self.names[0])
        self._until(self._answers)
        for name in self.names[1:]:
            self.boot(name)
        self._until(lambda: self.said(_COUNT) == str(len(self.names)))

    # --- what can happen to it -----------------------------------------------------------------------------

    def boot(self, name: str) -> None:
        """A node is there, with nothing on it. The last one has a resource and a label of its own."""
        for path in self.files():  # of what was killed with it: as machines that boot clear it
            # What is killed while it removes its directory has left no number of a process there.
            is_shared = path.parent == self.scratch and path.is_dir()
            if path.parent == self.var(name) or (is_shared and not self.runs(path.name)):
                shutil.rmtree(path, ignore_errors=True)
                path.unlink(missing_ok=True)
        # All raylets are processes of this machine: Ray would take a head for one that still runs, and find
        # a socket by the name that another node's has.
        shutil.rmtree(own := self._place / f"r.{name}", ignore_errors=True)
        own.mkdir(exist_ok=True)
        own.chmod(0o1777)
        head = self._network.address(self.names[0])
        is_head, is_last = name == self.names[0], name == self.names[-1]
        words = (
            ["--head", "--port=6379", "--include-dashboard=false"] if is_head else [f"--address={head}:6379"]
        )
        words += ["--resources", '{"scanner": 1}', "--labels", "rack=7"] if is_last else []
        self._spawn(
            name, "start", *words, "--block", f"--node-ip-address={self._network.address(name)}",
            f"--num-cpus={CPUS}", f"--num-gpus={GPUS}", f"--memory={_MEMORY}",
            "--object-store-memory=80000000", "--disable-usage-stats", f"--temp-dir={self._place}/r",
        )  # fmt: skip

    def remove(self, name: str) -> None:
        """A node leaves, as an autoscaler has it; what Ray has not started goes on there."""
        process = self._started.pop(name)
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        kill_group(process)

    def restart_head(self) -> None:
        """Its head alone starts again, with nothing known; others end when they see it, and are booted."""
        self.starts += 1
        self.kill(self.names[0])
        self.boot(self.names[0])
        self._until(lambda: self.said(_COUNT) == str(len(self.names)))

    def drain(self, name: str, left_s: int) -> None:
        """Say that a node is taken back soon, as an autoscaler says it."""
        address = f"{self._network.address(self.names[0])}:6379"
        node = self.said(_NODE.format(address=self._network.address(name)))
        words = ["drain-node", "--address", address, "--node-id", node, "--reason-message", "taken back"]
        words += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--deadline-remaining-seconds", str(left_s)]
        subprocess.run(
            [*self._entering(self.names[0]), sys.executable, "-c", _START, *words],
            check=True, capture_output=True, text=True, cwd="/", env=self._environ(),
        )  # fmt: skip

    # --- what is seen --------------------------------------------------------------------------------------

    def said(self, program: str) -> str:
        """What a program has printed that somebody else runs in this Ray; empty if it failed: see `log`."""
        address = f"{self._network.address(self.names[0])}:6379"
        lead = (
            f"import ray\nray.init({address!r}, namespace='theirs', log_to_driver=False, logging_level=50)\n"
        )
        done = subprocess.run(
            [*self._entering(self.names[0]), sys.executable, "-c", lead + program],
            capture_output=True, text=True, cwd="/", env=self._environ(),
        )  # fmt: skip
        if done.returncode == 0:
            return done.stdout.strip()
        with (self._place / "said.log").open("a") as log:  # the other logs do not have why
            log.write(f"{program}\nended with {done.returncode}: {done.stderr}\n")
        return ""

    def others(self) -> list[str]:
        """Actors of others than `theirs`, groups that hold something, by name."""
        return self.said(_OURS).split()

    def var(self, name: str) -> Path:
        """What a node has as `/var/tmp`."""
        return self._place / f"var.{name}"

    def files(self) -> list[Path]:
        """What lies on nodes where ours may."""
        return [path for place in (*map(self.var, self.names), self.scratch) for path in place.iterdir()]

    def runs(self, words: str) -> list[str]:
        """Nodes on which a command line has these words."""
        found = []
        for name in self.names:
            for pid in self._network.pids(name):
                with contextlib.suppress(OSError):
                    if words.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" "):
                        found.append(name)
        return sorted(set(found))

    def log(self, *more: str) -> str:
        """See `NodesServer`: also of its servers of Ray Client."""
        return super().log("r.*/session_2*/logs/ray_client_server*", *more)

    # --- private -------------------------------------------------------------------------------------------

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection((self._network.address(self.names[0]), 10001), 1).close()
            return True
        return False

    def _entering(self, name: str) -> list[str]:
        """Each node has its own, also of Ray's: two that begin at once would take the same sockets."""
        there = {"var": "/var/tmp", "r": f"{self._place}/r"}  # noqa: S108 - where ours may lie
        mounts = {self._place / f"{kind}.{name}": path for kind, path in there.items()}
        return self._network.entering(name, mounts)

    def _guarded(self, name: str) -> dict[str, str]:
        """What a process on a node needs to speak with the others; or one on this machine."""
        if self._guard == "tls":
            return variables(f"{self._place}/tls.{name}")
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self._token} if self._guard else {}

    def _environ(self, name: str = "") -> dict[str, str]:
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "TRAINMASTER"))
        }
        # On a busy machine its parts take longer to begin than Ray waits for them.
        patience = {"RAY_agent_register_timeout_ms": "150000"}
        return kept | {"RAY_USAGE_STATS_ENABLED": "0"} | patience | self._guarded(name or self.names[0])

    def _spawn(self, name: str, *words: str) -> None:
        command = [*self._entering(name), sys.executable, "-c", _START, *words]
        log = self._place / f"{name}.log"
        self._started[name] = spawn(ending_with_us(command), log, self._environ(name))

    def _until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_S
        while not done():
            for name, process in list(self._started.items()):
                if process.poll() is not None:  # a busy machine: Ray waits for its own parts for 30 s
                    self.kill(name)
                    self.boot(name)
            if time.monotonic() > deadline:
                raise NoNetworkError(f"Ray does not start:\n{self.log()}")
            time.sleep(0.1)


_COUNT: Final = "print(sum(node['Alive'] for node in ray.nodes()))"
_NODE: Final = """
there = {{row['NodeManagerAddress']: row['NodeID'] for row in ray.nodes() if row['Alive']}}
print(there['{address}'])
"""
_OURS: Final = """
from ray.util import list_named_actors, placement_group_table
print(*(each['name'] for each in list_named_actors(True) if each['namespace'] != 'theirs'))
print(*(row['name'] or 'group' for row in placement_group_table().values() if row['state'] != 'REMOVED'))
"""


def main() -> None:
    """A Ray to try, until it is interrupted."""
    with PrivateRay() as ray:
        has = f"{CPUS} CPUs, {_MEMORY / 1e9:g} GB and {GPUS} GPU that does nothing"
        nodes = f"# {len(ray.names)} nodes of {has}; Ctrl-C ends it\n"
        stay(f"{ray.client}scratch: {ray.scratch}\n{nodes}")


if __name__ == "__main__":
    main()
