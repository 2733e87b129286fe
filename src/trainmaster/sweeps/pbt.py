"""`PbtSampler`: population-based training; a trial goes on from another trial's checkpoint."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from trainmaster.spec import ParameterValue
from trainmaster.sweeps.plugins import integer
from trainmaster.sweeps.sampler import Sampler, Suggestion
from trainmaster.sweeps.space import Axis, AxisKind, SearchSpace
from trainmaster.sweeps.trial import Goal, Trial

#: Probability that a copied parameter is drawn again instead of perturbed (as Ray Tune's default).
RESAMPLE = 0.25
FACTORS = (0.8, 1.2)


class PbtSampler(Sampler):
    """Trains a population; now and then the worst quarter copies the best and perturbs what it copied.

    Jaderberg et al., "Population Based Training of Neural Networks", arXiv 1711.09846: truncation selection
    and perturbation by 0.8 or 1.2 (section 4.1.1). Member m of generation g is trial g * population + m, a
    task of its own: it starts from the last checkpoint of its parent. The parent is the same member of the
    generation before, or for the worst quarter (and those that failed) one of the best quarter, drawn at
    random. Generations do not overlap, unlike the paper's, so that a table of trials gives the same
    suggestions however long each took.

    Options:
        population: members per generation.
        generations: how often they train.
    """

    name = "pbt"
    option_names = ("population", "generations")

    def __init__(self, space: SearchSpace, goal: Goal, options: Mapping[str, str]) -> None:
        super().__init__(space, goal, options)
        self._population = integer(options, "population", space.samples, least=1)
        integer(options, "generations", 1, least=1)
        self._quarter = min(max(1, self._population // 4), self._population // 2)

    def ask(self, history: Sequence[Trial], number: int) -> Suggestion | None:
        """See `Sampler.ask`; None until the generation before is over."""
        generation, member = divmod(number, self._population)
        if generation == 0:
            return Suggestion(self.space.draw(number))
        first = (generation - 1) * self._population
        before = history[first : first + self._population]
        if not all(trial.is_over for trial in before):
            return None
        ranked = sorted(before, key=lambda trial: (-self._score(trial), trial.number))
        alive = [trial for trial in ranked if self._score(trial) > -math.inf]
        if not alive:  # nothing is left to go on from
            return Suggestion(self.space.draw(number))
        own = before[member]
        best = alive[: max(1, self._quarter)]
        is_worst = own in ranked[self._population - self._quarter :] and own not in best
        if own in alive and not is_worst:
            return Suggestion(dict(own.parameters), own.number)
        rng = random.Random(self.space.seed_of("pbt", number))  # noqa: S311 - no secret
        parent = rng.choice(best)
        return Suggestion(self._explore(parent.parameters, rng), parent.number)

    def _score(self, trial: Trial) -> float:
        return self.goal.score(trial.value) if trial.has_value else -math.inf

    def _explore(self, values: Mapping[str, ParameterValue], rng: random.Random) -> dict[str, ParameterValue]:
        return self.space.complete(
            {axis.name: perturbed(axis, values[axis.name], rng) for axis in self.space.free}
        )


def perturbed(axis: Axis, value: ParameterValue, rng: random.Random) -> ParameterValue:
    """A value near another one, or now and then any.

    Numbers of a continuous range are multiplied and kept within it, ordered values move by one place, choices
    stay: a neighbour they do not have.
    """
    unit, factor = rng.random(), rng.choice(FACTORS)
    if rng.random() < RESAMPLE:
        return axis.at_unit(unit)
    if axis.kind is AxisKind.CONTINUOUS:
        return axis.value(float(value) * factor)
    if axis.kind is AxisKind.ORDERED:
        return axis.value(axis.position(value) + (1 if factor > 1 else -1))
    return value
