"""Leases of pushes and collections that are under way, by which they keep out of each other's way.

Each puts its own lease first and looks for the other's then; so at least one of two sees the
other. A push waits until no collection runs; a collection deletes nothing while a push runs.
Ages are judged by the store's own clock alone. That its process is dead is also known of a lease
that was made on this machine.

Leases save work: what a collection frees, no push has to send again. That no version loses anything
does not rest on them but on :mod:`trainmaster.volumes.packed.deletions`, except beside a Trainmaster
that knows no deletion lists.
"""

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple, TypeAlias

from trainmaster.objects.object_store import ObjectDetail, ObjectStore
from trainmaster.spec.clocks import boot_s
from trainmaster.spec.errors import PublishError
from trainmaster.spec.plain_json import parsed_json, typed
from trainmaster.spec.processes import is_alive, process_space, start_ticks

OperationKind: TypeAlias = Literal["pushes", "collections"]
#: A lease that was not renewed for so long is of a process that is dead.
DEAD_AFTER_S = 3600.0
_RENEWED_EVERY_S = 300.0
_WAIT_S = 600.0


class Clocks(NamedTuple):
    """What tells the time to pushes and collections.

    Attributes:
        boot_s: as `trainmaster.spec.clocks.boot_s`.
        wall_s: Unix seconds, for people who read a lease.
        sleep: waits for so many seconds.
    """

    boot_s: Callable[[], float] = boot_s
    wall_s: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


REAL_CLOCKS = Clocks()


class OperationLease:
    """An object that says that something is under way; renewed by a thread of its own.

    Attributes:
        key: of the object.
    """

    def __init__(self, store: ObjectStore, kind: OperationKind, clocks: Clocks = REAL_CLOCKS) -> None:
        self._store = store
        self.key = f"{kind}/{secrets.token_hex(8)}.json"
        self._clocks = clocks
        self._lock = threading.Lock()
        self._renewed_at = clocks.boot_s()
        self._stored_s: float | None = None
        self._has_lapsed = False
        self._put()

    def renew(self) -> float:
        """Writes the lease again.

        Returns:
            The time by the store's clock.

        Raises:
            PublishError: the store fails, or has lost the lease.
        """
        with self._lock:
            began = self._clocks.boot_s()
            self._put()
            info = self._store.info(self.key)
            if info is None:
                raise PublishError(
                    f"{self._store.url_of(self.key)} is gone.", "Somebody deleted it; try again."
                )
            # A machine that was paused from outside may not know it: the store does.
            stored_s = info.modified_s if self._stored_s is None else self._stored_s
            away_s = max(info.modified_s - stored_s, began - self._renewed_at)
            self._has_lapsed |= away_s >= DEAD_AFTER_S / 2
            self._renewed_at, self._stored_s = began, info.modified_s
            return info.modified_s

    def was_fresh(self, until_s: float) -> bool:
        """Whether others must have seen us alive, until a time by the store's clock."""
        with self._lock:
            away_s = max(until_s - (self._stored_s or until_s), self._clocks.boot_s() - self._renewed_at)
            return not self._has_lapsed and away_s < DEAD_AFTER_S / 2

    def confirm(self) -> float:
        """Checks that the lease cannot have expired for others, and renews it.

        Returns:
            The time by the store's clock.

        Raises:
            PublishError: somebody can, or the store fails.
        """
        is_there = self._store.info(self.key) is not None
        now_s = self.renew()
        if self._has_lapsed or not is_there:
            raise PublishError(
                f"{self._store.url_of(self.key)} was not renewed in time: this machine slept, or its "
                "store was away.",
                "Begin again; what was done is done.",
            )
        return now_s

    def keep(self, stopped: threading.Event) -> None:
        """Renews it until told to stop; a failure shows when it is confirmed."""
        while not stopped.wait(_RENEWED_EVERY_S):
            with suppress(PublishError, OSError):
                self.renew()

    def _put(self) -> None:
        document = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "at": self._clocks.wall_s(),
            "space": process_space(),
            "started": str(start_ticks(os.getpid()) or ""),
        }
        self._store.put(self.key, json.dumps(document).encode())


@contextmanager
def leased(store: ObjectStore, kind: OperationKind, clocks: Clocks = REAL_CLOCKS) -> Iterator[OperationLease]:
    """Keeps a lease as long as the body runs.

    Raises:
        PublishError: it cannot be written.
    """
    lease = OperationLease(store, kind, clocks)
    stopped = threading.Event()
    keeping = threading.Thread(target=lease.keep, args=(stopped,), daemon=True, name="lease")
    keeping.start()
    try:
        yield lease
    finally:
        stopped.set()
        keeping.join()
        with suppress(PublishError, OSError):
            store.delete([lease.key])


def living(store: ObjectStore, kind: OperationKind, now_s: float) -> list[ObjectDetail]:
    """Lists the leases of one kind whose owners may live."""
    return _living(store, store.details(kind), now_s)


def _living(store: ObjectStore, found: Iterable[ObjectDetail], now_s: float) -> list[ObjectDetail]:
    return [
        detail
        for detail in found
        if detail.key.endswith(".json")
        and now_s - detail.modified_s < DEAD_AFTER_S
        and not _is_dead(store, detail.key)
    ]


def owner(store: ObjectStore, key: str) -> str:
    """The owner of the lease; empty if unknown."""
    document = _document(store, key)
    if "host" not in document or "pid" not in document:
        return ""
    return f"process {document['pid']!r:.20} on {document['host']!r:.80}"  # anybody may have written it


def _is_dead(store: ObjectStore, key: str) -> bool:
    """Whether a lease is of a process of this machine that has ended; then it is taken away."""
    document = _document(store, key)
    pid, started = document.get("pid"), document.get("started")
    if type(pid) is not int or not 0 < pid < 1 << 31 or document.get("space") != process_space():
        return False
    if (
        not isinstance(started, str)
        or not started.isdecimal()
        or is_alive(pid, int(started[:20])) is not False
    ):
        return False
    with suppress(PublishError, OSError):
        store.delete([key])
    return True


def _document(store: ObjectStore, key: str) -> dict[str, Any]:
    with suppress(PublishError, OSError, ValueError):
        document: dict[str, Any] = typed(dict[str, Any], parsed_json(store.get(key) or b""))
        return document
    return {}


def wait_for_collections(
    store: ObjectStore,
    lease: OperationLease,
    say: Callable[[str], None],
    wait_s: float = _WAIT_S,
    clocks: Clocks = REAL_CLOCKS,
) -> list[ObjectDetail]:
    """Waits until no collection runs.

    Returns:
        What lies where collections leave something, as it was then.

    Raises:
        PublishError: one runs for too long, or the store fails.
    """
    deadline = clocks.boot_s() + wait_s
    pause_s = 0.05
    told = False
    while True:
        now_s = lease.renew()
        found = list(store.details("collections"))
        if not _living(store, found, now_s):
            return found
        if clocks.boot_s() > deadline:
            raise PublishError(
                f"{store.url}: `trainmaster volume gc` has been running for too long.",
                "Push again when it has ended; one that was killed is forgotten after an hour.",
            )
        if not told:
            say("waiting for `trainmaster volume gc` to end")
            told = True
        clocks.sleep(pause_s)
        pause_s = min(2 * pause_s, 2.0)
