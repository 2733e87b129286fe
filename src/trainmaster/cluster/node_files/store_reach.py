"""`StoreReach`: which stores nodes can use: asked once for each node, and a refusal holds for a while.

`StoreOutages`: since when stores do not answer.
"""

from __future__ import annotations

import math
import queue
import threading
import time
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from trainmaster.cluster.node_files.data_wanted import store_of
from trainmaster.cluster.node_files.worker_client import StoreRefusedError
from trainmaster.control.task.job_context import NodeGoneError
from trainmaster.objects.errors import (
    ObjectStoreError,
    StoreTrouble,
    UnreachableStoreError,
    error_of,
    trouble_of,
)
from trainmaster.spec.clocks import steady_s
from trainmaster.spec.errors import ProviderError, TrainmasterError, one_line
from trainmaster.transport.base import CommandError, ConnectionLostError

if TYPE_CHECKING:
    from trainmaster.cluster.node_access import NodeAccess
    from trainmaster.cluster.node_files.files import NodeFiles

#: For one question to a store; one that is out of reach would be waited for much longer.
_ASK_S: Final = 15.0
_WEB: Final = ("http://", "https://")
T = TypeVar("T")

_PAUSE_S: Final = 1.0
#: So often a long transfer may be cut off.
MOST_CUTS: Final = 10
#: Before what failed on a node is tried again.
_PAUSES_S: Final = (1.0, 4.0, 16.0)


class StoreAwayError(ProviderError):
    """A store that data come from does not answer; later it may."""


class StoreOutages:
    """Threads share it.

    Args:
        clock: gives Unix seconds.
    """

    def __init__(self, clock: Callable[[], float] = steady_s) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._guard = threading.Lock()

    def away(self, name: str, stores: Sequence[str], words: str, url: str = "") -> StoreAwayError:
        """Note that a store does not answer; what to raise.

        Args:
            name: of the data in the recipe.
            stores: that they come from.
            words: that the node answered with.
            url: of what was asked for there; without, the first store is meant.
        """
        # One may lie within another.
        found = [each for each in stores if f"{url}/".startswith(f"{each.rstrip('/')}/")]
        store = max(found, key=len, default=stores[0])
        now_s = self._clock()
        with self._guard:
            since_s = self._since.setdefault(store, now_s)
        at = time.strftime("%H:%M:%S", time.localtime(since_s))
        long = f" ({now_s - since_s:.0f} s)" if now_s - since_s >= 1 else ""
        return StoreAwayError(f"data.{name}: {store} has not answered since {at}{long}: {words}")

    def answers(self, stores: Sequence[str]) -> None:
        """Note that stores are well."""
        with self._guard:
            for store in stores:
                self._since.pop(store, None)


def trouble_from_here(uri: str, limit_s: float = _ASK_S) -> ObjectStoreError | None:
    """Ask a store, or the web, from this machine; what is in the way, None if it answers.

    Args:
        uri: of anything there.
        limit_s: a store that says nothing for so long does not answer.
    """
    heard: queue.SimpleQueue[ObjectStoreError | None] = queue.SimpleQueue()
    threading.Thread(target=lambda: heard.put(_asked(uri, limit_s)), name="ask a store", daemon=True).start()
    try:
        return heard.get(timeout=limit_s)
    except queue.Empty:
        return UnreachableStoreError(f"{uri}: no answer for {limit_s:g} s", url=uri)


def _asked(uri: str, limit_s: float) -> ObjectStoreError | None:
    from trainmaster.artifacts.sending import reach

    try:
        if uri.startswith(_WEB):
            with urllib.request.urlopen(uri, timeout=limit_s):  # noqa: S310 - http(s) only
                return None
        reach(uri)
    except (OSError, ValueError, TrainmasterError) as error:
        words = one_line(error) if isinstance(error, TrainmasterError) else f"{uri}: {error}"
        return error_of(trouble_of(error), words, url=uri)
    return None


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


def patiently(work: Callable[[], T], patience_s: float, *, is_returning: bool = True) -> T:
    """Try again what nodes do not answer to.

    What went on for longer than the patience before it was cut off gets all of it once more, a few times.

    Args:
        work: safe to repeat.
        patience_s: so long.
        is_returning: a node that is missing may come back: what needs it is tried again, too.

    Raises:
        ProviderError: a node was silent for too long.
        NodeGoneError: a node is missing.
    """
    failing_since, cuts = math.inf, 0
    while True:
        begun = time.monotonic()
        try:
            return work()
        except (ProviderError, NodeGoneError) as error:  # unreachable, too slow, or perhaps not there yet
            is_gone = isinstance(error, NodeGoneError) and not is_returning
            now = time.monotonic()
            was_long = isinstance(error, ConnectionLostError) and now - begun > patience_s
            if was_long and cuts < MOST_CUTS:
                failing_since, cuts = now, cuts + 1
            else:
                failing_since = min(failing_since, begun)
            if is_gone or now - failing_since > patience_s:
                raise
            time.sleep(_PAUSE_S)


def persistently(work: Callable[[], None], patience_s: float, tell: Callable[[str], None]) -> None:
    """The same, and what fails on a node, a few times: a store may be out of its reach for a moment.

    Args:
        work: safe to repeat.
        patience_s: see `patiently`.
        tell: is called each time.

    Raises:
        CommandError: it failed each time.
        ProviderError: see `patiently`.
        NodeGoneError: see `patiently`.
    """
    for pause_s in (*_PAUSES_S, None):
        try:
            patiently(work, patience_s)
            break
        except CommandError as error:
            if pause_s is None:
                raise
            tell(f"note: {one_line(error)}; it is tried again in {pause_s:.0f} s")
            time.sleep(pause_s)
        except (ProviderError, NodeGoneError) as error:  # the caller begins again, without a word
            tell(f"note: {one_line(error)}")
            raise
