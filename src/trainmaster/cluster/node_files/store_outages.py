"""`StoreOutages`: since when stores do not answer."""

from __future__ import annotations

import queue
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from typing import Final

from trainmaster.objects.errors import ObjectStoreError, UnreachableStoreError, error_of, trouble_of
from trainmaster.spec.clocks import steady_s
from trainmaster.spec.errors import ProviderError, TrainmasterError, one_line

#: For one question to a store; one that is out of reach would be waited for much longer.
_ASK_S: Final = 15.0
_WEB: Final = ("http://", "https://")


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
