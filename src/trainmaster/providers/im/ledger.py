"""`ImLedger`: what a home has asked Infrastructure Manager for, written down before it is asked.

IM knows no token of ours: a request is known by the name that its machines have in the document, and an
infrastructure by the mark in its description. This is where both, and what only we know of them, are kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from trainmaster.spec.errors import ProviderError
from trainmaster.spec.plain_json import parsed_json, typed
from trainmaster.spec.private_files import short_digest, write_private

_HINT: Final = (
    "Look in IM which infrastructures there are, destroy those that are unused, and remove the file."
)


@dataclass(frozen=True, slots=True)
class ImRequest:
    """A request that was, or is about to be, sent.

    Attributes:
        token, role, labels: of the request.
        count: how many machines.
        infrastructure: that they are in; empty if that is not known yet.
        place: the cloud, and the zone if one was named.
        instance_type: as planned.
        at: Unix seconds at which it was sent.
        machines: numbers of the machines in the infrastructure, once all are there.
    """

    token: str
    role: str
    count: int
    labels: Mapping[str, str]
    place: str
    instance_type: str
    at: float
    infrastructure: str = ""
    machines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterMemory:
    """Of one cluster.

    Attributes:
        cluster: its id.
        infrastructure: that machines are added to; empty if there is none, or the answer is not known.
        is_asked: one was asked for: if it is not known, it is to be looked for.
        asked: by the name that machines have in the document.
    """

    cluster: str
    infrastructure: str = ""
    is_asked: bool = False
    asked: Mapping[str, ImRequest] = field(default_factory=dict)

    @property
    def infrastructures(self) -> list[str]:
        """Every one that it has had, as far as is known."""
        found = [self.infrastructure, *(each.infrastructure for each in self.asked.values())]
        return [each for each in dict.fromkeys(found) if each]

    @property
    def with_machines(self) -> list[str]:
        """Those of which the first machines are made."""
        made = {each.infrastructure for each in self.asked.values() if each.machines}
        return [each for each in self.infrastructures if each in made]

    @property
    def taken(self) -> set[str]:
        """Numbers in its infrastructure of the machines that somebody uses."""
        mine = [each for each in self.asked.values() if each.infrastructure == self.infrastructure]
        return {number for each in mine for number in each.machines}


@dataclass(frozen=True, slots=True)
class ImLedger:
    """Files below a directory. Several processes may use it.

    Attributes:
        directory: of this provider in the home.
        saved: called when a file was written, before anybody relies on it.
    """

    directory: Path
    saved: Callable[[], None] = lambda: None

    def of(self, cluster: str) -> ClusterMemory | None:
        """What is known of a cluster; None if nothing was ever asked for."""
        return self._read(self._file(cluster))

    def all(self) -> list[ClusterMemory]:
        """Every cluster that is not given back."""
        found = (self._read(path) for path in sorted(self.directory.glob("cluster-*.json")))
        return [each for each in found if each is not None]

    def put(self, known: ClusterMemory) -> None:
        """Write it down. Only inside `alone`."""
        write_private(self._file(known.cluster), json.dumps(asdict(known)).encode())
        self.saved()

    def forget(self, cluster: str) -> None:
        """The cluster is given back."""
        self._file(cluster).unlink(missing_ok=True)
        for path in self.directory.glob(f"key-{short_digest(cluster)}-*"):
            path.unlink(missing_ok=True)

    def key(self, cluster: str, machine: str, content: str) -> Path:
        """File with the private key of a machine."""
        path = self.directory / f"key-{short_digest(cluster)}-{short_digest(machine)}"
        body = content.strip() + "\n"
        if not path.exists() or path.read_text() != body:
            write_private(path, body.encode())
            self.saved()
        return path

    @contextlib.contextmanager
    def alone(self, cluster: str) -> Iterator[None]:
        """Hold the only right to ask for this cluster, or to give it back."""
        with (self.directory / f"lock-{short_digest(cluster)[:2]}").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _file(self, cluster: str) -> Path:
        return self.directory / f"cluster-{short_digest(cluster)}.json"

    @staticmethod
    def _read(path: Path) -> ClusterMemory | None:
        try:
            found = typed(dict[str, Any], parsed_json(path.read_bytes()))
            return typed(ClusterMemory, found)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            words = " ".join(str(error).split())[:200]
            raise ProviderError(f"{path} is damaged: {words}", _HINT) from None
