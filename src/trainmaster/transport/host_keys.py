"""`HostKeys`: which host shows which key. Pinned at first use, refused once it has changed."""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import fails_as
from trainmaster.spec.locking import locked
from trainmaster.spec.private_files import write_private
from trainmaster.transport.base import HostKeyError, Target

FILE_NAME: Final = "known_hosts"
#: What is asked for first, where a host has several keys.
_PREFERRED: Final = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
_FIELDS = 3


@dataclass(frozen=True, slots=True)
class Pin:
    """A key that a host is known by.

    Attributes:
        key: ``type base64``.
        line: in the file; 0 if the inventory says so.
    """

    key: str
    line: int = 0


def shown_key_file(directory: Path, machine: str) -> Path:
    """Where the key is kept that a machine of a cluster has shown, or that its provider vouches for.

    Args:
        directory: of the cluster.
        machine: its id. A provider says it, and what a team uses as one may say anything.

    >>> shown_key_file(Path("c"), "i-07").name, shown_key_file(Path("c"), "x/../../y").name
    ('known-i-07', 'known-x_.._.._y')
    """
    return directory / f"known-{re.sub(r'[^A-Za-z0-9_.-]', '_', machine)}"


class HostKeys:
    """A file in OpenSSH's format: ``ssh -o UserKnownHostsFile=FILE`` reads it as well.

    Args:
        file: usually ``$TRAINMASTER_HOME/known_hosts``; made when the first key is pinned.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = threading.Lock()

    def pins(self, target: Target) -> list[Pin]:
        """By which keys a host is known; none at first use."""
        if target.host_key:
            return [Pin(" ".join(target.host_key.split()[:2]))]
        return [pin for name, pin in self._read() if name == target.pin]

    def algorithms(self, target: Target) -> list[str]:
        """Which kinds of key to ask a host for: first those that it is known by."""
        known = {kind for pin in self.pins(target) for kind in _signatures(pin.key.split()[0])}
        return sorted(_PREFERRED, key=lambda kind: kind not in known)

    def accept(self, target: Target, shown: str) -> None:
        """Let a key pass that a host shows: pin it if it is the first, refuse it if it is another one.

        Args:
            target: the host.
            shown: ``type base64``.

        Raises:
            HostKeyError: it is another one, or the file cannot be written.
        """
        with self._lock:
            pins = self.pins(target)
            if any(pin.key == shown for pin in pins):
                return
            if pins:
                raise self._refused(target, pins[0], shown)
            self._pin(target, shown)

    def forget(self, target: Target) -> None:
        """Unpin a host: its machine is gone, or was installed again."""
        with self._lock:
            if not self.file.exists():
                return
            with self._locked():
                lines = self.file.read_text(encoding="utf-8").splitlines(keepends=True)
                kept = [line for line in lines if line.split(" ", 1)[0] != target.pin]
                write_private(self.file, "".join(kept).encode())

    def _pin(self, target: Target, shown: str) -> None:
        with fails_as(
            f"{target.shown}: its host key cannot be pinned in {self.file}",
            "Make room there, or point TRAINMASTER_HOME to a directory of yours.",
            HostKeyError,
        ):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self._locked(), self.file.open("a+", encoding="utf-8") as file:
                pins = self.pins(target)  # another process may have been first
                if pins and all(pin.key != shown for pin in pins):
                    raise self._refused(target, pins[0], shown)
                if not pins:
                    file.write(f"{target.pin} {shown}\n")

    def _locked(self) -> AbstractContextManager[object]:
        return locked(self.file.with_name(f".{self.file.name}"))

    def _read(self) -> list[tuple[str, Pin]]:
        try:
            lines = self.file.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []
        found = []
        for number, line in enumerate(lines, 1):
            words = line.split()
            if len(words) >= _FIELDS and not line.startswith(("#", "@", "|")):
                found += [(name, Pin(f"{words[1]} {words[2]}", number)) for name in words[0].split(",")]
        return found

    def _refused(self, target: Target, pin: Pin, shown: str) -> HostKeyError:
        where = f"{self.file}, line {pin.line}," if pin.line else "the inventory"
        undo = f"remove line {pin.line} of {self.file}" if pin.line else "change its `host_key`"
        hint = f"If the host was installed anew, {undo}. If not, somebody may stand between you and it."
        if target.pin_as and not pin.line:
            where = "its user data"
            hint = (
                "Does its image run cloud-init, which puts the key there? "
                "If so, somebody may stand between you and it."
            )
        return HostKeyError(
            f"{target.shown} shows another host key than it should: {where} has {fingerprint(pin.key)}, "
            f"it shows {fingerprint(shown)} ({shown.split()[0]})",
            hint,
        )


def fingerprint(key: str) -> str:
    """As ``ssh-keygen -l`` prints it.

    >>> fingerprint("ssh-ed25519 AAAA")
    'SHA256:cJ6AyISHokEeHuTfufIqhhSS0gxHZRUMDHlKvXD4FHw'
    """
    try:
        digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    except (ValueError, IndexError):
        return "no key at all"
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _signatures(kind: str) -> tuple[str, ...]:
    return ("rsa-sha2-512", "rsa-sha2-256") if kind == "ssh-rsa" else (kind,)
