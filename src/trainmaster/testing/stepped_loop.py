"""`SteppedLoop`: the real loop of a cluster, a turn at a time in simulated time.

`ClusterLoop`, `ObservedCluster`, `NodeWatch`, `Actuator` and `decide_cluster` are the real ones; what they
have threads do happens here at some later moment, one thing after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from trainmaster.cluster.actuator import Threads
from trainmaster.cluster.cluster_loop import ClusterLoop
from trainmaster.spec.errors import TrainmasterError

if TYPE_CHECKING:
    import threading

    from trainmaster.cluster.decision import WaitLimits
    from trainmaster.cluster.record import ClusterRecord
    from trainmaster.providers.base import Provider
    from trainmaster.testing.simulated_host import SimulatedProcess
    from trainmaster.testing.simulated_provisioner import SimulatedProvisioner

#: How long what the loop has others do takes at least and at most, seconds, by the first word of its name.
_TAKES_S: Final = {
    "look": (0.3, 1.0), "rent": (1.0, 5.0), "prepare": (5.0, 40.0), "form": (4.0, 12.0), "join": (3.0, 10.0),
    "probe": (0.1, 0.3), "renew": (0.3, 1.0), "packages": (0.1, 0.1), "drop": (0.5, 2.0), "back": (0.5, 2.0),
    "release": (5.0, 20.0), "search": (0.1, 0.5),
}  # fmt: skip


class _TurnIsOver(BaseException):
    """The loop would wait now."""


class _Wake:
    """What the loop waits for: the next step comes when it is due."""

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def wait(self, _: float = 0.0) -> bool:
        raise _TurnIsOver


class SteppedThreads(Threads):
    """`Threads` whose work is done at some later moment of the simulation.

    Args:
        wake: of the loop; unused, as the loop is told by `ended`.
        process: that does it.
        step: called before and after: it may be killed there.
        ended: called when something has ended.
    """

    def __init__(
        self,
        wake: threading.Event,
        process: SimulatedProcess,
        step: Callable[[str], None],
        ended: Callable[[], None],
    ) -> None:
        super().__init__(wake)
        self._process = process
        self._step = step
        self._ended = ended

    def _begin(self, name: str, work: Callable[[], object]) -> None:
        kind = name.partition(" ")[0]
        least, most = _TAKES_S[kind]
        quiet = kind in ("probe", "look")

        def stepped() -> object:
            try:
                return work()
            except Exception as error:
                if not isinstance(error, TrainmasterError | OSError):
                    self._process.world.fail(f"{name}: {type(error).__name__}: {error}")
                elif not quiet:
                    self._process.world.note(f"{self._process.name}: {name}: {error}")
                raise

        def happen() -> None:
            if not quiet:
                self._step(f"before {name}")
            self._do(name, stepped)
            if not quiet:
                self._step(f"after {name}")
            if kind != "probe":  # the next turn is soon enough
                self._ended()

        self._process.after(self._process.world.rng.uniform(least, most), happen)


class SteppedLoop(ClusterLoop):
    """The real loop, a turn at a time.

    Args:
        record, provider, provisioner, write, patience: see `ClusterLoop`.
        process: that it is of.
        step: called at each write and effect.
        pause_s: how long it waits at most when nothing happens.
        wake: called when something has happened that the run's loop looks at.
    """

    def __init__(
        self,
        record: ClusterRecord,
        provider: Provider,
        provisioner: SimulatedProvisioner,
        write: Callable[[ClusterRecord], None],
        patience: WaitLimits,
        *,
        process: SimulatedProcess,
        step: Callable[[str], None],
        pause_s: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(
            record,
            provider,
            cast("Any", provisioner),
            write,
            patience,
            tasks=lambda _: SteppedThreads(cast("Any", _Wake()), process, step, self._soon),
            **process.clocks_of(ClusterLoop),
        )
        self._process = process
        self._pause_s = pause_s
        self._tell_run = wake
        self._is_stepped = False
        self._next = 0
        self._wake = cast("Any", _Wake())

    @property
    def is_running(self) -> bool:
        """See `ClusterLoop.is_running`."""
        return self._is_stepped

    def start(self) -> None:
        """See `ClusterLoop.start`."""
        self._closed = False
        self._outage.paused()
        if not self._is_stepped:
            self._is_stepped = True
            self._soon()

    def want(self) -> None:
        """See `ClusterLoop.want`."""
        if not self._wanted:
            super().want()
            self._soon()

    def end(self) -> None:
        """See `ClusterLoop.end`."""
        if not self._ending:
            super().end()
            self._soon()

    def broken(self, number: int) -> None:
        """See `ClusterLoop.broken`."""
        super().broken(number)
        self._soon()

    def close(self) -> None:
        """See `ClusterLoop.close`."""
        self._closed = True
        self._is_stepped = False
        self._next += 1
        self._watch.close()

    def _soon(self, delay_s: float = 0.0) -> None:
        if self._is_stepped:
            self._next += 1
            number = self._next
            self._process.after(delay_s, lambda: self._step(number))

    def _step(self, number: int) -> None:
        if number != self._next or not self._is_stepped:
            return
        before = self.record
        try:
            self._run()
        except _TurnIsOver:
            if self.record is not before:
                self._tell_run()
            rng = self._process.world.rng
            busy = self._observed.formation is None and rng.random() < 0.5
            self._soon(2.0 if busy else self._pause_s() * rng.uniform(0.5, 1.0))
        else:
            self._is_stepped = False
            self._tell_run()
