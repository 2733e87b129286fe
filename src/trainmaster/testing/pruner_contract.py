"""What every pruner must keep: inherit `PrunerContract` and give it a ``pruner_class`` fixture."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import pytest

from trainmaster.sweeps import Curve, Goal, Pruner, Trial, TrialState

STEPS = 27


def trial(number: int, values: Sequence[float], state: TrialState = TrialState.RUNNING) -> Trial:
    """One whose metric had these values, from step 1 on."""
    value = values[-1] if values and state is not TrialState.FAILED else None
    return Trial(number, {}, state, value, Curve(enumerate(values, 1)))


class PrunerContract:
    """Inherited by the tests of each pruner, ours and plug-ins'.

    Attributes:
        options: as a recipe would write them; with these, what is hopeless among 20 trials of 27 steps that
            came to their end must be found.
    """

    options: ClassVar[Mapping[str, str]] = {}

    @pytest.fixture
    def pruner_class(self) -> type[Pruner]:
        """The pruner under test."""
        raise NotImplementedError("give your tests a `pruner_class` fixture")

    @pytest.fixture
    def make(self, pruner_class: type[Pruner]) -> Callable[[Goal], Pruner]:
        """Makes a pruner."""
        return lambda goal: pruner_class(goal, self.options)

    def finished(self, value: float) -> list[Trial]:
        """Trials that came to their end with the same value at each step."""
        return [trial(number, [value] * STEPS, TrialState.COMPLETE) for number in range(20)]

    def test_it_has_a_name(self, pruner_class: type[Pruner]) -> None:
        """Recipes use it."""
        assert re.fullmatch(r"[a-z][a-z0-9_-]*", pruner_class.name)

    @pytest.mark.parametrize("goal", Goal)
    @pytest.mark.parametrize("hopeless", ["worse", "nan"])
    def test_what_is_hopeless_is_ended(
        self, make: Callable[[Goal], Pruner], goal: Goal, hopeless: str
    ) -> None:
        """Of several, as some may be spared; before they come to their end, and with the reason in words."""
        bad = math.nan if hopeless == "nan" else {Goal.MAX: -9.0, Goal.MIN: 9.0}[goal]
        verdicts = [
            make(goal).verdict(trial(number, [bad] * step), self.finished(0.5))
            for number in range(20, 40)
            for step in range(1, STEPS)
        ]
        assert any(verdict.strip() for verdict in verdicts), "with these `options` it ends nothing"

    @pytest.mark.parametrize("goal", Goal)
    @pytest.mark.parametrize("value", [0.5, math.nan])
    def test_who_is_as_good_as_the_others_goes_on(
        self, make: Callable[[Goal], Pruner], goal: Goal, value: float
    ) -> None:
        """Also where no trial's value is a number."""
        for step in range(STEPS + 1):
            assert make(goal).verdict(trial(20, [value] * step), self.finished(value)) == ""

    def test_nobody_is_ended_alone(self, make: Callable[[Goal], Pruner]) -> None:
        """There is nothing to compare with."""
        assert make(Goal.MAX).verdict(trial(0, [0.1] * STEPS), []) == ""

    def test_what_was_judged_is_not_judged_again(self, make: Callable[[Goal], Pruner]) -> None:
        """Nothing new was reported since."""
        for number in range(20, 40):
            assert make(Goal.MAX).verdict(trial(number, [-9.0] * 20), self.finished(0.5), judged=20) == ""

    @pytest.mark.parametrize("seed", range(100))
    def test_any_curves(self, make: Callable[[Goal], Pruner], seed: int) -> None:
        """It remembers nothing, the order of the others says nothing, and the best of all is never ended."""
        rng = random.Random(seed)  # noqa: S311 - no secret
        kinds = [0.5, math.nan, math.inf, -math.inf, 1e308]

        def values() -> list[float]:
            count = rng.randrange(13)
            return [rng.choice([rng.gauss(0, 1), rng.gauss(0, 1), *kinds]) for _ in range(count)]

        def mixed(count: int) -> list[Trial]:
            return [trial(number, values(), rng.choice(list(TrialState))) for number in range(count)]

        goal, own, others = rng.choice(list(Goal)), trial(20, values()), mixed(rng.randrange(10))
        pruner = make(goal)
        verdict = pruner.verdict(own, others)
        pruner.verdict(trial(21, values()), mixed(5))
        shuffled = rng.sample(others, len(others))
        assert pruner.verdict(own, shuffled) == make(goal).verdict(own, others) == verdict
        best = max((goal.score(value) for other in others for value in other.curve.values), default=-math.inf)
        if all(goal.score(value) >= best for value in own.curve.values):
            assert verdict == ""
