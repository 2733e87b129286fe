"""What every sampler must keep: inherit `SamplerContract` and give it a ``sampler_class`` fixture."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping
from typing import ClassVar

import pytest

from trainmaster.spec import Parameter, ParameterValue, Sampling
from trainmaster.sweeps import Goal, Sampler, SearchSpace, Trial, TrialState

#: One of each kind of parameter.
PARAMETERS: Mapping[str, Parameter] = {
    "lr": Parameter(range=("1e-5", "1e-1"), sampling=Sampling.LOG),
    "momentum": Parameter(range=("0.5", "0.99")),
    "depth": Parameter(range=("2", "32"), step="2"),
    "width": Parameter(values=(64, 128, 256), texts=("64", "128", "256")),
    "act": Parameter(values=("relu", "gelu", True), texts=("relu", "gelu", "true")),
    "fixed": Parameter(values=("only",), texts=("only",)),
}


def quadratic(values: Mapping[str, ParameterValue]) -> float:
    """Lowest at lr = 1e-3, momentum = 0.9, depth = 8, gelu."""
    return (
        (math.log10(float(values["lr"])) + 3) ** 2
        + (4 * (float(values["momentum"]) - 0.9)) ** 2
        + ((float(values["depth"]) - 8) / 16) ** 2
        + float(values["act"] != "gelu")
    )


class SamplerContract:
    """Inherited by the tests of each sampler, ours and plug-ins'.

    Attributes:
        samples: trials of one search.
        options: as a recipe would write them.
    """

    samples: ClassVar[int] = 24
    options: ClassVar[Mapping[str, str]] = {}

    @pytest.fixture
    def sampler_class(self) -> type[Sampler]:
        """The sampler under test."""
        raise NotImplementedError("give your tests a `sampler_class` fixture")

    @pytest.fixture
    def make(self, sampler_class: type[Sampler]) -> Callable[..., Sampler]:
        """Makes a sampler that has seen nothing yet."""

        def make(seed: int = 0, goal: Goal = Goal.MIN) -> Sampler:
            return sampler_class(SearchSpace(PARAMETERS, self.samples, seed), goal, self.options)

        return make

    def search(
        self, sampler: Sampler, seed: int, objective: Callable[[Mapping[str, ParameterValue]], float]
    ) -> list[Trial]:
        """A whole search: up to three trials at a time, which end in any order and not all of them well."""
        rng = random.Random(seed)  # noqa: S311 - no secret
        history: list[Trial] = []
        while True:
            running = [trial for trial in history if not trial.is_over]
            if len(history) < self.samples and len(running) < 3:
                suggestion = sampler.ask(history, len(history))
                if suggestion is not None:
                    self.check(suggestion.parameters)
                    history.append(Trial(len(history), suggestion.parameters))
                    continue
                assert running, "it waits, but nothing runs"
            if not running:
                return history
            ended = rng.choice(running)
            state = rng.choice([TrialState.COMPLETE] * 6 + [TrialState.PRUNED, TrialState.FAILED])
            value = rng.choice([objective(ended.parameters)] * 9 + [math.nan])
            history[ended.number] = Trial(
                ended.number, ended.parameters, state, None if state is TrialState.FAILED else value
            )

    def check(self, values: Mapping[str, ParameterValue]) -> None:
        """Every parameter has one of its values."""
        assert list(values) == list(PARAMETERS), "in the recipe's order"
        for name, value in values.items():
            parameter = PARAMETERS[name]
            if parameter.is_continuous:
                low, high = parameter.bounds
                assert isinstance(value, float)
                assert low <= value <= high
            else:
                known = [parameter.value(at) for at in range(parameter.count)]
                assert (type(value), value) in [(type(found), found) for found in known]

    def test_it_has_a_name(self, sampler_class: type[Sampler]) -> None:
        """Recipes use it."""
        assert re.fullmatch(r"[a-z][a-z0-9_-]*", sampler_class.name)

    @pytest.mark.parametrize("seed", range(3))
    def test_a_search_comes_to_its_end(self, make: Callable[..., Sampler], seed: int) -> None:
        """With trials that fail, are pruned or give NaN."""
        assert len(self.search(make(seed), seed, quadratic)) == self.samples

    def test_any_prefix_gives_the_same_suggestion_after_a_restart(self, make: Callable[..., Sampler]) -> None:
        """What it remembers of a search changes nothing: the table is the truth."""
        history = self.search(make(), 0, quadratic)
        remembers = make()
        for number in range(self.samples):
            expected = remembers.ask(history[:number], number)
            assert make().ask(history[:number], number) == expected
            assert remembers.ask(history[:number], number) == expected, "asked twice"
        assert remembers.ask(history[:5], 5) == make().ask(history[:5], 5), "an earlier table again"

    def test_trials_that_end_late_change_nothing_either(self, make: Callable[..., Sampler]) -> None:
        """First RUNNING, then over: as if it had been over at once."""
        history = self.search(make(), 1, quadratic)
        remembers = make()
        for number in range(3, self.samples):
            late = [
                *history[: number - 2],
                *(Trial(t.number, t.parameters) for t in history[number - 2 : number]),
            ]
            assert remembers.ask(late, number) == make().ask(late, number)

    def test_another_seed_gives_another_search(self, make: Callable[..., Sampler]) -> None:
        """And the same seed the same."""
        assert make(1).ask([], 0) == make(1).ask([], 0)
        assert make(1).ask([], 0) != make(2).ask([], 0), "take what is random from `space.seed_of`"

    @pytest.mark.parametrize("goal", Goal)
    @pytest.mark.parametrize("value", [0.5, math.nan, math.inf, -math.inf])
    def test_an_objective_that_ties(self, make: Callable[..., Sampler], goal: Goal, value: float) -> None:
        """Nothing can be learnt from it, and nothing breaks."""
        assert len(self.search(make(goal=goal), 3, lambda values: value)) == self.samples
