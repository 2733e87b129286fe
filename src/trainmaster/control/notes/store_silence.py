"""`StoreSilence`: warn early when a store accepts connections but does not answer."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Final

from trainmaster.control.loop.run_state import RunState
from trainmaster.dataclass import dataclass
from trainmaster.db import Note
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.states import State

#: The store is asked when no job has begun or ended for so long, and again after so long.
PATIENCE_S: Final = 2.0
AGAIN_S: Final = 5.0
_SAVING: Final = (State.SAVING, State.RECOVERING, State.STOPPING)
_MOST_NAMED: Final = 3


def _ask(url: str) -> bool:
    from trainmaster.objects import ObjectStore

    try:
        return ObjectStore(url).answers()
    except TrainmasterError:
        return True  # it is told where the store is needed


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="ask-store", daemon=True).start()


@dataclass
class StoreSilence:
    """Asks a run's store in the background while jobs are under way that may wait for it.

    Args:
        url: of the store, without passwords.
        ask: whether it answers; may take seconds.
        begin: does something in the background.
    """

    url: str
    ask: Callable[[str], bool] = _ask
    begin: Callable[[Callable[[], None]], None] = _in_background

    def __post_init__(self) -> None:
        """No store is asked."""
        self._answers: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._is_asking = False
        self._pending = 0
        self._moved_at = self._asked_at = 0.0
        self._since: float | None = None

    @property
    def is_silent(self) -> bool:
        """Whether it did not answer when it was asked last."""
        return self._since is not None

    def look(self, run_state: RunState, pending: int, now: float) -> list[Note]:
        """What is new; never waits.

        Args:
            run_state: the run.
            pending: how many jobs are under way.
            now: Unix seconds.
        """
        if pending != self._pending:
            self._pending, self._moved_at = pending, now
        notes = self._heard(run_state)
        is_stuck = pending and now - self._moved_at >= PATIENCE_S
        if (is_stuck or self.is_silent) and not self._is_asking and now - self._asked_at >= AGAIN_S:
            self._is_asking, self._asked_at = True, now
            self.begin(lambda: self._answers.put(self.ask(self.url)))
        return notes

    def _heard(self, run_state: RunState) -> list[Note]:
        try:
            answers = self._answers.get_nowait()
        except queue.Empty:
            return []
        self._is_asking = False
        if answers != self.is_silent:
            return []
        if answers:
            self._since = None
            return [Note(f"{self.url} answers again")]
        self._since = self._asked_at
        at = time.strftime("%H:%M:%S", time.localtime(self._since))
        return [
            Note(
                f"{self.url} has not answered since {at}. {_waiting(run_state)} nothing is lost, and it "
                "goes on when the store answers. Look at its server and the network (AWS_ENDPOINT_URL, where "
                f"it is set); `trainmaster cancel {run_state.run}` ends the run and keeps here what is not "
                "saved."
            )
        ]


def _waiting(run_state: RunState) -> str:
    names = [f"{task.experiment}/{task.number}" for task in run_state.live_tasks() if task.state in _SAVING]
    if not names:
        return "What is to be published or fetched waits:"
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"What {', '.join(names[:_MOST_NAMED])}{more} left waits to be saved:"
