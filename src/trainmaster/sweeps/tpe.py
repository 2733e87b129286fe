"""`TpeSampler`: Optuna's Tree-structured Parzen Estimator on a study that is rebuilt from our trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainmaster.sweeps.plugins import integer, require
from trainmaster.sweeps.sampler import Sampler, Suggestion
from trainmaster.sweeps.space import Axis, AxisKind, SearchSpace
from trainmaster.sweeps.trial import Goal, Trial, TrialState

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

#: Random trials before the model has a say, at most a third of all.
STARTUP = 10


class TpeSampler(Sampler):
    """Models where good trials lie, and tries what is likelier among them than among the others.

    Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NIPS 2011, section 4; multivariate and
    with the defaults of Watanabe, arXiv 2304.11127. Trials under way count as bad ("constant liar":
    Ginsbourger et al. 2010), so parallel trials keep away from each other. Every trial has a seed of its
    own.

    The study lives in memory. It follows the history trial by trial; where it cannot (another history, or the
    first one after a restart) it is built anew.

    Options:
        startup: random trials at the beginning (10, at most a third of ``samples``).
    """

    name = "tpe"
    option_names = ("startup",)

    def __init__(self, space: SearchSpace, goal: Goal, options: Mapping[str, str]) -> None:
        super().__init__(space, goal, options)
        require("optuna", "search.sampler: tpe")
        self._startup = integer(options, "startup", min(STARTUP, max(2, space.samples // 3)), least=1)
        self._study: _Study | None = None

    def ask(self, history: Sequence[Trial], number: int) -> Suggestion | None:
        """See `Sampler.ask`."""
        if not self.space.free or sum(trial.has_value for trial in history) < self._startup:
            return Suggestion(self.space.draw(number))
        if self._study is None or not self._study.follow(history):
            self._study = _Study(self.space, self.goal)
            self._study.follow(history)
        return Suggestion(self.space.complete(self._study.ask(self.space.seed_of("tpe", number))))


class _Study:
    """An Optuna study that mirrors a history: trial i of the one is trial i of the other.

    (The order matters: a trial's weight falls with its age.)
    """

    def __init__(self, space: SearchSpace, goal: Goal) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._worst = -math.inf if goal is Goal.MAX else math.inf
        self._storage = optuna.storages.InMemoryStorage()
        self.study: Study = optuna.create_study(
            storage=self._storage, direction="maximize" if goal is Goal.MAX else "minimize"
        )
        self._distributions = {axis.name: distribution(axis) for axis in space.free}
        self._ids: list[int] = []
        self._told: list[tuple[TrialState, float | None]] = []
        self._asked: Mapping[str, object] | None = None

    def follow(self, history: Sequence[Trial]) -> bool:
        """Bring the study up to date; False if it has gone another way."""
        if len(history) < len(self._ids) or (self._asked is not None and len(history) < len(self._ids) + 1):
            return False
        for at, trial in enumerate(history):
            if at < len(self._ids):
                told = self._told[at]
                if told == (trial.state, trial.value):
                    continue
                if told[0] is not TrialState.RUNNING:
                    return False  # over is over for a study: a retry after `resume`
            elif not self._add(trial):
                return False
            self._tell(at, trial)
        return True

    def ask(self, seed: int) -> dict[str, bool | int | float | str]:
        """Parameters of the trial after the history's last."""
        import optuna

        sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True, n_startup_trials=1)
        # It would look through all trials to find out which parameters they share: half of its time.
        sampler.infer_relative_search_space = self._whole_space  # type: ignore[method-assign]
        self.study.sampler = sampler
        asked = self.study.ask(self._distributions)
        self._asked = dict(asked.params)
        self._asked_id = asked._trial_id
        return {axis.name: axis.value(asked.params[axis.name]) for axis in self._space.free}

    def _whole_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._distributions

    def _add(self, trial: Trial) -> bool:
        import optuna

        positions = {axis.name: _position(axis, trial) for axis in self._space.free}
        if self._asked is not None:  # the trial that was asked for last is in the study already
            if self._asked != positions:
                return False
            self._ids.append(self._asked_id)
            self._asked = None
        else:
            template = optuna.trial.create_trial(
                state=optuna.trial.TrialState.RUNNING, params=positions, distributions=self._distributions
            )
            self._ids.append(self._storage.create_new_trial(self.study._study_id, template))
        self._told.append((TrialState.RUNNING, None))
        return True

    def _tell(self, at: int, trial: Trial) -> None:
        from optuna.trial import TrialState as Theirs

        self._told[at] = (trial.state, trial.value)
        value = trial.value if trial.value is not None and math.isfinite(trial.value) else self._worst
        match trial.state:
            case TrialState.COMPLETE:
                self._storage.set_trial_state_values(self._ids[at], Theirs.COMPLETE, [value])
            case TrialState.PRUNED if trial.has_value:
                # How far it came tells how good it is: Optuna ranks pruned trials by their last step.
                step = max(0, int(trial.curve.last_step)) if len(trial.curve) else 0
                self._storage.set_trial_intermediate_value(self._ids[at], step, value)
                self._storage.set_trial_state_values(self._ids[at], Theirs.PRUNED, [value])
            case TrialState.PRUNED | TrialState.FAILED:
                self._storage.set_trial_state_values(self._ids[at], Theirs.FAIL)
            case TrialState.RUNNING:
                pass


def distribution(axis: Axis) -> BaseDistribution:
    """What Optuna calls an axis. Discrete ones are positions, so that any value can be told apart."""
    from optuna import distributions

    if axis.kind is AxisKind.CONTINUOUS:
        low, high = axis.bounds
        return distributions.FloatDistribution(low, high, log=axis.is_log)
    if axis.kind is AxisKind.ORDERED:
        return distributions.IntDistribution(0, axis.count - 1)
    return distributions.CategoricalDistribution(tuple(range(axis.count)))


def _position(axis: Axis, trial: Trial) -> float | int:
    position = axis.position(trial.parameters[axis.name])
    return position if axis.kind is AxisKind.CONTINUOUS else int(position)
