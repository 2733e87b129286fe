"""`ClusterLedger`: what a home knows of its clusters at a place, and the key that their machines let in."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from trainmaster.spec.errors import ProviderError
from trainmaster.spec.plain_json import parsed_json, typed
from trainmaster.spec.private_files import short_digest, write_private


class ClusterNoun(Protocol):
    """What is known of one cluster: a dataclass that may be made of the cluster's name alone."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init__(self, cluster: str) -> None: ...

    @property
    def cluster(self) -> str:
        """Its name."""


K = TypeVar("K", bound=ClusterNoun)


class ClusterLedger(Generic[K]):
    """Files below a directory. Several processes may use it.

    Args:
        directory: of a provider in the home.
        saved: called when a file was written, before anybody relies on it.

    Attributes:
        kind: what is known of one cluster.
        hint: what to do when a file is damaged.
    """

    kind: type[K]
    hint = ""

    def __init__(self, directory: Path, saved: Callable[[], None] = lambda: None) -> None:
        self.directory, self.saved = directory, saved

    def of(self, cluster: str) -> K:
        """What is known of a cluster."""
        return self._read(self._file(cluster)) or self.kind(cluster)

    def all(self) -> list[K]:
        """What is known of each cluster."""
        found = (self._read(path) for path in sorted(self.directory.glob("cluster-*.json")))
        return [known for known in found if known is not None]

    def _read(self, path: Path) -> K | None:
        try:
            return typed(self.kind, typed(dict[str, Any], parsed_json(path.read_bytes())))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            words = " ".join(str(error).split())[:200]
            raise ProviderError(f"{path} is damaged: {words}", self.hint) from None

    def put(self, known: K) -> None:
        """Write it down. Only inside `alone`."""
        write_private(self._file(known.cluster), json.dumps(asdict(known)).encode())
        self.saved()

    def forget(self, cluster: str) -> None:
        """The cluster is given back."""
        self._file(cluster).unlink(missing_ok=True)

    def key(self) -> tuple[Path, str]:
        """The key that machines let in: file of the private half, and the public half."""
        private, public = self.directory / "id_ed25519", self.directory / "id_ed25519.pub"
        with self._locked("lock-key"):
            if not public.exists():
                from trainmaster.transport.key_pairs import make_key_pair

                pair = make_key_pair()
                write_private(private, pair.private.encode())
                write_private(public, pair.public.encode())
                self.saved()
        return private, public.read_text().strip()

    @contextlib.contextmanager
    def alone(self, cluster: str) -> Iterator[None]:
        """Hold the only right to ask for this cluster, or to give it back."""
        with self._locked(f"lock-{short_digest(cluster)[:2]}"):
            yield

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with (self.directory / name).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _file(self, cluster: str) -> Path:
        return self.directory / f"cluster-{short_digest(cluster)}.json"
