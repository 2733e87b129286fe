"""Grid and random search: every trial's parameters are known beforehand."""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster.sweeps.sampler import Sampler, Suggestion
from trainmaster.sweeps.trial import Trial


class RandomSampler(Sampler):
    """Draws with least repetition: the very tasks that the recipe has without a search.

    Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 13 (2012); pairing of
    discrete and continuous draws as in Hyper, section 2.3 (see `TaskSpace`).
    """

    name = "random"
    looks_back = False

    def ask(self, history: Sequence[Trial], number: int) -> Suggestion | None:
        """See `Sampler.ask`."""
        return Suggestion(self.space.draw(number))


class GridSampler(RandomSampler):
    """The Cartesian product, or ``samples`` of it with least repetition."""

    name = "grid"
