"""`Region`: the network between the hosts, a bridge in a namespace of its own, one cable to this machine."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from trainmaster.lab.addresses import mac_of
from trainmaster.lab.errors import LabError
from trainmaster.lab.place import LabPlace
from trainmaster.lab.settings import LabSettings
from trainmaster.lab.shell import call, ip_batch

METADATA_ADDRESS = "169.254.169.254"
BRIDGE = "br0"
_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
_MS_BIND = 4096


def make_namespace(path: Path) -> None:
    """A network namespace that lives as long as the file is mounted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    call(["unshare", f"--net={path}", "true"])


def make_host_namespaces(network: Path, users: Path) -> None:
    """A user namespace, and a network namespace that its root may change; each lives as its file is mounted.

    Who is root in it is root of nothing else: the kernel asks for a capability of this machine before it
    makes devices, mounts disks, loads modules or has anything changed that is in no namespace. Users have
    the same numbers inside and outside, as the image's files and the runtime belong to this machine's root;
    what its root may write without any capability is hidden or read-only (``guest/init.sh``).

    Args:
        network: file of the network namespace.
        users: file of the user namespace.

    Raises:
        LabError: the kernel refuses it.
    """
    for path in (network, users):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    command = ["unshare", "--user", "--net", "cat"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stderr is not None
        holder.stdin.write(b"+")
        holder.stdin.flush()
        if holder.stdout.read(1) != b"+":  # it says so once it is in there
            holder.stdin.close()
            raise LabError(f"no user namespace can be made: {holder.stderr.read().decode().strip()}")
        there = Path(f"/proc/{holder.pid}")
        for kind in ("uid_map", "gid_map"):
            own = [line.split() for line in Path(f"/proc/self/{kind}").read_text().splitlines()]
            (there / kind).write_text("".join(f"{first} {first} {count}\n" for first, _, count in own))
        _bind(there / "ns/net", network)
        _bind(there / "ns/user", users)
        holder.stdin.close()


def _bind(source: Path, target: Path) -> None:
    if _LIBC.mount(os.fsencode(source), os.fsencode(target), None, _MS_BIND, None) != 0:
        number = ctypes.get_errno()
        raise LabError(f"{target}: cannot be mounted: {os.strerror(number)}")


def drop_namespace(path: Path) -> None:
    """Let go of a namespace; gone at once if nothing runs in it. Fine if it is none."""
    call(["umount", "-l", path], check=False)
    path.unlink(missing_ok=True)


@contextlib.contextmanager
def entered(namespace: Path) -> Iterator[None]:
    """This thread is in a network namespace; sockets that it makes stay there."""
    with Path(f"/proc/self/task/{threading.get_native_id()}/ns/net").open("rb") as home:
        with namespace.open("rb") as there:
            _setns(there.fileno(), namespace)
        try:
            yield
        finally:
            _setns(home.fileno(), namespace)


def _setns(descriptor: int, namespace: Path) -> None:
    if _LIBC.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise LabError(f"{namespace}: cannot enter the network namespace: {os.strerror(number)}")


class Region:
    """The network of a lab.

    The bridge has a namespace of its own, so that neither the firewall of this machine nor its Docker sees
    what the hosts say to each other. In the machine's own network is only one end of a cable.
    """

    def __init__(self, place: LabPlace, settings: LabSettings) -> None:
        self._place = place
        self._settings = settings

    def make(self) -> None:
        """Make the bridge, the cable and the address of the metadata service."""
        prefix = self._settings.block.prefixlen
        namespace, link = self._place.region_namespace, self._place.root_link
        make_namespace(namespace)
        ip_batch(
            namespace,
            [
                "link set lo up",
                f"address add {METADATA_ADDRESS}/32 dev lo",
                # An address of its own: else it has that of one of its ports, and another one when that
                # host goes; the others would ask for their metadata in vain until they had found out.
                f"link add {BRIDGE} address {mac_of(self._settings.gateway)} type bridge",
                f"address add {self._settings.gateway}/{prefix} dev {BRIDGE}",
                f"link set {BRIDGE} up",
            ],
        )
        ip_batch(None, [f"link add {link} type veth peer name root netns {namespace}"])
        ip_batch(namespace, [f"link set root master {BRIDGE} up"])
        ip_batch(
            None, [f"address add {self._settings.root_address}/{prefix} dev {link}", f"link set {link} up"]
        )

    def listen(self, port: int) -> socket.socket:
        """A socket that listens on the metadata service's address."""
        with entered(self._place.region_namespace):
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((METADATA_ADDRESS, port))
        listener.listen(128)
        return listener

    def remove(self) -> None:
        """Remove cable and bridge; fine if they are gone."""
        drop_link(self._place.root_link)
        drop_namespace(self._place.region_namespace)


def drop_link(name: str) -> bool:
    """Remove an interface of this machine; False if there is none."""
    if not Path("/sys/class/net", name).exists():
        return False
    call(["ip", "link", "delete", name], check=False)
    return True
