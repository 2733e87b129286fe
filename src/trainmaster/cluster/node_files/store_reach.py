"""`StoreReach`: which stores nodes can use: asked once for each node, and a refusal holds for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

from trainmaster.cluster.node_files.data_wanted import store_of
from trainmaster.cluster.node_files.worker_client import StoreRefusedError
from trainmaster.objects.errors import StoreTrouble

if TYPE_CHECKING:
    from trainmaster.cluster.node_access import NodeAccess
    from trainmaster.cluster.node_files.files import NodeFiles


#: After so long a node that could not use a store may be able to; if it got no answer, sooner.
AGAIN_S: Final = 300.0
AWAY_AGAIN_S: Final = 30.0


class StoreReach:
    """Threads share it.

    Args:
        files: of nodes: asks.
        clock: gives seconds.
    """

    def __init__(self, files: NodeFiles, clock: Callable[[], float]) -> None:
        self._files = files
        self._clock = clock
        self._reached: set[tuple[str, str]] = set()
        self._refused: dict[tuple[str, str], tuple[float, str, str]] = {}
        self._guard = threading.Lock()

    def require(
        self, node: NodeAccess, uri: str, credentials: Mapping[str, str], *, is_urgent: bool = False
    ) -> None:
        """See that a node can use a store.

        Args:
            node: which.
            uri: of anything there.
            credentials: see `store_environment`.
            is_urgent: much depends on it, and a node may be busy: it is asked once more.

        Raises:
            StoreRefusedError: it cannot.
            ProviderError: the node cannot be reached.
        """
        key = (node.id, store_of(uri))
        with self._guard:
            if key in self._reached:
                return
        self.require_not_refused(node, key[1])
        try:
            try:
                self._files.reach(node, uri, credentials)
            except StoreRefusedError:
                if not is_urgent:
                    raise
                self._files.reach(node, uri, credentials)
        except StoreRefusedError as error:
            self.refuse(key[1], error)
            raise
        with self._guard:
            self._reached.add(key)

    def require_not_refused(self, node: NodeAccess, what: str) -> None:
        """See that a node has not refused a moment ago.

        Args:
            node: which.
            what: a store, or a directory that is to be filled.

        Raises:
            StoreRefusedError: it has.
        """
        with self._guard:
            at, reason, trouble = self._refused.get((node.id, what), (0.0, "", ""))
        is_away = trouble == StoreTrouble.UNREACHABLE
        if reason and self._clock() - at < (AWAY_AGAIN_S if is_away else AGAIN_S):
            raise StoreRefusedError(node, reason, trouble)

    def refuse(self, what: str, error: StoreRefusedError) -> None:
        """Note that a node refuses; see `require_not_refused`."""
        with self._guard:
            self._reached.discard((error.node, what))
            words = str(error.args[0]).partition(": ")[2]
            self._refused[(error.node, what)] = (self._clock(), words, error.trouble)

    def forget_refusals(self, whats: Collection[str]) -> None:
        """They were no node's fault: all are asked again.

        Args:
            whats: stores and directories.
        """
        with self._guard:
            self._refused = {key: known for key, known in self._refused.items() if key[1] not in whats}
