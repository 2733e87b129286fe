"""`PrivateNetwork`: nodes that are network namespaces of this machine, on a bridge that it is on, too.

It needs root. Each may have directories of its own where this machine has others. `NodesServer` is a server
that has such nodes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from trainmaster.testing.private_server import PrivateServer, kill_group

_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
#: So many may be there at once.
_NETWORKS: Final = 40


class NoNetworkError(Exception):
    """There cannot be one here, or a command of it failed."""


class PrivateNetwork:
    """Close it; what one that was killed has left goes when another takes its number.

    Args:
        kind: two letters; others of the same kind have other addresses.
        block: second number of all addresses.
        names: of the nodes.

    Raises:
        NoNetworkError: too many are there.
    """

    def __init__(self, kind: str, block: int, names: Sequence[str]) -> None:
        self._names, self._block = list(names), block
        self._number, self._held = _reserved(kind)
        self._bridge = f"tm{kind}{self._number}"

    def make(self) -> None:
        """Make all nodes; nothing runs on them."""
        run("ip", "link", "add", self._bridge, "type", "bridge")
        run("ip", "addr", "add", f"{self.address()}/24", "dev", self._bridge)
        run("ip", "link", "set", self._bridge, "up")
        for number, name in enumerate(self._names, 1):
            space, near = self.space(name), f"{self._bridge}v{number}"
            run("ip", "netns", "add", space)
            run("ip", "link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", space)
            run("ip", "link", "set", near, "master", self._bridge, "up")
            run("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")
            run("ip", "-n", space, "link", "set", "lo", "up")

    def close(self) -> None:
        """End all that runs there, and all nodes."""
        for name in self._names:
            self.kill(name)
        _sweep(self._bridge)
        self._held.close()

    def address(self, name: str = "") -> str:
        """Of a node, or of this machine."""
        return f"10.{self._block}.{self._number}.{self._names.index(name) + 2 if name else 1}"

    def space(self, name: str) -> str:
        """What `ip` calls a node."""
        return f"{self._bridge}-{name}"

    def entering(self, name: str, mounts: Mapping[Path, str]) -> list[str]:
        """What a command begins with that runs on a node, with directories of ours in the place of others."""
        bound = "".join(f"mount --bind {here} {there}; " for here, there in mounts.items())
        inside = f'hostname {name}; {bound}exec "$@"'
        # By `ip netns exec` it had a /sys without control groups, and no containers.
        net = f"--net=/run/netns/{self.space(name)}"
        return ["nsenter", net, "unshare", "--uts", "--mount", "sh", "-c", inside, "sh"]

    def pids(self, name: str) -> list[int]:
        """What runs on a node."""
        return [int(pid) for pid in run("ip", "netns", "pids", self.space(name), check=False).stdout.split()]

    def kill(self, name: str) -> None:
        """All that runs on a node ends at once."""
        for _ in range(50):
            found = self.pids(name)
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not found:
                return
            time.sleep(0.05)

    def cut(self, name: str, *, healed: bool = False) -> None:
        """Pull a node's cable, or put it in again."""
        run("ip", "-n", self.space(name), "link", "set", "eth0", "up" if healed else "down")


class NodesServer(PrivateServer):
    """It ends with its context, with all that runs on its nodes.

    Args:
        name: of its directory.
        kind, block: see `PrivateNetwork`.
        nodes: how many.

    Attributes:
        names: of the nodes.
        address: of this machine, as nodes reach it.
    """

    def __init__(self, name: str, kind: str, block: int, nodes: int) -> None:
        self.names = [f"n{k}" for k in range(1, nodes + 1)]
        self._place = Path(tempfile.mkdtemp(prefix=f"tm-{name}-", dir="/run"))
        self._network = PrivateNetwork(kind, block, self.names)
        self.address = self._network.address()
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def close(self) -> None:
        """See `PrivateServer`."""
        for name in list(self._started):
            kill_group(self._started.pop(name))
        self._network.close()
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and self._place.exists():
            shutil.rmtree(self._place, ignore_errors=True)
            time.sleep(0.1)

    def kill(self, name: str) -> None:
        """A node, and all that runs there, ends at once."""
        kill_group(self._started.pop(name, None))
        self._network.kill(name)

    def cut(self, name: str, *, healed: bool = False) -> None:
        """Pull a node's cable, or put it in again."""
        self._network.cut(name, healed=healed)

    def log(self, *more: str) -> str:
        """The end of what its parts have said, in their logs and other files of its directory."""
        said = [path for pattern in ("*.log", *more) for path in self._place.glob(pattern)]
        return "\n".join(
            f"{path.name}: {line}"
            for path in sorted(said)
            for line in path.read_text(errors="replace").splitlines()[-30:]
        )


def _reserved(kind: str) -> tuple[int, IO[str]]:
    """A number that no other has, on this machine, as long as the file is open."""
    for number in range(1, _NETWORKS):
        held = Path(f"/run/lock/tm-{kind}-{number}").open("w")  # noqa: SIM115 - held until the end
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            held.close()
            continue
        _sweep(f"tm{kind}{number}")
        return number, held
    raise NoNetworkError(f"{_NETWORKS} are there already")


def _sweep(bridge: str) -> None:
    """What one that was killed has left."""
    spaces = [line.split()[0] for line in run("ip", "netns", "list").stdout.splitlines() if line]
    for space in spaces:
        if space.startswith(f"{bridge}-"):
            for pid in run("ip", "netns", "pids", space, check=False).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            run("ip", "netns", "del", space, check=False)
    # A namespace goes some time after it was deleted, and its cable with it.
    for device in Path("/sys/class/net").glob(f"{bridge}*"):
        if device.name == bridge or device.name.startswith(f"{bridge}v"):
            run("ip", "link", "del", device.name, check=False)


def run(
    *words: str, check: bool = True, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end.

    Raises:
        NoNetworkError: it failed, and must not.
    """
    command: Sequence[str] = words
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PATH": _PATH, **(environ or {})}
    )
    if check and done.returncode:
        raise NoNetworkError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done
