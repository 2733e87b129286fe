"""Trials of an earlier run with which a search goes on: whether they can be used, and how they are kept."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Final

from trainmaster.spec import Experiment, ParameterValue
from trainmaster.spec.errors import UsageError
from trainmaster.spec.search import FIXED_SAMPLERS
from trainmaster.spec.states import EndReason
from trainmaster.sweeps.plugins import sampler_class
from trainmaster.sweeps.space import Axis, AxisKind
from trainmaster.sweeps.trial import Curve, Trial, TrialState

#: Of trials that are over; all others have failed.
TRIAL_STATES: Final = {
    EndReason.SUCCEEDED: TrialState.COMPLETE,
    EndReason.UNTIL: TrialState.COMPLETE,
    EndReason.PRUNED: TrialState.PRUNED,
}
#: So many are known beforehand at most: each choice looks at all of them.
MOST: Final = 10_000
#: What is wrong with a key of the experiment, and how to mend it.
Mistake = tuple[tuple[str, ...], UsageError]


def ended_trial(
    number: int,
    parameters: Mapping[str, ParameterValue],
    reason: EndReason | None,
    metrics: Mapping[str, object],
    metric: str,
) -> Trial:
    """A trial that is over, with the last point of its curve."""
    state = TrialState.FAILED if reason is None else TRIAL_STATES.get(reason, TrialState.FAILED)
    value = _number(metrics, metric) if state is not TrialState.FAILED else None
    step = _number(metrics, "step")
    curve = Curve() if value is None or step is None else Curve([(step, value)])
    return Trial(number, parameters, state, value, curve)


def to_json(trials: Sequence[Trial]) -> str:
    """What is kept of trials that are over: parameters, state, value (None: no number) and last step."""
    return json.dumps(
        [
            [
                dict(each.parameters),
                each.state.value,
                each.has_value,
                each.value if each.value is not None and math.isfinite(each.value) else None,
                each.curve.last_step if len(each.curve) else None,
            ]
            for each in trials
        ]
    )


def from_json(text: str) -> tuple[Trial, ...]:
    """The trials of what `to_json` has made.

    >>> curve = Curve([(3, 0.5)])
    >>> trials = (Trial(0, {"x": 1}, TrialState.PRUNED, 0.5, curve), Trial(1, {"x": 2}, TrialState.FAILED))
    >>> from_json(to_json(trials)) == trials
    True
    """
    return tuple(
        Trial(
            number,
            parameters,
            TrialState(state),
            (math.nan if value is None else value) if has_value else None,
            Curve() if step is None else Curve([(step, math.nan if value is None else value)]),
        )
        for number, (parameters, state, has_value, value, step) in enumerate(json.loads(text))
    )


def mistakes(
    experiment: Experiment, seed: int, before: Experiment, seed_before: int, trials: Sequence[Trial]
) -> list[Mistake]:
    """Why a search cannot go on with trials of an earlier one; empty if it can.

    Args:
        experiment: with a ``search``.
        seed: of its recipe.
        before: the experiment that the trials are of.
        seed_before: of its recipe.
        trials: all that it has begun, in order.
    """
    search = experiment.search
    assert search is not None
    found = [
        _wrong(
            ("parameters",), f"the earlier tasks had other values of {name}, which is none here", "Add it."
        )
        for name in before.parameters
        if name not in experiment.parameters
    ]
    found += [
        _wrong(("parameters", name), "the earlier tasks had no such parameter", "Leave it out.")
        for name in experiment.parameters
        if name not in before.parameters
    ]
    if found:
        return found
    if not sampler_class(search.sampler).looks_back:
        return _drawn_otherwise(experiment, seed, before, seed_before, len(trials))
    for axis in (Axis(name, parameter) for name, parameter in experiment.parameters.items()):
        for trial in trials:
            value = trial.parameters[axis.name]
            if not _has(axis, value):
                what = f"{value!r}, as task {trial.number} had, is no value of it"
                found.append(_wrong(("parameters", axis.name), what, "Make it wide enough for all of them."))
                break
    if not found and not any(trial.has_value for trial in trials):
        what = f"no earlier task that succeeded has reported {search.metric}"
        found.append(_wrong(("search", "metric"), what, "Name what they have reported."))
    best_before = "last"
    if before.search is not None and before.search.goes_on and before.search.metric != search.metric:
        what = f"{search.metric}, but the earlier tasks are known by {before.search.metric}"
        found.append(_wrong(("search", "metric"), what, f"Write metric: {before.search.metric}."))
    if before.search is not None and before.search.metric == search.metric:
        best_before = before.search.best
    if search.best != best_before:
        what = f"{search.best}, but of the earlier tasks {best_before} counts"
        found.append(_wrong(("search", "best"), what, f"Write best: {best_before}."))
    return found


def _drawn_otherwise(
    experiment: Experiment, seed: int, before: Experiment, seed_before: int, count: int
) -> list[Mistake]:
    """Why a sampler whose tasks are known beforehand could repeat some of the earlier ones."""
    search = experiment.search
    assert search is not None
    name = search.sampler
    name_before = "random" if before.search is None else before.search.sampler
    if name != name_before and not {name, name_before} <= set(FIXED_SAMPLERS):
        what = f"{name} cannot know which tasks {name_before} has chosen"
        instead = ", or ".join(dict.fromkeys((name_before, "tpe")))
        return [_wrong(("search", "sampler"), what, f"Write sampler: {instead}.")]
    if seed != seed_before:
        what = f"{name} would draw with seed {seed} what was drawn before with seed {seed_before}"
        return [_wrong(("search", "sampler"), what, f"Write seed: {seed_before} in the recipe.")]
    if (experiment.samples is None) != (before.samples is None):
        had = "had samples" if before.samples is not None else "had none, but all combinations in order"
        what = f"the earlier tasks {had}"
        return [_wrong(("samples",), what, "Write it so here, too.")]
    differ = [key for key in experiment.parameters if experiment.parameters[key] != before.parameters[key]]
    if differ or list(experiment.parameters) != list(before.parameters):
        key = differ[0] if differ else next(iter(experiment.parameters))
        what = f"it is not as it was, so {name} could draw earlier tasks again"
        return [_wrong(("parameters", key), what, "Write it as it was, or sampler: tpe.")]
    all_of_them = experiment.tasks(seed).combinations
    if not any(each.is_continuous for each in experiment.parameters.values()):
        left = all_of_them - count
        if left <= 0:
            return [_wrong(("search", "from"), f"all {all_of_them} combinations were tried", "Add values.")]
        if (experiment.samples or 0) > left:
            what = f"of {all_of_them} combinations {count} were tried, and {left} are left"
            return [_wrong(("samples",), what, f"Write samples: {left}.")]
    return []


def _wrong(key: tuple[str, ...], what: str, hint: str) -> Mistake:
    return key, UsageError(what, hint)


def _has(axis: Axis, value: ParameterValue) -> bool:
    """Whether a value is one of an axis.

    >>> from trainmaster.spec import Parameter
    >>> [_has(Axis("x", Parameter(range=("0", "10"), step="5")), each) for each in (5, 10, 15, 7)]
    [True, True, False, False]
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if axis.kind is AxisKind.CONTINUOUS:
        low, high = axis.bounds
        return is_number and low <= float(value) <= high
    if axis.parameter.range is not None and not is_number:
        return False
    try:
        nearest = axis.value(axis.position(value))
    except ValueError:
        return False
    if not is_number:
        return nearest == value
    return isinstance(nearest, int | float) and math.isclose(float(nearest), float(value), rel_tol=1e-9)


def _number(metrics: Mapping[str, object], name: str) -> float | None:
    """A metric; NaN where it was no finite number (None in the store)."""
    value = metrics.get(name, "")
    if value is None:
        return math.nan
    return float(value) if isinstance(value, int | float) else None
