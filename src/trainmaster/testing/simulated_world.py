"""Simulated time: a clock, what is due when, and a random generator that everything draws from."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count

#: No schedule may need more simulated time, events or calls than this: what does, makes no progress.
MAX_SECONDS = 40_000.0
MAX_CALLS = 30_000


class ViolationError(Exception):
    """An invariant does not hold: a bug in what is simulated (or in the simulation)."""


class Killed(BaseException):
    """The control process was killed: nothing of its own code runs any more."""


class World:
    """A clock that jumps from one thing that is due to the next.

    Args:
        seed: everything that happens follows from it.
        verbose: print each line of the schedule as it happens.
        most_s: a schedule that takes longer makes no progress.

    Attributes:
        now: Unix seconds.
        rng: the only source of chance.
        models: attempts whose model was published, per task.
        kept: attempts whose model is on this machine's disk, per task.
        unsaved: attempts whose last checkpoint could not be published, and was not tried again.
        unkept: attempts of tasks whose model could be neither published nor fetched, and was named.
        failure: the first invariant that did not hold.
    """

    def __init__(self, seed: int, *, verbose: bool = False, most_s: float = MAX_SECONDS) -> None:
        self.seed = seed
        self.most_s = most_s
        self.now = 1_000_000.0
        self.started_at = self.now
        self.rng = random.Random(seed)  # noqa: S311 - a schedule that replays, not a secret
        self.verbose = verbose
        self.models: dict[tuple[str, int], int] = {}
        self.kept: dict[tuple[str, int], int] = {}
        self.unkept: set[tuple[str, int, int]] = set()
        self.unsaved: set[tuple[str, int, int]] = set()
        self.lines: list[str] = []
        self.failure = ""
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._calls = 0

    def note(self, text: str) -> None:
        """A line of the schedule."""
        if self.verbose:
            print(f"{self.now - self.started_at:10.3f}  {text}")  # noqa: T201 - that is what verbose means

    def after(self, delay_s: float, happen: Callable[[], None]) -> None:
        """Let something happen later."""
        heapq.heappush(self._due, (self.now + delay_s, next(self._number), happen))

    def next_at(self) -> float | None:
        """When the next thing happens."""
        return self._due[0][0] if self._due else None

    def pass_time(self, until: float) -> None:
        """Let everything happen that is due until then."""
        while self._due and self._due[0][0] <= until:
            at, _, happen = heapq.heappop(self._due)
            self.now = max(self.now, at)
            happen()
        self.now = max(self.now, until)
        self.count_call()

    def wait(self, at_most_s: float) -> None:
        """Let time pass until something has happened, or for so long."""
        until = self.now + at_most_s
        due = self.next_at()
        self.pass_time(until if due is None else min(until, due))

    def count_call(self) -> None:
        """Notice a schedule that does not come to an end."""
        self._calls += 1
        if self._calls > MAX_CALLS or self.now - self.started_at > self.most_s:
            raise ViolationError(
                f"no progress: {self._calls} calls, {self.now - self.started_at:.0f} s and no end"
            )

    def fail(self, what: str) -> None:
        """An invariant does not hold; `require` raises it, wherever that was noticed."""
        self.failure = self.failure or what
        self.note(f"VIOLATION: {what}")

    def require(self) -> None:
        """Raise what was noticed.

        Raises:
            ViolationError: an invariant does not hold.
        """
        if self.failure:
            raise ViolationError(self.failure)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.rng.random() < probability
