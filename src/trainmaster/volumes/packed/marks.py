"""Marks of pushes and collections that are under way, by which they keep out of each other's way.

Each puts its own mark first and looks for the other's then; so at least one of two sees the
other. A push waits until no collection runs; a collection deletes nothing while a push runs.
Ages are judged by the store's own clock alone. That its process is dead is also known of a mark
that was made on this machine.
"""

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

from trainmaster.spec.errors import PublishError
from trainmaster.spec.processes import process_space
from trainmaster.volumes.objects import ObjectDetail, ObjectStore

MarkKind: TypeAlias = Literal["pushes", "collections"]
#: A mark that was not renewed for so long is of a process that is dead.
DEAD_AFTER_S = 3600.0
_RENEWED_EVERY_S = 300.0
_WAIT_S = 600.0


class Mark:
    """An object that says that something is under way; renewed by a thread of its own.

    Attributes:
        key: of the object.
    """

    def __init__(self, store: ObjectStore, kind: MarkKind) -> None:
        self._store = store
        self.key = f"{kind}/{secrets.token_hex(8)}.json"
        self._lock = threading.Lock()
        self._renewed_at = 0.0
        self.renew()

    def renew(self) -> None:
        """Writes the mark again.

        Raises:
            PublishError: the store fails.
        """
        document = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "at": time.time(),
            "space": process_space(),
            "started": _process_state(os.getpid())[1],
        }
        with self._lock:
            began = time.monotonic()
            self._store.put(self.key, json.dumps(document).encode())
            self._renewed_at = began

    @property
    def is_fresh(self) -> bool:
        """Whether nobody can think yet that we are dead."""
        return time.monotonic() - self._renewed_at < DEAD_AFTER_S / 2

    def store_now_s(self) -> float:
        """Gives the time by the store's clock, as of the last renewal.

        Raises:
            PublishError: the store fails, or has lost the mark.
        """
        info = self._store.info(self.key)
        if info is None:
            raise PublishError(f"{self._store.url_of(self.key)} is gone.", "Somebody deleted it; try again.")
        return info.modified_s

    def keep(self, stopped: threading.Event) -> None:
        """Renews it until told to stop; a failure shows in :attr:`is_fresh`."""
        while not stopped.wait(_RENEWED_EVERY_S):
            with suppress(PublishError, OSError):
                self.renew()


@contextmanager
def marked(store: ObjectStore, kind: MarkKind) -> Iterator[Mark]:
    """Keeps a mark as long as the body runs.

    Raises:
        PublishError: it cannot be written.
    """
    mark = Mark(store, kind)
    stopped = threading.Event()
    keeper = threading.Thread(target=mark.keep, args=(stopped,), daemon=True, name="mark")
    keeper.start()
    try:
        yield mark
    finally:
        stopped.set()
        keeper.join()
        with suppress(PublishError, OSError):
            store.delete([mark.key])


def living(store: ObjectStore, kind: MarkKind, now_s: float) -> list[ObjectDetail]:
    """Lists the marks of one kind whose owners may live."""
    return [
        detail
        for detail in store.details(kind)
        if detail.key.endswith(".json")
        and now_s - detail.modified_s < DEAD_AFTER_S
        and not _is_dead(store, detail.key)
    ]


def owner(store: ObjectStore, key: str) -> str:
    """Says whose mark it is; empty if nobody knows."""
    document = _document(store, key)
    if "host" not in document or "pid" not in document:
        return ""
    return f"process {document['pid']} on {document['host']}"


def _is_dead(store: ObjectStore, key: str) -> bool:
    """Whether a mark is of a process of this machine that has ended; then it is taken away."""
    document = _document(store, key)
    pid, started = document.get("pid"), document.get("started")
    if type(pid) is not int or pid < 1 or not started or document.get("space") != process_space():
        return False
    if not _is_gone(pid, started):
        return False
    with suppress(PublishError, OSError):
        store.delete([key])
    return True


def _is_gone(pid: int, started: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it is somebody else's
    state, now_started = _process_state(pid)
    return state in ("Z", "X") or now_started not in ("", started)


def _process_state(pid: int) -> tuple[str, str]:
    """Gives a process's state, and when it was started, in ticks; empty if it may not be known."""
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    return "", ""


def _document(store: ObjectStore, key: str) -> dict[str, Any]:
    with suppress(PublishError, OSError, ValueError):
        document = json.loads(store.get(key) or b"")
        if isinstance(document, dict):
            return document
    return {}


def wait_for_collections(
    store: ObjectStore, mark: Mark, say: Callable[[str], None], wait_s: float = _WAIT_S
) -> None:
    """Waits until no collection runs.

    Raises:
        PublishError: one runs for too long, or the store fails.
    """
    deadline = time.monotonic() + wait_s
    pause_s = 0.05
    told = False
    while True:
        mark.renew()
        if not living(store, "collections", mark.store_now_s()):
            return
        if time.monotonic() > deadline:
            raise PublishError(
                f"{store.url}: `trainmaster volume gc` has been running for too long.",
                "Push again when it has ended; one that was killed is forgotten after an hour.",
            )
        if not told:
            say("waiting for `trainmaster volume gc` to end")
            told = True
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 2.0)
