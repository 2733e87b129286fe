"""`SealingKey`: what the database keeps of secrets is sealed with a key that lies outside of it."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.spec.errors import MissingPartError, TrainmasterError, UsageError
from trainmaster.spec.private_files import make_private, require_private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

#: Names the key file; servers that share a database need the same key.
KEY_FILE_VARIABLE: Final = "TRAINMASTER_KEY_FILE"
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_NAME_BYTES: Final = 4
#: Of what is sealed: the form, so that another one can come.
_FORM: Final = b"\x01"


class SealedError(TrainmasterError):
    """Something that was sealed cannot be opened: with another key, or it was changed or moved."""


@dataclass(frozen=True, slots=True, repr=False)
class SealingKey:
    """Seals and opens bytes with AES-256-GCM.

    Attributes:
        key: 32 bytes.
        file: where it was read, for messages.
    """

    key: bytes
    file: Path

    @classmethod
    def of(cls, root: Path, environ: Mapping[str, str]) -> SealingKey:
        """The key that ``TRAINMASTER_KEY_FILE`` names, or that of a home, which is made at its first use.

        Args:
            root: of the home.
            environ: the variables.

        Raises:
            UsageError: the file is not there, not a key, or others can read it.
        """
        named = environ.get(KEY_FILE_VARIABLE)
        file = Path(named).expanduser().absolute() if named else root / "server.key"
        try:
            if not named and not file.exists():
                _make(file)
            require_private(file)
            key = base64.b64decode(file.read_bytes().strip(), validate=True)
        except FileNotFoundError:
            raise UsageError(
                f"{KEY_FILE_VARIABLE}: there is no file {file}",
                f"Copy that of the other servers, or make one: (umask 077; openssl rand -base64 32 > {file})",
            ) from None
        except binascii.Error:
            key = b""
        except OSError as error:
            raise UsageError(
                f"the key file {file} cannot be used: {error.strerror}",
                f"{KEY_FILE_VARIABLE} names another one.",
            ) from error
        if len(key) != _KEY_BYTES:
            raise UsageError(
                f"{file} holds no key: it should be {_KEY_BYTES} random bytes in base64",
                "Put the right key back: what was sealed with it cannot be opened with another one.",
            )
        return cls(key, file)

    @property
    def name(self) -> str:
        """Tells keys apart, and says nothing about this one."""
        return _name(self.key).hex()

    def seal(self, plain: bytes, place: str) -> bytes:
        """Seal bytes for one place.

        Args:
            plain: what nobody may read.
            place: where it will lie, such as ``secret/TEAM/NAME``: it can be opened for no other one.
        """
        nonce = os.urandom(_NONCE_BYTES)
        head = _FORM + _name(self.key)
        return head + nonce + _cipher(self.key).encrypt(nonce, plain, head + place.encode())

    def open(self, sealed: bytes, place: str) -> bytes:
        """What was sealed for a place.

        Raises:
            SealedError: with another key, for another place, or it was changed.
        """
        from cryptography.exceptions import InvalidTag

        head, rest = sealed[: 1 + _NAME_BYTES], sealed[1 + _NAME_BYTES :]
        if head[:1] == _FORM and head[1:] != _name(self.key):
            raise SealedError(
                f"{place} was sealed with the key {head[1:].hex()}, and {self.file} is {self.name}",
                f"Servers that share a database need the same key file: {KEY_FILE_VARIABLE} names it.",
            )
        try:
            return _cipher(self.key).decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], head + place.encode())
        except (InvalidTag, ValueError):
            raise SealedError(
                f"{place} in the database was changed by somebody else, or is damaged",
                "Write it anew, or bring the database back from a copy.",
            ) from None


def _cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise MissingPartError(
            "secrets in the database need the package cryptography", "pip install 'trainmaster[server]'"
        ) from None
    return AESGCM(key)


def _name(key: bytes) -> bytes:
    return hashlib.sha256(b"trainmaster sealing key\0" + key).digest()[:_NAME_BYTES]


def _make(file: Path) -> None:
    """Write a new key, unless somebody else was quicker: nobody ever sees half of one."""
    make_private(file.parent)
    draft = file.with_name(f".{file.name}-{secrets.token_hex(8)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(base64.b64encode(secrets.token_bytes(_KEY_BYTES)) + b"\n")
            out.flush()
            os.fsync(out.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, file)
    finally:
        draft.unlink(missing_ok=True)
