"""Background work of a control loop: at most a few threads, results collected by the loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import replace

from trainmaster.control.decide.task import EffectKind, Job, PhaseDuration
from trainmaster.spec.clocks import boot_s

#: (experiment, task, attempt, kind)
JobKey = tuple[str, int, int, EffectKind]

#: Threads of each pool. Staging has a pool of its own: four tasks that wait for one `setup` must not
#: hold up the checkpoints of all others.
THREADS = 4
_Todo = queue.SimpleQueue[tuple[JobKey, Job, Callable[[], Job]]]


class Jobs:
    """Runs jobs in daemon threads, started when the first job comes. One loop owns it.

    Args:
        most_staged: how many attempts are staged at the same time.
        clock: gives seconds, for how long something took.

    Attributes:
        published: is told how many seconds it took to publish something, with waiting for a thread.
    """

    def __init__(self, most_staged: int = THREADS, clock: Callable[[], float] = boot_s) -> None:
        self.published: Callable[[float], None] = lambda _: None
        self._clock = clock
        self._begun_at: dict[int, float] = {}
        self._limits = {True: most_staged, False: THREADS}
        self._results: dict[JobKey, Job] = {}
        self._todo: dict[bool, _Todo] = {True: queue.SimpleQueue(), False: queue.SimpleQueue()}
        self._done: queue.SimpleQueue[tuple[JobKey, Job, Job]] = queue.SimpleQueue()
        self._threads = {True: 0, False: 0}
        self._pending = 0

    @property
    def pending(self) -> int:
        """How many jobs have not ended yet."""
        return self._pending

    def of(self, experiment: str, task: int, attempt: int) -> dict[EffectKind, Job]:
        """What is known of an attempt's jobs."""
        found = {}
        for kind in _KINDS:
            job = self._results.get((experiment, task, attempt, kind))
            if job is not None:
                found[kind] = job
        return found

    def begin(self, key: JobKey, work: Callable[[], Job], *, quick: bool = False) -> None:
        """Start a job unless it is under way; ``quick`` ones run here and now."""
        known = self._results.get(key)
        if known is not None and not known.done:
            return
        if quick:
            self._results[key] = _guarded(work)
            return
        begun = self._results[key] = Job()
        self._begun_at[id(begun)] = self._clock()
        self._pending += 1
        # What is to be kept must not wait behind what waits for a store that says nothing.
        staging = key[3] in (EffectKind.STAGE, EffectKind.KEEP)
        self._todo[staging].put((key, begun, work))
        if self._threads[staging] < min(self._limits[staging], self._pending):
            self._threads[staging] += 1
            name = f"{'stage' if staging else 'publish'}-{self._threads[staging]}"
            threading.Thread(target=self._work, args=(self._todo[staging],), name=name, daemon=True).start()

    def collect(self) -> bool:
        """Take in what has ended; True if anything had."""
        any_new = False
        while True:
            try:
                key, begun, job = self._done.get_nowait()
            except queue.Empty:
                return any_new
            any_new = True
            self._pending -= 1
            begun_at = self._begun_at.pop(id(begun))
            took_s = self._clock() - begun_at
            if not job.error and (job.progressed or "model_uri" in job.fields):
                self.published(took_s)
            if not job.error and key[3] is EffectKind.SAVE:
                job = replace(job, took=(PhaseDuration("saving", "", took_s),))
            if self._results.get(key) is begun:  # it was not dropped, nor begun again since
                self._results[key] = job

    def drop(self, experiment: str, task: int, attempt: int) -> None:
        """Forget an attempt's jobs."""
        for kind in _KINDS:
            self._results.pop((experiment, task, attempt, kind), None)

    def _work(self, todo: _Todo) -> None:
        while True:
            key, begun, work = todo.get()
            self._done.put((key, begun, _guarded(work)))


_KINDS = (EffectKind.STAGE, EffectKind.CHECKPOINT, EffectKind.RECOVER, EffectKind.SAVE, EffectKind.KEEP)


def _guarded(work: Callable[[], Job]) -> Job:
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - a bug in a job must end one task, not the loop
        return Job(done=True, error=f"internal error: {type(error).__name__}: {error}")
