"""`Publication`: what the driver on a machine of its run tells the world: all that it knows, on the store."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from trainmaster.db import ExperimentChange, Progress, RunChange, TaskChange, run_facts, run_transfer
from trainmaster.service.driving.replication import Replication
from trainmaster.service.on_cluster.driver_store import BEAT_S, GIVES_UP_S, DriverStore
from trainmaster.spec.clocks import boot_s
from trainmaster.spec.errors import LeaseLostError, PublishError, StoreError, UsageError, one_line
from trainmaster.spec.states import EndReason, State

if TYPE_CHECKING:
    from trainmaster.control.loop.run_state import RunState
    from trainmaster.control.task.layout import Home
    from trainmaster.db import Change, Database, Lease
    from trainmaster.service.driving.encryption import SealingKey

#: A driver that could not report that it is there ends with this code, and is started again.
GAVE_UP: Final = 75
_AGAIN_S: Final = 1.0
_LOOK_S: Final = 1.0
#: The handler of a signal waits so long: the thread that it interrupts may hold what others need.
_LEAVES_WITHIN_S: Final = 1.0

log = logging.getLogger(__name__)


class Publication(Replication):
    """Publishes a run while it is driven, before anything is done that others must know of.

    Five arguments are those of a `Replication`, four are of the machine that it is on.

    Args:
        database: of this machine; it has this run only.
        lease: of the run.
        home: that the run is driven in.
        provider: of its machines.
        key: gives that of this run.
        store: where it is published, under our claim.
        own_cluster: that this machine belongs to.
        begun: ids of the last event and the last piece that the home has.
        give_up: ends this process: others may take it for lost.
    """

    def __init__(
        self,
        database: Database,
        lease: Lease,
        home: Home,
        provider: str,
        key: Callable[[], SealingKey],
        store: DriverStore,
        own_cluster: str,
        begun: tuple[int, int],
        give_up: Callable[[], None] = lambda: os._exit(GAVE_UP),
    ) -> None:
        super().__init__(database, lease, home, provider, key)
        self.own_cluster = own_cluster
        self._store = store
        self._last_event, self._last_piece = begun
        self._give_up = give_up
        self._publishing = threading.Lock()
        #: Experiment and number of tasks that have changed without an event, since they were published.
        self.progressed: dict[tuple[str, int], None] = {}
        self._news = self._told_news = 0
        self._rows: run_transfer.RunRows | None = None
        self._heard_at = self._said_at = boot_s()
        self._ended = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="beat", daemon=True)

    def begin(self) -> None:
        """Go on with what an earlier driver on this machine has published; then say that we are there.

        Raises:
            LeaseLostError: somebody else drives the run.
            PublishError: the store cannot be read.
        """
        found = self._store.state()
        if found is not None and found.news:
            self._news = found.news
            last = self._store.news(found.news)
            self._last_event, self._last_piece = last.last_event, last.last_piece
        super().begin()
        self.publish()
        self._beating.start()

    def close(self, run_state: RunState | None) -> None:
        """Publish the rest; it is not put together, as that would be sent once more."""
        super().close(None)
        self.publish()

    def finish(self) -> None:
        """Say that the run is over, all else was given back, and it is not driven any more."""
        self._ended.set()
        self.publish(is_over=True)

    def on_sigterm(self, *_: object) -> None:
        """Handle SIGTERM: `leave`, in a thread, as the one that is interrupted may hold what that needs.

        It waits: what ends with the machine must not be decided on as the end of a task.
        """
        leaving = threading.Thread(target=self.leave)
        leaving.start()
        leaving.join(_LEAVES_WITHIN_S)

    def leave(self) -> None:
        """End this process, as its machine ends: it says so first, and others go on with the run at once."""
        with self._publishing:  # for ever: we do nothing any more that others would not hear of
            try:
                # Before it has begun it does not know what an earlier driver here has published.
                if self._beating.is_alive() and not self._ended.is_set():
                    self._publish(is_left=True)
            finally:
                self._give_up()

    def save_private(self) -> None:
        """Publish what is needed to go on with the run's machines: before it is relied on."""
        super().save_private()
        if self._beating.is_alive():  # else `begin` does so in a moment
            self.publish()

    def committed(self, changes: Sequence[Change]) -> None:
        """Changes of a state are published before anybody acts on them."""
        for each in changes:
            if isinstance(each, Progress):
                self.progressed[each.experiment, each.task] = None
        if any(isinstance(each, TaskChange | ExperimentChange | RunChange) for each in changes):
            self.publish()

    def publish(self, *, is_over: bool = False) -> None:
        """Publish all that is new.

        Raises:
            LeaseLostError: somebody else drives the run.
        """
        with self._publishing:
            while True:
                begun = boot_s()
                try:
                    if self._store.is_followed():
                        raise LeaseLostError.of(self._lease.run)
                    self._publish(is_over=is_over)
                    self._heard_at = begun
                    return
                except PublishError as error:
                    log.warning("what became of %s is not published: %s", self._lease.run, one_line(error))
                if boot_s() - self._heard_at > GIVES_UP_S:
                    self._give_up()
                time.sleep(_AGAIN_S)

    # --- private ------------------------------------------------------------------------------------

    def _publish(self, *, is_over: bool = False, is_left: bool = False) -> None:
        run = self._lease.run
        while True:
            # Only we take from it, another thread may add meanwhile.
            progressed = [self.progressed.popitem()[0] for _ in range(len(self.progressed))]
            news = run_transfer.news_of(self._database, run, self._last_event, self._last_piece, progressed)
            if news.is_empty:
                break
            try:
                self._store.put_news(self._news + 1, news)
            except PublishError:
                self.progressed |= dict.fromkeys(progressed)
                raise
            self._news += 1
            self._last_event, self._last_piece = news.last_event, news.last_piece
        rows = run_transfer.rows_of(self._database, run, of_tasks=False)
        for name in ("turn", "lease_expires_at"):  # a renewal is nothing new
            rows.run[name] = 0 if self._rows is None else self._rows.run[name]
        now = boot_s()
        # Rows may be written after their news were looked for: those are to be named by the next state.
        is_new = self._news != self._told_news or rows != self._rows
        if is_over or is_left or is_new or now - self._said_at >= BEAT_S:
            self._store.put_state(rows, self._news, is_over=is_over, is_left=is_left)
            self._rows, self._told_news, self._said_at = rows, self._news, now

    def _beat(self) -> None:
        """Say now and then that we are there, and hear what people want: an end, that of tasks, an answer."""
        run = self._lease.run
        while not self._ended.wait(_LOOK_S):
            try:
                self.publish()
                if wish := self._store.wished():
                    self._database.want_stop(run, EndReason(wish))
                self._hear_people()
            except LeaseLostError:
                self._give_up()
            except (PublishError, StoreError) as error:
                log.info("%s: %s", run, one_line(error))

    def _hear_people(self) -> None:
        """What people have said at home: of experiments that ask for it, and which tasks are to end."""
        run = self._lease.run
        for row in self._database.experiment_rows(run):
            if row["state"] == State.WAITING and row["message"] and (said := self._store.answer(row["name"])):
                with suppress(UsageError):  # it is written down already
                    run_facts.answer(self._database, run, row["name"], said)
        known = self._database.cancelled_tasks(run)
        for name, by in self._store.cancelled_tasks().items():
            if name not in known:
                with suppress(UsageError):  # such as a replica, that its home knew as a task
                    run_facts.cancel_tasks(self._database, run, [name], by)
