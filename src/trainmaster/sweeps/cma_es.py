"""`CmaesSampler`: covariance matrix adaptation, replayed from the table of trials."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainmaster.spec import ParameterValue
from trainmaster.spec.errors import UsageError
from trainmaster.sweeps.plugins import integer, require
from trainmaster.sweeps.sampler import Sampler, Suggestion
from trainmaster.sweeps.space import AxisKind, SearchSpace
from trainmaster.sweeps.trial import Goal, Trial

if TYPE_CHECKING:
    from cmaes import CMA  # type: ignore[import-untyped]

#: Of a trial whose value is no number: worse than any, but finite, as the algorithm wants it.
_WORST = 1e308
_SIGMA = 1 / 6  # of the unit cube: three of them reach from the middle to its faces


class CmaesSampler(Sampler):
    """Draws from a normal distribution that learns its centre, width and slants.

    Hansen, "The CMA Evolution Strategy: A Tutorial", arXiv 1604.00772; the implementation is the ``cmaes``
    package that Optuna uses too. Trials g*n to g*n + n - 1 are generation g; a generation is learnt from
    once all of it is over, by replaying the table, so there is no state to lose. While part of it still
    runs, trials of the next generation are drawn from what is known so far; CMA-ES bears learning from
    points that come from elsewhere (Hansen, "Injecting external solutions into CMA-ES", arXiv 1110.4181).
    When it has converged it begins again at another place.

    It works on the unit cube: a discrete axis is cut into equal shares. Choices without an order have no
    place in it and are drawn at random.

    Options:
        population: trials per generation (4 + 3 ln d for d numeric parameters).
    """

    name = "cmaes"
    option_names = ("population",)

    def __init__(self, space: SearchSpace, goal: Goal, options: Mapping[str, str]) -> None:
        super().__init__(space, goal, options)
        require("cmaes", "search.sampler: cmaes")
        self._numeric = [a for a in space.free if a.kind in (AxisKind.CONTINUOUS, AxisKind.ORDERED)]
        if len(self._numeric) < 2:
            raise UsageError(
                f"search.sampler: cmaes with {len(self._numeric)} numeric parameters",
                "It needs two or more ranges (or lists of rising numbers); use tpe.",
            )
        default = 4 + math.floor(3 * math.log(len(self._numeric)))
        self._population = integer(options, "population", default, least=3)
        self._optimizer: CMA | None = None
        self._learnt: list[tuple[object, ...]] = []

    def ask(self, history: Sequence[Trial], number: int) -> Suggestion | None:
        """See `Sampler.ask`."""
        optimizer = self._learn(history)
        optimizer.reseed_rng(self.space.seed_of("cmaes", number))
        point = optimizer.ask()
        values: dict[str, ParameterValue] = {
            axis.name: axis.at_unit(float(unit)) for axis, unit in zip(self._numeric, point, strict=True)
        }
        rng = random.Random(self.space.seed_of("cmaes-choice", number))  # noqa: S311 - no secret
        for axis in self.space.free:
            if axis.kind is AxisKind.CHOICE:
                values[axis.name] = axis.value(rng.randrange(axis.count))
        return Suggestion(self.space.complete(values))

    def _learn(self, history: Sequence[Trial]) -> CMA:
        """The state after all generations that are over, up to the first that is not."""
        size = self._population
        blocks = []
        for start in range(0, len(history) - size + 1, size):
            block = history[start : start + size]
            if not all(trial.is_over for trial in block):
                break
            blocks.append(tuple(block))
        seen = [tuple((t.number, t.state, t.value) for t in block) for block in blocks]
        if self._optimizer is None or self._learnt != seen[: len(self._learnt)]:
            self._optimizer, self._learnt = self._begin(0), []
        for block, marks in zip(blocks[len(self._learnt) :], seen[len(self._learnt) :], strict=True):
            self._tell(block)
            self._learnt.append(marks)
            if self._optimizer.should_stop():
                self._optimizer = self._begin(len(self._learnt))
        return self._optimizer

    def _tell(self, block: Sequence[Trial]) -> None:
        import numpy

        assert self._optimizer is not None
        solutions = []
        for trial in block:
            point = numpy.array([axis.unit(trial.parameters[axis.name]) for axis in self._numeric])
            score = self.goal.score(trial.value) if trial.has_value else -math.inf
            solutions.append((point, min(-score, _WORST)))
        self._optimizer.tell(solutions)

    def _begin(self, generation: int) -> CMA:
        import numpy
        from cmaes import CMA

        dimensions = len(self._numeric)
        centre = numpy.full(dimensions, 0.5)
        if generation:
            rng = random.Random(self.space.seed_of("cmaes-centre", generation))  # noqa: S311 - no secret
            centre = numpy.array([rng.random() for _ in range(dimensions)])
        bounds = numpy.array([[0.0, 1.0]] * dimensions)
        return CMA(mean=centre, sigma=_SIGMA, bounds=bounds, seed=0, population_size=self._population)
