"""`AwsLedger`: what the home must know of its machines without asking: a few small files, and the SSH key."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from trainmaster.spec.errors import MissingPartError, ProviderError
from trainmaster.spec.plain_json import parsed_json, typed
from trainmaster.spec.private_files import short_digest, write_private

_Type = TypeVar("_Type")
_REGIONS_HINT: Final = (
    'Write {"regions": ["us-east-1"]} there, with every region in which this home may have machines: '
    "no other place is looked at, and what is rented there ends only with its lease."
)
_ATTEMPT_HINT: Final = (
    "Look in the EC2 console which machines the cluster has, end those that are unused, and remove the file."
)
_HOST_KEY_HINT: Final = "Remove the file, and end the cluster: its machines cannot be told from others."


@dataclass(frozen=True, slots=True)
class AwsLedger:
    """Files below a directory. Every method may be called by several processes at once.

    A region is written down before anything is asked for there, and the zone of a request before it is sent:
    what comes after a crash looks where the first one was, and repeats the very call.

    Attributes:
        directory: of this provider in the home.
        saved: called when a file was written, before anybody relies on it.
    """

    directory: Path
    saved: Callable[[], None] = lambda: None

    def regions(self) -> list[str]:
        """Where this home has ever rented."""
        return self._known("regions.json", list[str], "regions", [], _REGIONS_HINT)

    def add_region(self, region: str) -> None:
        """Remember it, for good."""
        if region in self.regions():
            return
        with self._locked():
            self._write("regions.json", {"regions": sorted({*self.regions(), region})})

    def attempt(self, cluster: str, token: str) -> str:
        """The zone in which a request was last asked for; '' if it was not, or was refused there."""
        return self._known(_name(cluster, token), str, "zone", "", _ATTEMPT_HINT)

    def set_attempt(self, cluster: str, token: str, zone: str) -> None:
        """A request is about to be sent there; '' when it is known to have given nothing."""
        with self._locked():
            self._write(_name(cluster, token), {"cluster": cluster, "token": token, "zone": zone})

    def attempts(self, cluster: str) -> list[str]:
        """Tokens of the requests of a cluster that were sent and not refused."""
        names = [path.name for path in sorted(self.directory.glob(f"{short_digest(cluster)}-*.json"))]
        return [
            self._known(name, str, "token", "", _ATTEMPT_HINT)
            for name in names
            if self._known(name, str, "zone", "", _ATTEMPT_HINT)
        ]

    def files_for(self, clusters: Collection[str]) -> list[Path]:
        """What a driver that goes on with these clusters in another home must have."""
        every = [self.directory / "regions.json", self.private_key, self.private_key.with_suffix(".pub")]
        return every + [
            path for each in clusters for path in self.directory.glob(f"{short_digest(each)}-*.json")
        ]

    def forget(self, cluster: str) -> None:
        """The cluster is given back."""
        for path in self.directory.glob(f"{short_digest(cluster)}-*.json"):
            path.unlink(missing_ok=True)

    def host_key(self, cluster: str, token: str) -> tuple[str, str]:
        """The key that machines of a request have when they boot: private, as in a file, and public.

        The same for as long as the cluster lasts, as a call that is repeated must be the same call.
        """
        name = f"{short_digest(cluster)}-{short_digest(token)}-host.json"
        if not (self.directory / name).exists():
            with self._locked():
                if not (self.directory / name).exists():
                    private, public = _new_key()
                    self._write(name, {"private": private.decode(), "public": public.decode()})
        half = {key: self._known(name, str, key, "", _HOST_KEY_HINT) for key in ("private", "public")}
        return half["private"], half["public"]

    @property
    def private_key(self) -> Path:
        """File of the key that the home's machines let in."""
        return self.directory / "id_ed25519"

    def public_key(self) -> str:
        """Its public half, on one line; made at the first use."""
        path = self.private_key.with_suffix(".pub")
        if not path.exists():
            with self._locked():
                if not path.exists():
                    self._make_key(path)
        return path.read_text().strip()

    def _make_key(self, public: Path) -> None:
        private, half = _new_key()
        # The public half last: where it is, the other is there.
        write_private(self.private_key, private)
        write_private(public, half + b" trainmaster\n")
        self.saved()

    def _known(self, name: str, kind: type[_Type], key: str, default: _Type, hint: str) -> _Type:
        """What a file says; if it is damaged nothing may be taken for not being there."""
        path = self.directory / name
        try:
            found = typed(dict[str, Any], parsed_json(path.read_bytes()))
            return typed(kind, found[key]) if key in found else default
        except FileNotFoundError:
            return default
        except ValueError as error:
            words = " ".join(str(error).split())[:200]
            raise ProviderError(f"{path} is damaged: {words}", hint) from None

    def _write(self, name: str, values: dict[str, Any]) -> None:
        write_private(self.directory / name, json.dumps(values).encode())
        self.saved()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.directory / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _new_key() -> tuple[bytes, bytes]:
    try:
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise MissingPartError(
            f"an SSH key cannot be made without cryptography, which is not installed ({error})",
            "Install it: pip install 'trainmaster[aws]'.",
        ) from None
    key = Ed25519PrivateKey.generate()
    return (
        key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption()),
        key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH),
    )


def _name(cluster: str, token: str) -> str:
    return f"{short_digest(cluster)}-{short_digest(token)}.json"
