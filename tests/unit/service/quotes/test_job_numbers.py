"""Which other versions of a job a quote borrows steps from, and what their numbers make of them."""

import math
from dataclasses import replace

import pytest

from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.service.quotes.fingerprint import BEGUN
from trainmaster.service.quotes.job_numbers import as_long, nearest, with_length
from trainmaster.spec import Strategy


def version(step_s, workers=1, **numbers):
    point = Point(Strategy.ALLREDUCE, workers, nodes=1, step_time_s=step_s)
    return Measurement(point, offer="local", numbers=numbers)


def steps(found):
    return [each and each.point and round(each.point.step_time_s, 3) for each in found]


def test_of_versions_with_the_same_numbers_only_these_count():
    kin = [version(0.2, pause=0.2), version(0.05, pause=0.05), version(0.21, pause=0.2)]
    found = nearest(kin, {"pause": 0.2})
    assert steps(found) == [0.2, None, 0.21]
    assert all(each.step_spread == 0.0 for each in found if each)


def test_how_long_it_is_its_batch_and_its_seed_are_no_reason_to_prefer_one():
    kin = [version(0.2, steps=800, batch_global=64, seed=1), version(0.3, steps=200, batch_global=8, seed=9)]
    assert steps(nearest(kin, {"steps": 800.0, "batch_global": 64.0, "seed": 1.0})) == [0.2, 0.3]


def test_a_number_that_steps_have_followed_says_what_another_value_makes_of_them():
    kin = [version(pause, pause=pause) for pause in (0.1, 0.4, 1.6)] * 20
    found = [each for each in nearest(kin, {"pause": 3.2}) if each is not None]
    assert steps(found) == pytest.approx([3.2] * len(found), rel=0.1)
    assert all(each.step_spread < 0.1 for each in found)


def test_a_number_that_changes_nothing_is_not_doubted_once_that_was_seen():
    few = [version(0.2, lr=0.1)]
    many = [version(0.2, lr=lr) for lr in (0.001, 0.01, 0.1)] * 20
    doubts = [max(each.step_spread for each in nearest(kin, {"lr": 0.3}) if each) for kin in (few, many)]
    assert doubts[1] < 0.05 < doubts[0]
    assert steps(nearest(few, {"lr": 0.3})) == [0.2]


@pytest.mark.parametrize(
    "name", ["--lr", "learning_rate", "--weight-decay", "--wd", "--max-lr", "adam_epsilon", "--warmup-steps"]
)
def test_hyperparameters_of_the_optimizer_are_believed_to_change_no_step_and_all_else_may(name):
    def doubt(name):
        (found,) = nearest([version(0.2, **{name: 0.1})], {name: 1.0})
        return found.step_spread

    assert doubt(name) < 0.3
    for other in ("--pause", "word 2", "--hidden", "--layers", "--delay-ms", "--image-size"):
        assert doubt(other) > 1.0, "ten times as many may make a step ten times as long"


def test_a_shape_that_was_seen_with_other_numbers_only_still_counts_with_its_doubt():
    alone, gang = nearest([version(0.2, lr=0.1), version(0.3, workers=4, lr=0.01)], {"lr": 0.1})
    assert (alone.step_spread, gang.point.workers) == (0.0, 4)
    assert gang.step_spread > 0.2


def test_without_numbers_nothing_changes():
    kin = [version(0.2), Measurement(None, duration_s=3.0, step_spread=math.log(2))]
    assert nearest(kin, {"lr": 0.1}) == kin


def ran(duration_s, step_s, **more):
    return Measurement(
        Point(Strategy.ALLREDUCE, 1, nodes=1, step_time_s=step_s),
        startup_s=2.0,
        tail_s=1.0,
        duration_s=duration_s,
        **more,
    )


def test_what_was_not_seen_to_its_end_makes_as_many_steps_as_another_version():
    measured = ran(None, 0.2, code_lines=(1,))
    longer, other = ran(13.0, 0.1, code_lines=(1,), step_spread=0.1), ran(3.0, 0.1, code_lines=(2,))
    (found,) = with_length([measured], [other, longer], doubt=0.5)
    assert found.duration_s == pytest.approx(2 + 1 + 100 * 0.2), "those of the same code, by steps of its own"
    assert found.step_spread == pytest.approx(0.1)
    (found,) = with_length([measured], [replace(longer, code_lines=(2,))], doubt=0.5)
    assert found.step_spread == pytest.approx(math.hypot(0.1, 0.5)), "other code may make more"


@pytest.mark.parametrize(("had", "has"), [(None, 7.0), (7.0, None), (7.0, 8.0)])
def test_how_much_is_left_to_do_from_another_checkpoint_is_doubted(had, has):
    def numbers(begun):
        return {"word 2": 200.0} | ({} if begun is None else {BEGUN: begun})

    measured = ran(13.0, 0.1, numbers=numbers(had), steps_done=100)
    assert as_long(measured, numbers(had)) == measured
    found = as_long(measured, numbers(has))
    assert found.duration_s == 13.0
    assert found.step_spread == pytest.approx(math.hypot(measured.step_spread, 0.7))


def test_one_that_was_too_short_to_show_steps_lends_the_time_that_it_took():
    measured = replace(ran(None, 0.2, code_lines=(1,)), steps_done=5)
    short = Measurement(None, offer="local", duration_s=4.0, code_lines=(1,), step_spread=0.1)
    (found,) = with_length([measured], [short], doubt=0.5)
    assert found.duration_s == pytest.approx(4.0)
    assert found.step_spread == pytest.approx(math.hypot(0.1, 0.3))
    (more,) = with_length([replace(measured, steps_done=100)], [short], doubt=0.5)
    assert more.duration_s == pytest.approx(2 + 100 * 0.2), "it has made so many already"
    (better,) = with_length([measured], [short, ran(13.0, 0.1, code_lines=(1,))], doubt=0.5)
    assert better.duration_s == pytest.approx(2 + 1 + 100 * 0.2), "one that shows steps comes first"


def test_one_that_counts_in_another_unit_lends_the_time_that_it_took():
    measured = ran(None, 2.0, code_lines=(1,), unit="epoch", steps_done=2)
    (found,) = with_length([measured], [ran(13.0, 0.1, code_lines=(1,), steps_done=100)], doubt=0.5)
    assert found.duration_s == pytest.approx(13.0)
    assert found.step_spread == pytest.approx(0.3)
    like = ran(20.0, 1.0, code_lines=(1,), steps_done=17, unit="epoch")
    (found,) = with_length([measured], [ran(13.0, 0.1, code_lines=(1,)), like], doubt=0.5)
    assert (found.steps_done, found.duration_s) == (17, pytest.approx(2 + 1 + 17 * 2.0))


def test_what_a_number_makes_of_steps_it_makes_of_the_whole():
    kin = [ran(3 + 10 * pause, pause, numbers={"pause": pause}) for pause in (0.1, 0.4, 1.6)] * 20
    found = [each for each in nearest(kin, {"pause": 3.2}) if each is not None]
    assert [each.duration_s for each in found] == pytest.approx([35.0] * len(found), rel=0.1)


def test_a_length_that_was_seen_is_not_lent():
    seen = [ran(5.0, 0.1), ran(None, 0.1)]
    assert with_length(seen, [ran(13.0, 0.1)], doubt=0.5) == seen
    assert with_length(seen[1:], [], doubt=0.5) == seen[1:]
