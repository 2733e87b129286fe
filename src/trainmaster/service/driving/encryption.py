"""`SealingKey`: what the database keeps of secrets is sealed with a key that lies outside of it.

A key file has a key a line: the first one seals, and all of them open. So a key can be changed while servers
and drivers go on: what is sealed names its key (`key_rotation`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.dataclass import dataclass
from trainmaster.service.full_disks import FULL
from trainmaster.spec.errors import TrainmasterError, UsageError, fails_as, imports_of
from trainmaster.spec.private_files import create_private, make_private, require_private, write_private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

#: Names the key file; servers that share a database need the same key.
KEY_FILE_VARIABLE: Final = "TRAINMASTER_KEY_FILE"
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_NAME_BYTES: Final = 4
#: Of what is sealed: the form, so that another one can come.
_FORM: Final = b"\x01"
#: Of what is sealed, at its beginning: the form, and which key.
HEAD_BYTES: Final = 1 + _NAME_BYTES


class SealedError(TrainmasterError):
    """Something that was sealed cannot be opened: with another key, or it was changed or moved."""


@dataclass(frozen=True, slots=True, repr=False)
class SealingKey:
    """Seals and opens bytes with AES-256-GCM.

    Attributes:
        key: 32 bytes.
        file: where it was read, for messages.
        others: keys that open only: of earlier, or to come.
    """

    key: bytes
    file: Path
    others: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, root: Path, environ: Mapping[str, str]) -> SealingKey:
        """The key that ``TRAINMASTER_KEY_FILE`` names, or that of a home, which is made at its first use.

        Args:
            root: of the home.
            environ: the variables.

        Raises:
            UsageError: the file is not there, not a key, or others can read it.
            OSError: a first one has no room.
        """
        named = environ.get(KEY_FILE_VARIABLE)
        file = Path(named).expanduser().absolute() if named else root / "server.key"
        keys: list[bytes] = []
        try:
            if not named and not file.exists():
                make_private(file.parent)
                create_private(file, _lines([new_key()]))  # somebody else may be quicker
            require_private(file)
            keys = [base64.b64decode(line, validate=True) for line in file.read_bytes().split()]
        except FileNotFoundError:
            raise UsageError(
                f"{KEY_FILE_VARIABLE}: there is no file {file}",
                f"Copy that of the other servers, or make one: (umask 077; openssl rand -base64 32 > {file})",
            ) from None
        except binascii.Error:
            keys = []
        except OSError as error:
            if error.errno in FULL:
                raise
            raise UsageError(
                f"the key file {file} cannot be used: {error.strerror}",
                f"{KEY_FILE_VARIABLE} names another one.",
            ) from error
        if not keys or any(len(key) != _KEY_BYTES for key in keys):
            raise UsageError(
                f"{file} holds no key: it should be {_KEY_BYTES} random bytes in base64, or lines of such",
                "Put the right key back: what was sealed with it cannot be opened with another one.",
            )
        return cls(keys[0], file, tuple(keys[1:]))

    @property
    def name(self) -> str:
        """Tells keys apart, and says nothing about this one."""
        return name_of(self.key)

    @property
    def head(self) -> bytes:
        """What begins all that is sealed with it."""
        return _FORM + _name(self.key)

    @property
    def all(self) -> tuple[bytes, ...]:
        """The one that seals, and those that open only."""
        return (self.key, *self.others)

    def write(self) -> None:
        """Put these keys into the file, in one step that no crash cuts in two.

        Raises:
            UsageError: it cannot be written.
        """
        target = self.file.resolve()
        with fails_as(
            f"the key file {target} cannot be written",
            f"Nothing was changed. {KEY_FILE_VARIABLE} names it; do this as its owner.",
        ):
            write_private(target, _lines(self.all))
            directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)  # what is sealed with a key must not be older on the disk than that key
            finally:
                os.close(directory)

    def seal(self, plain: bytes, place: str) -> bytes:
        """Seal bytes for one place.

        Args:
            plain: the secret.
            place: where it will lie, such as ``secret/TEAM/NAME``: it can be opened for no other one.
        """
        nonce = os.urandom(_NONCE_BYTES)
        return self.head + nonce + _cipher(self.key).encrypt(nonce, plain, self.head + place.encode())

    def open(self, sealed: bytes, place: str) -> bytes:
        """What was sealed for a place.

        Raises:
            SealedError: with another key, for another place, or it was changed.
        """
        from cryptography.exceptions import InvalidTag

        head, rest = sealed[:HEAD_BYTES], sealed[HEAD_BYTES:]
        known = {_FORM + _name(key): key for key in self.all}
        if head[:1] == _FORM and head not in known:
            has = ", ".join(name_of(key) for key in self.all)
            raise SealedError(
                f"{place} was sealed with the key {head[1:].hex()}, and {self.file} has {has}",
                f"Servers that share a database need the same key file: {KEY_FILE_VARIABLE} names it.",
            )
        try:
            return _cipher(known.get(head, self.key)).decrypt(
                rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], head + place.encode()
            )
        except (InvalidTag, ValueError):
            raise SealedError(
                f"{place} in the database was changed by somebody else, or is damaged",
                "Write it anew, or bring the database back from a copy.",
            ) from None


def _cipher(key: bytes) -> AESGCM:
    with imports_of("server", "a secret in the database"):
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    return AESGCM(key)


def _name(key: bytes) -> bytes:
    return hashlib.sha256(b"trainmaster sealing key\0" + key).digest()[:_NAME_BYTES]


def name_of(key: bytes) -> str:
    """Tells keys apart, and says nothing about this one."""
    return _name(key).hex()


def key_of_head(head: bytes) -> str:
    """The name of the key that something was sealed with, by its first `HEAD_BYTES`."""
    return head[1:].hex()


def new_key() -> bytes:
    """A new one."""
    return secrets.token_bytes(_KEY_BYTES)


def _lines(keys: Sequence[bytes]) -> bytes:
    return b"".join(base64.b64encode(key) + b"\n" for key in keys)
