"""What other versions of a job lend: times of its own unit, and how sure that is."""

import json
from dataclasses import replace

import pytest

from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.service.quotes.job_numbers import borrowed, borrowing_spread, in_one_unit
from trainmaster.service.quotes.measured_now import MeasuredNow
from trainmaster.spec import Strategy


def lasted(duration_s, step_s=None, **more):
    at = None if step_s is None else Point(Strategy.ALLREDUCE, 1, nodes=1, step_time_s=step_s)
    return Measurement(at, tail_s=0.0, duration_s=duration_s, **more)


IN_STEPS = lasted(10.0, 0.05, steps_done=200)
IN_EPOCHS = lasted(10.5, 2.0, steps_done=5, unit="epoch")


def test_what_is_borrowed_is_as_sure_as_borrowing_has_been():
    def spread(*seconds, pauses=()):
        numbers = [{"pause": each} for each in pauses] or [None] * len(seconds)
        each = zip(seconds, numbers, strict=True)
        return borrowing_spread([(f"{s} {n}", lasted(s, numbers=n)) for s, n in each])

    assert borrowing_spread([]) == pytest.approx(0.35)
    assert spread(*(10.0 + n / 100 for n in range(12))) < 0.2
    assert spread(10.0, 40.0, 160.0) > 0.9
    # whose numbers are unlike is far from it, and that is doubted already
    assert spread(10.0, 10.1, 40.0, 40.1, pauses=(1, 1, 4, 4)) < 0.3


def test_versions_that_count_in_other_units_are_compared_by_their_whole_times():
    versions = [("a", IN_STEPS), ("b", IN_EPOCHS)]
    assert borrowing_spread(versions) < 0.35
    assert borrowing_spread([("a", IN_STEPS), ("b", replace(IN_EPOCHS, duration_s=400.0))]) > 1.5
    lent = borrowed({}, versions, {})
    assert [m.duration_s for m in lent] == [10.0, 10.5]
    assert all(m.step_spread < 0.35 for m in lent)


def test_where_the_recipe_says_the_steps_only_those_who_count_steps_lend_them():
    stopped = replace(IN_EPOCHS, duration_s=None)
    own, kin = in_one_unit([], [("a", IN_STEPS), ("b", IN_EPOCHS), ("c", stopped)], "step")
    assert (own, [name for name, _ in kin]) == ([], ["a", "b"])
    assert [(m.point.step_time_s, m.duration_s) for _, m in kin] == [(0.05, 10.0), (None, 10.5)]


def test_a_job_that_changed_its_unit_counts_in_the_newest_one():
    own, _ = in_one_unit([("a", IN_EPOCHS), ("a", IN_STEPS)], [], "")
    assert [m.point.step_time_s for _, m in own] == [2.0, None]
    only = [("a", replace(IN_EPOCHS, duration_s=None))]
    assert in_one_unit(only, [], "step")[0] == only, "nothing else is known of it"


def test_one_that_was_stopped_lends_what_its_whole_would_have_taken():
    stopped = replace(IN_STEPS, duration_s=None, startup_s=2.0, steps_done=50, said_steps=401)
    _, ((_, lent),) = in_one_unit([], [("a", stopped)], "")
    assert (lent.duration_s, lent.steps_done) == (pytest.approx(2 + 400 * 0.05), 401)
    ended = replace(IN_STEPS, steps_done=100, said_steps=401)
    _, kin = in_one_unit([], [("a", stopped), ("a", ended)], "")
    assert kin == [("a", stopped), ("a", ended)], "such attempts have ended before"


def test_a_task_is_long_by_those_that_count_what_it_counts():
    known = MeasuredNow(similar={"main": [IN_STEPS, IN_EPOCHS]})
    assert [known.most_steps("main", unit) for unit in ("step", "epoch", "")] == [200, 5, 0]


@pytest.mark.parametrize(
    ("steps", "epochs", "unit"),
    [(6, 6.0, "epoch"), (6, 5.0, "epoch"), (400, 10.0, "step"), (400, None, "step")],
)
def test_what_was_kept_before_units_were_tells_them_by_its_counts(steps, epochs, unit):
    kept = json.loads(replace(IN_STEPS, steps_done=steps, epochs_done=epochs).to_json())
    assert Measurement.from_json(json.dumps(kept)).unit == "step"
    del kept["unit"]
    assert Measurement.from_json(json.dumps(kept)).unit == unit
