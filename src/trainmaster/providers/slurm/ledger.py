"""`SlurmLedger`: what a home knows of the jobs of its clusters: names of nodes, what was given back, keys."""

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

_HINT: Final = "Look with `squeue --me` what there is, `scancel` what is unused, and remove the file."


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job, or a component of one, that a request was answered with.

    Attributes:
        id: Slurm's. token, role, count, labels, machine: of the request.
        lease_s: of the request.
        nodes: names of its nodes in the order of their seats, from when it ran first; else empty.
        addresses: of them, by name.
        given_back: seats that were.
        batch: the node that its script runs on.
        started_at: Unix seconds; 0 if it never ran.
        ended_at: the same of its end; 0 if it has not ended.
        reason: why it has ended.
    """

    id: str
    token: str
    role: str
    count: int
    machine: str
    labels: Mapping[str, str] = field(default_factory=dict)
    lease_s: float = 900.0
    nodes: tuple[str, ...] = ()
    addresses: Mapping[str, str] = field(default_factory=dict)
    given_back: tuple[int, ...] = ()
    batch: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0
    reason: str = ""

    def seat_id(self, seat: int) -> str:
        """How a machine of it is called: its node is not known while it waits."""
        return f"{self.id}.{seat}"

    @property
    def seats(self) -> list[int]:
        """Those that are not given back."""
        return [seat for seat in range(self.count) if seat not in self.given_back]


@dataclass(frozen=True, slots=True)
class KnownCluster:
    """Of one cluster. jobs: by the token of their request. host_key: private and public half."""

    cluster: str
    jobs: Mapping[str, KnownJob] = field(default_factory=dict)
    host_key: tuple[str, str] = ("", "")

    def with_job(self, job: KnownJob) -> KnownCluster:
        """With another job, or another state of one."""
        return KnownCluster(self.cluster, {**self.jobs, job.token: job}, self.host_key)


@dataclass(frozen=True, slots=True)
class SlurmLedger:
    """Files below a directory. Several processes may use it.

    Attributes:
        directory: of this provider in the home.
        saved: called when a file was written, before anybody relies on it.
    """

    directory: Path
    saved: Callable[[], None] = lambda: None

    def of(self, cluster: str) -> KnownCluster:
        """What is known of a cluster."""
        path = self._file(cluster)
        try:
            return typed(KnownCluster, typed(dict[str, Any], parsed_json(path.read_bytes())))
        except FileNotFoundError:
            return KnownCluster(cluster)
        except (ValueError, KeyError, TypeError) as error:
            words = " ".join(str(error).split())[:200]
            raise ProviderError(f"{path} is damaged: {words}", _HINT) from None

    def put(self, known: KnownCluster) -> None:
        """Write it down. Only inside `alone`."""
        write_private(self._file(known.cluster), json.dumps(asdict(known)).encode())
        self.saved()

    def forget(self, cluster: str) -> None:
        """The cluster is given back."""
        self._file(cluster).unlink(missing_ok=True)

    def key(self) -> tuple[Path, str]:
        """The key that nodes let in: file of the private half, and the public half."""
        private, public = self.directory / "id_ed25519", self.directory / "id_ed25519.pub"
        with self._locked("lock-key"):
            if not public.exists():
                from trainmaster.transport.key_pairs import make_key_pair

                pair = make_key_pair()
                write_private(private, pair.private.encode())
                write_private(public, pair.public.encode())
                self.saved()
        return private, public.read_text().strip()

    def host_key(self, cluster: str) -> tuple[str, str]:
        """The key that all nodes of a cluster are known by: private and public half. Only inside `alone`."""
        known = self.of(cluster)
        if not known.host_key[0]:
            from trainmaster.transport.key_pairs import make_key_pair

            pair = make_key_pair()
            known = KnownCluster(cluster, known.jobs, (pair.private, pair.public))
            self.put(known)
        return known.host_key

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
