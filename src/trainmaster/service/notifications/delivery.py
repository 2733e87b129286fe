"""`Delivery`: tells those who want to know what happened to a run, beside the loop that drives it.

A message is sent at least once. After a failure its receiver is left alone for 1 s, 2 s, 4 s ... up to five
minutes; a day after its event a message is given up, and an event of the run says so. What is to be sent is
written with the events: see `trainmaster.db.outbox`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from trainmaster.control.notes.notifier import Message, Notifier, make_notifier
from trainmaster.service.runs.stored_recipe import stored_recipe
from trainmaster.spec.errors import StoreError, TrainmasterError
from trainmaster.spec.redaction import redacted
from trainmaster.spec.units import counted

if TYPE_CHECKING:
    from trainmaster.db import Database, Lease
    from trainmaster.spec.topics import Subscription

SEND_TIMEOUT_S: Final = 30.0
GIVE_UP_S: Final = 24 * 3600.0
LONGEST_PAUSE_S: Final = 300.0
#: What happened is told so soon.
LOOK_S: Final = 1.0
#: At the end of a run its driver waits so long until all are told.
LAST_S: Final = 10.0
#: What is left is counted so far.
_COUNTED: Final = 100


def pause_s(failures: int) -> float:
    """How long a receiver is left alone after so many failures, one after the other.

    >>> [pause_s(failures) for failures in (1, 2, 3, 9, 10, 5000)]
    [1.0, 2.0, 4.0, 256.0, 300.0, 300.0]
    """
    return min(2.0 ** min(failures - 1, 16), LONGEST_PAUSE_S)


class Delivery:
    """Delivers the messages of one run as long as its driver holds the lease.

    Args:
        outbox: the database.
        lease: of the run.
        subscriptions: the recipe's.
        environ: of whoever runs or resumes.
        make: makes a notifier.
        clock: Unix seconds.
    """

    def __init__(
        self,
        outbox: Database,
        lease: Lease,
        subscriptions: Sequence[Subscription],
        environ: Mapping[str, str],
        make: Callable[[str, str, Mapping[str, str]], Notifier] = make_notifier,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._outbox = outbox
        self._lease = lease
        self._subscriptions = subscriptions
        self._environ = environ
        self._make = make
        self._clock = clock
        self._failures: dict[int, int] = {}
        self._away_until: dict[int, float] = {}
        self._trouble = ""
        self._last = threading.Event()  # the run has ended: nothing is written after that
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to deliver in the background; what an earlier driver has left comes first."""
        if self._subscriptions:
            # Not waited for when the process ends: a message that was not taken is in the outbox.
            self._thread = threading.Thread(target=self._work, name="delivery", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Begin no other message. The present one is not waited for."""
        self._end.set()
        self._last.set()  # it may be waiting

    def finish(self, is_hurried: Callable[[], bool] = lambda: False) -> str:
        """The run has ended: wait for `LAST_S` at most until all are told; what to tell the user."""
        if self._thread is None:
            return ""
        self._last.set()
        until = time.monotonic() + LAST_S
        while self._thread.is_alive() and time.monotonic() < until and not is_hurried():
            self._thread.join(0.05)
        self.stop()
        with suppress(StoreError):
            if left := len(self._outbox.messages(self._lease.run, limit=_COUNTED + 1)):
                why = f" ({self._trouble})" if self._trouble else ""
                many = f"{counted(min(left, _COUNTED), 'message')} {'is' if left == 1 else 'are'}"
                more = "more than " if left > _COUNTED else ""
                run = self._lease.run
                later = f"`trainmaster resume {run}` sends them (and goes on with a run that did not succeed)"
                return f"notify: {more}{many} not sent yet{why}; {later}"
        return ""

    def deliver_due(self) -> bool:
        """Try what may be sent now; whether anything is left.

        Raises:
            StoreError: the database is away; what was sent just now may be sent once more.
        """
        now = self._clock()
        away = {number for number, until in self._away_until.items() if until > now}
        for row in self._outbox.messages(self._lease.run, away):
            if self._end.is_set():
                break
            if row["subscription"] not in away and not self._deliver(row):
                away.add(row["subscription"])
        return bool(self._outbox.messages(self._lease.run, limit=1))

    def _work(self) -> None:
        while not self._end.is_set():
            is_last = self._last.is_set()  # read before it is looked
            with suppress(StoreError, OSError):  # it is away, or full: the loop says so
                if not self.deliver_due() and is_last:
                    return
            if is_last:
                self._end.wait(LOOK_S / 4)
            else:
                self._last.wait(LOOK_S)

    def _deliver(self, row: Mapping[Any, Any]) -> bool:
        """Try one message; False if its receiver does not take it."""
        if not self._outbox.claim_message(self._lease, row["id"], row["tries"]):
            return True
        number = row["subscription"]
        trouble = self._send(row)
        if trouble is None:
            self._failures.pop(number, None)
            self._outbox.end_message(self._lease, row["id"], self._clock())
            return True
        now = self._clock()
        self._trouble = trouble
        self._failures[number] = self._failures.get(number, 0) + 1
        self._away_until[number] = now + pause_s(self._failures[number])
        if now - row["at"] >= GIVE_UP_S:
            why = f"notify.{number}: event {row['event_id']} was not told in {row['tries'] + 1} tries"
            self._outbox.end_message(self._lease, row["id"], now, f"{why}: {trouble}")
        return False

    def _send(self, row: Mapping[Any, Any]) -> str | None:
        """Send one message; what went wrong."""
        try:
            wanted = self._subscriptions[row["subscription"]]
            self._make(wanted.notifier, wanted.to, self._environ).send(Message.of(row), SEND_TIMEOUT_S)
        except TrainmasterError as error:
            return str(error.args[0])
        except Exception as error:  # noqa: BLE001 - a plug-in may raise anything
            return redacted(str(error)) or type(error).__name__
        return None


def deliver_left(database: Database, run: str, environ: Mapping[str, str]) -> str:
    """Send what the last driver of a run that is over has left; what to tell the user of what is still left.

    Nothing is done if somebody drives it.
    """
    if not database.messages(run, limit=1):
        return ""
    lease = database.acquire(run)
    if lease is None:
        return ""
    try:
        delivery = Delivery(database, lease, stored_recipe(database.run_row(run)).notify, environ)
        delivery.start()
        return delivery.finish()
    finally:
        database.release(lease)
