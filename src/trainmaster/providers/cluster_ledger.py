"""`ClusterLedger`: what a home knows of its clusters at a place, and the key that their machines let in.

`ProviderFiles`: the files of any place in a home.

`MachineLedger`: one whose clusters are requests, each with its machines.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from trainmaster.dataclass import dataclass, field
from trainmaster.providers.base import NodeRequest
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


class ProviderFiles:
    """Files of a provider in a home. Several processes may use them.

    Args:
        directory: of the provider.
        saved: called when a file was written, before anybody relies on it.

    Attributes:
        comment: behind the public half of the key.
    """

    comment = ""

    def __init__(self, directory: Path, saved: Callable[[], None] = lambda: None) -> None:
        self.directory, self.saved = directory, saved

    @property
    def private_key(self) -> Path:
        """File of the private half of the key that machines let in."""
        return self.directory / "id_ed25519"

    def public_key(self) -> str:
        """The public half, on one line; both are made at the first use."""
        public = self.directory / "id_ed25519.pub"
        with self._locked("lock-key"):
            if not public.exists():
                from trainmaster.transport.key_pairs import make_key_pair

                pair = make_key_pair()
                write_private(self.private_key, pair.private.encode())
                write_private(public, f"{pair.public} {self.comment}".strip().encode())
                self.saved()
        return public.read_text().strip()

    def _told(self, path: Path, hint: str) -> dict[str, Any]:
        """What a file says.

        Raises:
            FileNotFoundError: it is not there.
            ProviderError: it is damaged, which must not be taken for that; with what to do.
        """
        try:
            return typed(dict[str, Any], parsed_json(path.read_bytes()))
        except ValueError as error:
            raise damaged(path, error, hint) from None

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with (self.directory / name).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class ClusterLedger(ProviderFiles, Generic[K]):
    """See `ProviderFiles`.

    Attributes:
        kind: what is known of one cluster.
        hint: what to do when a file is damaged.
    """

    kind: type[K]
    hint = ""

    def of(self, cluster: str) -> K:
        """What is known of a cluster."""
        return self._read(self._file(cluster)) or self.kind(cluster)

    def all(self) -> list[K]:
        """What is known of each cluster."""
        found = (self._read(path) for path in sorted(self.directory.glob("cluster-*.json")))
        return [known for known in found if known is not None]

    def _read(self, path: Path) -> K | None:
        try:
            return typed(self.kind, self.upgraded(self._told(path, self.hint)))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(path, error, self.hint) from None

    def upgraded(self, written: dict[str, Any]) -> dict[str, Any]:
        """What a file says, which an earlier version may have written."""
        return written

    def put(self, known: K) -> None:
        """Write it down. Only inside `alone`."""
        write_private(self._file(known.cluster), json.dumps(asdict(known)).encode())
        self.saved()

    def forget(self, cluster: str) -> None:
        """The cluster is given back."""
        self._file(cluster).unlink(missing_ok=True)

    @contextlib.contextmanager
    def alone(self, cluster: str) -> Iterator[None]:
        """Hold the only right to ask for this cluster, or to give it back."""
        with self.alone_by(short_digest(cluster)):
            yield

    @contextlib.contextmanager
    def alone_by(self, digest: str) -> Iterator[None]:
        """The same, where only the short digest of the cluster's name is known."""
        with self._locked(f"lock-{digest[:2]}"):
            yield

    def _file(self, cluster: str) -> Path:
        return self.directory / f"cluster-{short_digest(cluster)}.json"


def damaged(path: Path, error: Exception, hint: str) -> ProviderError:
    """What a file says means nothing."""
    return ProviderError(f"{path} is damaged: {' '.join(str(error).split())[:200]}", hint)


@dataclass(frozen=True, slots=True)
class KnownMachine:
    """A machine that a home was given.

    Attributes:
        address, private_address: as they were when it had any.
        where: its zone, or its node.
        started_at: Unix seconds; 0 if it never ran.
        ended_at: the same of its end; 0 if it has not ended.
        reason: why it has ended, or leaves.
        about: what else its place says of it.
    """

    address: str = ""
    private_address: str = ""
    where: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0
    reason: str = ""
    about: Mapping[str, str | int] = field(default_factory=dict)

    def ended(self, at: float, reason: str) -> KnownMachine:
        """The same after its end; the first end counts."""
        return self if self.ended_at else replace(self, ended_at=at, reason=reason)


@dataclass(frozen=True, slots=True)
class AskedMachines:
    """A request that was, or is about to be, sent.

    Attributes:
        token, role, machine, labels: of the request.
        group: tokens of those that are had with it, or not at all.
        is_made: it was answered: its machines are known.
        machines: by their ids.
        about: what else its place says of it.
    """

    token: str
    role: str
    machine: str
    labels: Mapping[str, str] = field(default_factory=dict)
    group: tuple[str, ...] = ()
    is_made: bool = False
    machines: Mapping[str, KnownMachine] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, request: NodeRequest, ids: Iterable[str] = (), *, is_made: bool = False) -> AskedMachines:
        """A request for machines, whose ids may be known."""
        machines = dict.fromkeys(ids, KnownMachine())
        labels = dict(request.labels)
        return cls(request.token, request.role, request.instance_type, labels, (), is_made, machines)

    @property
    def left(self) -> dict[str, KnownMachine]:
        """Those that have not ended."""
        return {id: each for id, each in self.machines.items() if not each.ended_at}

    def with_machines(self, machines: Mapping[str, KnownMachine]) -> AskedMachines:
        """With others, or another state of some."""
        return replace(self, machines={**self.machines, **machines})


@dataclass(frozen=True, slots=True)
class KnownCluster:
    """Of one cluster. asked: by the token of the request. about: what else there is to know of it."""

    cluster: str
    asked: Mapping[str, AskedMachines] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def machines(self) -> list[tuple[AskedMachines, str, KnownMachine]]:
        """Every one, with its request and its id."""
        return [(asked, id, each) for asked in self.asked.values() for id, each in asked.machines.items()]

    @property
    def left(self) -> list[tuple[AskedMachines, str, KnownMachine]]:
        """Those that have not ended."""
        return [each for each in self.machines if not each[2].ended_at]

    def with_requests(self, *requests: AskedMachines) -> KnownCluster:
        """With others, or another state of some."""
        return replace(self, asked={**self.asked, **{each.token: each for each in requests}})

    def with_machine(self, token: str, id: str, machine: KnownMachine) -> KnownCluster:
        """With another machine, or another state of one."""
        return self.with_requests(self.asked[token].with_machines({id: machine}))

    def with_ended(self, ids: Collection[str], at: float, reason: str) -> KnownCluster:
        """With some machines after their end; the first end of each counts."""
        found = self
        for asked, id, machine in self.machines:
            if id in ids:
                found = found.with_machine(asked.token, id, machine.ended(at, reason))
        return found

    def without(self, *tokens: str) -> KnownCluster:
        """As if these had not been asked for."""
        return replace(self, asked={key: each for key, each in self.asked.items() if key not in tokens})


class MachineLedger(ClusterLedger[KnownCluster]):
    """See `ClusterLedger`. hint: what to do when a file is damaged."""

    kind = KnownCluster

    def __init__(self, directory: Path, saved: Callable[[], None] = lambda: None, hint: str = "") -> None:
        super().__init__(directory, saved)
        self.hint = hint

    def upgraded(self, written: dict[str, Any]) -> dict[str, Any]:
        """See `ClusterLedger`."""
        from trainmaster.providers.old_ledgers import upgraded

        return upgraded(written)
