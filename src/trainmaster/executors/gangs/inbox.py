"""`Inbox`: what a driver has not heard yet of its gangs, put there by the thread that conducts them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trainmaster.executors.base import GangStatus
    from trainmaster.executors.gangs.copies import Mirror
    from trainmaster.executors.gangs.placement import LiveNode

_OUTPUT_PAUSE_S = 0.05


class Inbox:
    """Of one driver.

    Args:
        token: of its lease of the run; 0 if it has none.
        env: base of its members' environment; lives here and nowhere else.
        mirror: its copies of what members write.

    Attributes:
        token: see above.
        env: see above.
        mirror: see above.
        news: newest status of attempts, the newest last.
        watches: it wants to know which members have written something.
        nodes: by key.
        waits: reasons why attempts could not be placed for a while, by attempt.
        is_over: nothing more will come.
    """

    def __init__(self, token: int, env: Mapping[str, str], mirror: Mirror) -> None:
        self.token = token
        self.env = env
        self.mirror = mirror
        self.news: dict[str, GangStatus] = {}
        self.watches = False
        self.nodes: dict[str, LiveNode] = {}
        self.waits: dict[str, str] = {}
        self.is_over = False
        self._grew: dict[tuple[str, str], None] = {}
        self._taken_at = 0.0
        self._came = threading.Condition()

    def put(self, statuses: Iterable[GangStatus]) -> None:
        """News of attempts."""
        with self._came:
            for status in statuses:
                self.news.pop(status.attempt, None)
                self.news[status.attempt] = status
            self._came.notify()

    def grew(self, attempt: str, member: str) -> None:
        """A member has written something."""
        if self.watches:
            with self._came:
                self._grew[attempt, member] = None
                self._came.notify()

    def close(self) -> None:
        """Nothing more will come."""
        with self._came:
            self.is_over = True
            self._came.notify()

    def wait(self, timeout_s: float) -> list[GangStatus]:
        """News, after waiting for some, or for output, at most ``timeout_s``; they are taken out."""
        deadline = time.monotonic() + timeout_s
        with self._came:
            while not (self.news or self.is_over):
                ripe_at = self._taken_at + _OUTPUT_PAUSE_S if self._grew else deadline
                left_s = min(deadline, ripe_at) - time.monotonic()
                if left_s <= 0:
                    break
                self._came.wait(left_s)
            news, self.news = list(self.news.values()), {}
        return news

    def output(self) -> list[tuple[str, str]]:
        """(attempt, member) of each member that has written something; they are taken out."""
        with self._came:
            grew, self._grew = list(self._grew), {}
            if grew:
                self._taken_at = time.monotonic()
        return grew

    def forget(self, attempts: Iterable[str]) -> None:
        """No news of these."""
        with self._came:
            for attempt in attempts:
                self.news.pop(attempt, None)
