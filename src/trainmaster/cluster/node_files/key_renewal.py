"""`KeyRenewal`: while a driver lives, mounts on nodes get new keys of their stores in time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trainmaster.cluster.node_files.data_wanted import Wanted, with_keys
from trainmaster.objects.delegated_credentials import EXPIRES_VARIABLE, DelegatedCredentials
from trainmaster.spec.errors import TrainmasterError, one_line

if TYPE_CHECKING:
    from trainmaster.cluster.node_access import NodeAccess

log = logging.getLogger(__name__)

_LOOK_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Mount:
    """What a node has, and when that was lent and runs out, Unix seconds."""

    node: NodeAccess
    wanted: Wanted
    given_at: float
    expires_at: float

    def is_due(self, now: float) -> bool:
        """A third of the life of its keys is over, as where they are made."""
        return now - self.given_at >= (self.expires_at - self.given_at) / 3


class KeyRenewal:
    """Remembers what was lent to which mounts, and lends it again; threads share it.

    Args:
        credentials: makes keys.
        renew: brings a node what is wanted once more, with new keys.
        clock: gives Unix seconds.
    """

    def __init__(
        self,
        credentials: DelegatedCredentials,
        renew: Callable[[NodeAccess, Wanted], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._credentials = credentials
        self._renew = renew
        self._clock = clock
        self._guard = threading.Lock()
        self._mounts: dict[tuple[str, str], _Mount] = {}
        self._asked: set[str] = set()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def brought(self, node: NodeAccess, wanted: Wanted) -> None:
        """A node has it, with the keys that were lent for it."""
        expires = wanted.credentials.get(EXPIRES_VARIABLE)
        if expires is None or wanted.order["do"] != "volume":
            return  # they last, or are not needed any more
        with self._guard:
            self._mounts[node.id, wanted.there] = _Mount(node, wanted, self._clock(), float(expires))
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="keys", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """The mounts end."""
        self._closed.set()

    def look(self) -> list[threading.Thread]:
        """Renew what is due; what fails is tried at the next look.

        Each node is asked by a thread of its own, which are returned: one that hangs keeps no other waiting.
        """
        now = self._clock()
        with self._guard:
            due = {key: each for key, each in self._mounts.items() if each.is_due(now)}
            nodes = {node for node, _ in due} - self._asked
            self._asked |= nodes
        threads = []
        for node in nodes:
            mounts = [mount for (its, _), mount in due.items() if its == node]
            threads.append(threading.Thread(target=self._look_at, args=(mounts,), name="keys", daemon=True))
            threads[-1].start()
        return threads

    def _look_at(self, mounts: Sequence[_Mount]) -> None:
        """Renew those of one node."""
        try:
            for mount in mounts:
                self._renew_one(mount)
        finally:
            with self._guard:
                self._asked -= {mount.node.id for mount in mounts}

    def _renew_one(self, mount: _Mount) -> None:
        node, wanted = mount.node, mount.wanted
        try:
            self._renew(node, with_keys(self._credentials, wanted))
        except (TrainmasterError, OSError) as error:
            log.info("keys of %s on %s: %s", wanted.name, node.id, one_line(error))
            if self._clock() > mount.expires_at:  # it has no reader any more; the node is probably lost
                with self._guard:
                    if self._mounts.get((node.id, wanted.there)) is mount:
                        del self._mounts[node.id, wanted.there]

    def _run(self) -> None:
        while not self._closed.wait(_LOOK_S):
            try:
                self.look()
            except Exception:  # the next look may do
                log.exception("keys cannot be renewed")
