import math
import random
import statistics

import pytest

from trainmaster.spec.errors import UsageError
from trainmaster.sweeps import Curve, Goal, Trial, TrialState, pruner_class
from trainmaster.sweeps.pruner import Pruner, shares_by_order
from trainmaster.sweeps.trial import MAX_POINTS


def trial(number, values, state=TrialState.RUNNING, first=1):
    curve = Curve((first + at, value) for at, value in enumerate(values))
    return Trial(number, {}, state, values[-1] if values else None, curve)


def make(name, goal=Goal.MAX, **options):
    return pruner_class(name)(goal, {key: str(value) for key, value in options.items()})


class Patient(Pruner):
    """Ends nothing."""

    def verdict(self, trial, others, judged=-math.inf):
        return ""


def share(pruner, trials, steps, at_once=2):
    return statistics.mean(map(statistics.mean, shares_by_order(pruner, trials, steps, at_once)))


def test_the_share_that_is_trained_is_what_the_pruner_lets_live():
    assert share(Patient(Goal.MIN, {}), 9, 100) == 1.0
    asha = [share(make("asha", min_steps=10), trials, 640) for trials in (6, 12, 24, 1000)]
    assert asha == sorted(asha, reverse=True), "the more trials, the less of each"
    assert 0.05 < asha[-1] < asha[0] < 0.6
    assert share(make("hyperband", min_steps=10), 24, 640) > asha[2], "it hedges"
    least = share(make("asha", Goal.MIN, min_steps=10), 24, 640)
    assert least == pytest.approx(asha[2], abs=0.15), "whichever values are better"


@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_asha_lets_those_come_to_their_end_that_begin_first(at_once):
    for play in shares_by_order(make("asha"), 8, 80, at_once):
        assert play[:at_once] == (1.0,) * at_once, "without min_steps nobody is judged before one has ended"
        assert max(play) <= 1.0
        assert min(play[at_once:]) < 0.05
    assert len(shares_by_order(make("asha"), 32, 80, 2)) >= 8, "how often a later one is the best is luck"


def test_later_trials_of_a_sampler_that_learns_are_compared_with_worse_ones():
    alike, learnt = (shares_by_order(make("median"), 32, 80, 2, learns=learns) for learns in (False, True))
    for play in (*alike, *learnt):
        assert play[:5] == (1.0,) * 5, "of the first there is nothing to be learnt"
    late = [statistics.mean(made for play in plays for made in play[16:]) for plays in (alike, learnt)]
    assert late[1] > 1.2 * late[0]


def test_asha_keeps_the_best_quarter_at_a_rung():
    asha = make("asha", min_steps=4)
    others = [trial(n, [0, 0, 0, n / 10]) for n in range(7)]
    assert asha.verdict(trial(9, [0, 0, 0]), others) == "", "not there yet"
    assert asha.verdict(trial(9, [0, 0, 0, 0.55]), others) == "", "second of eight: two go on"
    why = asha.verdict(trial(9, [0, 0, 0, 0.45]), others)
    assert "number 3 of 8" in why
    assert "0.45 at step 4" in why


def test_asha_names_a_step_that_there_is():
    others = [trial(n, [1.0] * 80, TrialState.COMPLETE) for n in range(3)]
    assert "0 at step 2 is" in make("asha").verdict(trial(9, [0, 0, 0, 0]), others), "a 64th of 80 is 1.25"


def test_asha_lets_the_first_go_on_and_ends_the_worse_one_after_it():
    asha = make("asha", min_steps=1)
    assert asha.verdict(trial(0, [0.1]), []) == ""
    assert asha.verdict(trial(1, [0.05]), [trial(0, [0.1])]).endswith("only the best one goes on")
    assert asha.verdict(trial(1, [0.1]), [trial(0, [0.1])]) == "", "a tie is no worse"


def test_asha_judges_a_rung_only_once():
    asha = make("asha", min_steps=1)
    others = [trial(n, [0.9]) for n in range(8)]
    assert asha.verdict(trial(9, [0.1, 0.1]), others)
    assert asha.verdict(trial(9, [0.1, 0.1]), others, judged=1) == ""


def test_asha_without_min_steps_waits_for_a_trial_that_came_to_its_end():
    asha = make("asha")
    good = [trial(n, [0.9] * 64) for n in range(4)]
    bad = trial(9, [0.1])
    assert asha.verdict(bad, good) == ""
    assert asha.verdict(bad, [*good, trial(5, [0.9] * 64, TrialState.COMPLETE)])


def test_nobody_is_ended_at_the_last_step():
    asha = make("asha", min_steps=4)
    others = [trial(n, [0.9] * 4, TrialState.COMPLETE) for n in range(8)]
    assert asha.verdict(trial(9, [0.1] * 4), others) == ""
    assert asha.verdict(trial(9, [0.1] * 4), [trial(n, [0.9] * 4) for n in range(8)])


@pytest.mark.parametrize("goal", Goal)
def test_nan_is_worst_and_all_nan_is_a_tie(goal):
    asha = make("asha", goal, min_steps=1)
    fine = [trial(n, [0.5]) for n in range(4)]
    assert asha.verdict(trial(9, [math.nan]), fine)
    assert asha.verdict(trial(9, [math.nan]), [trial(n, [math.nan]) for n in range(4)]) == ""


def test_hyperband_compares_within_a_bracket_and_begins_later_in_some():
    hyperband = make("hyperband", min_steps=1, max_steps=27)
    brackets = [hyperband.bracket(n, 1, 27) for n in range(2000)]
    assert set(brackets) == {0, 1, 2, 3}
    counts = [brackets.count(bracket) for bracket in range(4)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] / 2000 == pytest.approx(27 / 49, abs=0.06)
    patient = brackets.index(3)
    eager = brackets.index(0)
    others = [trial(n, [0.9] * 5) for n in range(2000) if n not in (patient, eager)][:400]
    assert hyperband.verdict(trial(eager, [0.1]), others)
    assert hyperband.verdict(trial(patient, [0.1] * 5), others) == ""


def test_hyperband_needs_room():
    with pytest.raises(UsageError, match="min_steps"):
        make("hyperband", min_steps=9, max_steps=9)


def test_median_compares_the_best_with_the_means_of_the_finished():
    median = make("median", Goal.MIN, startup=3)
    others = [trial(n, [4, 2, n], TrialState.COMPLETE) for n in range(3)]
    assert median.verdict(trial(9, [5, 2.9]), others) == "", "means are 3 at step 2"
    assert median.verdict(trial(9, [5, 3.1]), others)
    assert median.verdict(trial(9, [5, 3.1]), others[:2]) == "", "too few"
    assert median.verdict(trial(9, [5, 3.1]), others, judged=2) == "", "nothing new"
    running = [trial(n, [0, 0, 0]) for n in range(5)]
    assert median.verdict(trial(9, [5, 3.1]), running) == "", "a trial that has not finished tells nothing"
    assert make("median", Goal.MIN, startup=3, warmup=2).verdict(trial(9, [5, 3.1]), others) == ""


def test_none_and_unknown():
    assert pruner_class("none") is None
    with pytest.raises(
        UsageError, match=r"(?s)no pruner 'ascha'.*'asha'.*asha, forecast, hyperband, median, none"
    ):
        pruner_class("ascha")


def test_asha_agrees_with_optunas():
    """Fed one report at a time, ours decides as Optuna's pruner does (which is only an oracle here)."""
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for seed in range(5):
        rng = random.Random(seed)
        theirs = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
        study = optuna.create_study(pruner=theirs)
        ours = make("asha", Goal.MIN, min_steps=1, reduction=3)
        past = []
        for number in range(40):
            asked, curve = study.ask(), Curve()
            for step in range(1, 28):
                value = rng.random() / step
                asked.report(value, step)
                curve.add(step, value)
                verdict = ours.verdict(Trial(number, {}, curve=curve), past, judged=step - 1)
                assert bool(verdict) == asked.should_prune(), (seed, number, step, verdict)
                if verdict:
                    study.tell(asked, state=optuna.trial.TrialState.PRUNED)
                    break
            else:
                study.tell(asked, value)
            past.append(Trial(number, {}, TrialState.PRUNED, curve.values[-1], curve))


def test_a_curve_goes_back_with_its_script():
    curve = Curve([(1, 1.0), (2, 2.0), (3, 3.0), (2, 5.0)])
    assert list(curve) == [(1, 1.0), (2, 5.0)]
    assert curve.mean_until(2) == 3
    assert curve.reached(3) is None
    assert curve.until(0.5) is None
    curve.add(math.nan, 1.0)
    assert curve.last_step == 2


def test_a_long_curve_is_thinned_but_its_mean_is_of_all():
    count = 5 * MAX_POINTS
    curve = Curve((step, step) for step in range(count))
    assert len(curve) <= MAX_POINTS + 1
    assert curve.last_step == count - 1
    assert curve.mean_until(count) == pytest.approx((count - 1) / 2)
    assert curve.steps == sorted(curve.steps)
