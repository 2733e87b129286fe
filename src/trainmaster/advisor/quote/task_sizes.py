"""`TaskSizes`: how many times as long each task of a sweep takes as what was measured of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from trainmaster.advisor.model.shapes import Floats
from trainmaster.dataclass import dataclass

if TYPE_CHECKING:
    from trainmaster.advisor.model.measurement import Measurement

#: A task takes as long as a size of it to a power, before any were seen: not at all, or faster than in
#: proportion. Measured by ``benchmarks/task_sizes.py``, as is the next one.
_SIZE: Final = (0.7, 0.5)
#: The same of another choice (log), and how much equal tasks differ.
_CHOICE: Final = (0.0, 0.5)
_NOISE: Final = 0.1
#: Of more tasks the mean tells it all.
_MOST_IN_TURN: Final = 64


@dataclass(frozen=True)
class TaskSizes:
    """Of the tasks of one experiment.

    Attributes:
        factors: (tasks, S) how many times as long each trains as what was measured; empty: all alike.
        names: of the parameters in which they differ.
        seen: how many different ones were measured.
    """

    factors: Floats
    names: tuple[str, ...] = ()
    seen: int = 0

    @classmethod
    def of(
        cls, tasks: Sequence[Mapping[str, float]], measured: Sequence[Measurement], normal: Floats
    ) -> TaskSizes:
        """By what was measured of tasks whose parameters are known.

        Args:
            tasks: `task_numbers` of each.
            measured: attempts at them.
            normal: (S, 1) or (S, more) standard normal draws, the same at every call.
        """
        names = sorted(set[str]().union(*tasks))
        if not names:
            return ALIKE
        wanted = np.array([[each.get(name, 0.0) for name in names] for each in tasks]).reshape(-1, len(names))
        differ = wanted.std(axis=0) > 0
        known = [(m.of_task, seconds) for m in measured if m.of_task is not None and (seconds := _seconds(m))]
        if not differ.any() or not known:
            return ALIKE
        names = [name for name, is_other in zip(names, differ, strict=True) if is_other]
        wanted = wanted[:, differ]
        seen = np.array([[each.get(name, 0.0) for name in names] for each, _ in known])
        middle, log_s = seen.mean(axis=0), np.log([seconds for _, seconds in known])
        prior = np.array([_CHOICE if "=" in name else _SIZE for name in names])
        precision, apart = np.diag(prior[:, 1] ** -2.0), seen - middle
        both = np.linalg.inv(precision + apart.T @ apart / _NOISE**2)
        power = both @ (precision @ prior[:, 0] + apart.T @ (log_s - log_s.mean()) / _NOISE**2)
        rng = np.random.default_rng(11)
        drawn = rng.standard_normal((len(normal), len(names))) if normal.any() else 0.0 * normal
        powers = power + drawn @ np.linalg.cholesky(both).T if normal.any() else power + 0.0 * drawn
        told = tuple(dict.fromkeys(name.partition("=")[0] for name in names))
        return cls(np.exp((wanted - middle) @ powers.T), told, len({tuple(each) for each in seen.tolist()}))

    def over(self, at_once: Floats) -> Floats | float:
        """(S, m) how many times as long all of them take, by how many run at once, than if all were alike."""
        if not self.factors.size:
            return 1.0
        tasks, draws = self.factors.shape
        counts, back = np.unique(np.clip(at_once, 1, tasks).astype(int), return_inverse=True)
        return np.stack([self._in_turn(int(count)) for count in counts], axis=1).reshape(draws, -1)[:, back]

    def _in_turn(self, slots: int) -> Floats:
        """(S,): each takes the first slot that is free."""
        tasks, draws = self.factors.shape
        if tasks > _MOST_IN_TURN:
            return np.asarray(self.factors.mean(axis=0))
        free, worlds = np.zeros((slots, draws)), np.arange(draws)
        for factor in self.factors:
            free[free.argmin(axis=0), worlds] += factor
        return np.asarray(free.max(axis=0) / -(-tasks // slots))

    def note(self) -> str:
        """What is not known of them; empty if all are alike."""
        if not self.factors.size:
            return ""
        names = ", ".join(self.names)
        if self.seen == 1:
            return f"tasks differ in {names}, and one was measured: what that does to a step is a wide guess"
        return f"tasks differ in {names}: what that does to a step is learnt from {self.seen} of them"


#: All tasks are alike, as far as is known.
ALIKE: Final = TaskSizes(np.zeros((0, 1)))


def _seconds(measured: Measurement) -> float:
    step_s = measured.point.step_time_s if measured.point is not None else None
    return step_s or measured.duration_s or 0.0
