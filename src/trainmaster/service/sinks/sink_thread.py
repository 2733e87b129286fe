"""`SinkThread`: sinks are fed in the background, each destination by a thread of its own."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from trainmaster.service.server_loops import LoopErrorLog
from trainmaster.service.sinks.feeding import Destination, SinkFeeder
from trainmaster.spec.clocks import boot_s

LOOK_S: Final = 5.0
_LONGEST_REST_S: Final = 60.0
#: Of a team at once, so that no team fills a server with threads.
_MOST_OF_A_TEAM: Final = 8


class SinkThread:
    """Feeds in the background: one that is away or slow holds up no other.

    Args:
        feeder: of a home.
        run: only this one; None for all that were sent to a server.
    """

    def __init__(self, feeder: SinkFeeder, run: str | None = None) -> None:
        self._feeder, self._run = feeder, run
        self._last, self._end = threading.Event(), threading.Event()
        self._is_left = True
        self._errors = LoopErrorLog("sinks")
        self._at_work: dict[Destination, _Work] = {}
        self._tried_last: set[Destination] = set()
        self._thread = threading.Thread(target=self._work, name="sinks", daemon=True)

    def start(self) -> None:
        """Begin; a kill meanwhile loses nothing."""
        self._thread.start()

    def stop(self) -> None:
        """Begin nothing more; what is under way is not waited for."""
        self._end.set()
        self._last.set()

    def finish(self, is_hurried: Callable[[], bool] = lambda: False) -> str:
        """The run has ended: wait for `Feed.last_s` at most until all is sent; what to tell the user.

        Each destination is tried once at once, however long it is to be left alone after its failures.
        """
        self._last.set()
        until = time.monotonic() + self._feeder.last_s(self._run)
        while self._thread.is_alive() and time.monotonic() < until and not is_hurried():
            self._thread.join(0.05)
        self.stop()
        if not self._is_left:
            return self._feeder.unsent(self._run)
        why = f" ({trouble})" if (trouble := self._feeder.trouble(self._run)) else ""
        return f"sinks: not all is sent yet{why}; `trainmaster metrics sync {self._run}` sends the rest"

    def _work(self) -> None:
        while not self._end.is_set():
            is_last = self._last.is_set()  # read before it is looked
            with self._errors.caught():
                wanted = self._feeder.destinations(self._run)
                self._is_left = bool(wanted)
                if not wanted and is_last:
                    return
                kept = {to: work for to, work in self._at_work.items() if to in wanted or work.is_alive()}
                self._at_work = kept
                busy = Counter(to.team for to, work in kept.items() if work.is_alive())
                for to in sorted(wanted, key=lambda to: kept[to].begun_at if to in kept else 0.0):
                    if busy[to.team] < _MOST_OF_A_TEAM and (to not in kept or kept[to].may_go_on(is_last)):
                        busy[to.team] += 1
                        is_at_once = is_last and to not in self._tried_last
                        self._tried_last |= {to} if is_last else set()
                        kept[to] = _Work(self._feeder, self._run, to, is_at_once=is_at_once)
                        kept[to].start()
            (self._end if is_last else self._last).wait(LOOK_S / 10 if is_last else LOOK_S)


class _Work(threading.Thread):
    """One turn of one destination.

    Attributes:
        begun_at: seconds since the machine's start.
    """

    def __init__(self, feeder: SinkFeeder, run: str | None, to: Destination, *, is_at_once: bool) -> None:
        super().__init__(name=f"sinks of {to.url}", daemon=True)
        self._feeder, self._run, self._to, self._is_at_once = feeder, run, to, is_at_once
        self._took_s = 0.0
        self.begun_at = boot_s()

    def run(self) -> None:
        """Send what is due there."""
        with LoopErrorLog(self.name).caught():
            self._feeder.feed(self._run, self._to, is_at_once=self._is_at_once)
        self._took_s = boot_s() - self.begun_at

    def may_go_on(self, is_last: bool) -> bool:
        """Whether the next turn is due; what takes long does not go on all the time."""
        if self.is_alive():
            return False
        return is_last or boot_s() > self.begun_at + self._took_s + min(9 * self._took_s, _LONGEST_REST_S)
