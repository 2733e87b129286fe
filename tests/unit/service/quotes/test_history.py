"""What was measured before, as the owner of a home and its teams are told."""

from __future__ import annotations

import json
import math
import os

import pytest

from trainmaster.advisor.model.knowledge import Knowledge, curves_of
from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.db import AcceptedRun, Database, NewMeasurement, Submission
from trainmaster.service.quotes.history import experience_of, histories, new_row
from trainmaster.service.quotes.home_load import HomeLoad
from trainmaster.service.quotes.job_numbers import as_long, lengths_seen
from trainmaster.spec import Strategy, read_recipe
from trainmaster.spec.experiment import Batch
from trainmaster.spec.until import MetricTarget

OWNER = "r-owner"


@pytest.fixture
def database(home):
    found = Database(home.database_url)
    for run, team in ((OWNER, None), ("r-red", "red"), ("r-blue", "blue")):
        new = AcceptedRun(
            run, "job", "{}", "/recipe.yaml", "aws", "/code", home.store_url, [("main", 1)],
            submission=Submission("ann", team),
        )  # fmt: skip
        found.create_run(new, 1.0)
    yield found
    found.close()


@pytest.fixture
def recipe(tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    path = code / "recipe.yaml"
    path.write_text(json.dumps({"name": "job", "experiments": {"main": {"command": "true"}}}))
    return read_recipe(path)


def keep(database, run, exact, similar, duration_s, workers=1):
    point = Point(Strategy.ALLREDUCE, workers, nodes=1, local_batch=8.0, step_time_s=0.1)
    data = Measurement(point, duration_s=duration_s, offer="local").to_json()
    name = f"{run}/{exact}/{workers}"
    database.add_measurement(NewMeasurement(name, exact, similar, "main", run, data, duration_s))


def gang_of(recipe, workers, **more):
    path = recipe.directory / "gang.yaml"
    shape = {"strategy": "allreduce", "workers": workers}
    gang = {"command": "true", "framework": "plain", "distributed": shape, **more}
    path.write_text(json.dumps({"name": "job", "experiments": {"main": gang}}))
    return read_recipe(path)


def test_how_long_a_gang_takes_is_not_told_by_one_of_another_size(database, home, recipe):
    recipe = gang_of(recipe, 2)
    key = histories(database, home, recipe)["main"].fingerprint
    for workers in (1, 2):
        keep(database, OWNER, key.exact, key.similar, 10.0 * workers, workers)
    found = histories(database, home, recipe)["main"].same
    assert {each.point.workers: each.duration_s for each in found} == {1: None, 2: 20.0}


@pytest.mark.parametrize(
    ("text", "seen", "expected"),
    [
        ("print(1)", None, 0.0),
        ("print(1)", 90.0, 90.0),  # a package of it writes them
        ("os.environ['TRAINMASTER_CHECKPOINT_DIR']", None, None),
        ("os.environ['TRAINMASTER_CHECKPOINT_DIR']", 0.0, 0.0),
    ],
)
def test_code_that_cannot_know_where_has_written_no_checkpoint(database, home, recipe, text, seen, expected):
    (recipe.directory / "train.py").write_text(text)
    recipe = gang_of(recipe, 2, command="python train.py")
    key = histories(database, home, recipe)["main"].fingerprint
    measured = Measurement(Point(Strategy.ALLREDUCE, 2, step_time_s=0.1), saves_every_s=seen)
    database.add_measurement(new_row("p-1", key, "main", OWNER, measured))
    (found,) = histories(database, home, recipe)["main"].same
    assert found.saves_every_s == expected


def test_checkpoints_that_a_package_writes_count_also_once_the_script_was_edited(database, home, recipe):
    script, lines = recipe.directory / "train.py", [f"step({number}, lr=0.1)" for number in range(20)]
    script.write_text("\n".join(lines))
    recipe = gang_of(recipe, 2, command="python train.py")
    key = histories(database, home, recipe)["main"].fingerprint
    measured = Measurement(Point(Strategy.ALLREDUCE, 2, step_time_s=0.1), saves_every_s=90.0)
    database.add_measurement(new_row("p-1", key, "main", OWNER, measured))
    script.write_text("\n".join([*lines, "print('done')"]))
    found = histories(database, home, recipe)["main"]
    assert (found.same, [each.saves_every_s for each in found.similar]) == ([], [90.0])


@pytest.mark.parametrize("workers", [1, 8])
def test_where_only_another_size_was_seen_its_time_is_shared_by_all_or_by_none(
    database, home, recipe, workers
):
    """A quote of a gang without a length was refused; 90 % reach from none to perfect scaling."""
    recipe = gang_of(recipe, workers)
    key = histories(database, home, recipe)["main"].fingerprint
    keep(database, OWNER, key.exact, key.similar, 20.0, 2)
    with_length = histories(database, home, gang_of(recipe, workers, steps=100))["main"].same
    assert [(each.duration_s, each.step_spread) for each in with_length] == [(None, 0.0)]  # its steps tell
    known = Knowledge.of(histories(database, home, recipe)["main"].same, [], {}, {}).as_whole_tasks()
    reach = math.exp(1.645 * known.extra_spread)
    ends = sorted([20.0, 20.0 * 2 / workers])
    assert [known.duration_s / reach, known.duration_s * reach] == pytest.approx(ends)


def test_a_team_is_told_what_its_own_runs_have_measured(database, home, recipe):
    key = histories(database, home, recipe)["main"].fingerprint
    for duration_s, run in enumerate((None, "r-removed", OWNER, "r-red", "r-blue"), 1):
        keep(database, run, key.exact, key.similar, float(duration_s))
        keep(database, run, "other", key.similar, 10.0 * duration_s)
    told = {}
    for team in (None, "red", "blue", "green"):
        found = histories(database, home, recipe, team=team)["main"]
        assert (found.fingerprint, found.team) == (key, team)
        told[team] = [[each.duration_s for each in some] for some in (found.same, found.similar)]
    assert told == {
        None: [[3.0, 2.0, 1.0], [30.0, 20.0, 10.0]],
        "red": [[4.0], [40.0]],
        "blue": [[5.0], [50.0]],
        "green": [[], []],
    }


def test_what_a_lab_has_measured_follows_the_load_as_far_as_somebody_computed(database, home, recipe):
    """The home of the runs was calm; now its load is 50."""
    database.put_forecast(OWNER, json.dumps({"load": 0.0}))
    key = histories(database, home, recipe)["main"].fingerprint
    point = Point(Strategy.ALLREDUCE, 2, nodes=2, step_time_s=1.0)
    for at, wanted in enumerate((None, 0.01)):
        data = Measurement(point, offer="lab:m4.large", wanted=wanted).to_json()
        database.add_measurement(NewMeasurement(f"{at}", key.exact, key.similar, "main", OWNER, data, at))
        (newest, *_) = histories(database, home, recipe, load=HomeLoad(50.0))["main"].same
        longer = newest.point.step_time_s - 1
        assert longer < 0.02 if wanted else longer > 0.5


def test_the_curves_of_a_target_are_those_of_the_teams_own_runs(database, home, recipe):
    main = recipe.experiments["main"].model_copy(update={"target": MetricTarget(metric="acc", at_least=0.9)})
    recipe = recipe.model_copy(update={"experiments": {"main": main}})
    key = histories(database, home, recipe)["main"].fingerprint
    for run in (OWNER, "r-red"):
        place = home.attempt(run, "main", 0, 1)
        place.directory.mkdir(parents=True)
        place.metrics("worker-0").parent.mkdir(parents=True, exist_ok=True)
        place.metrics("worker-0").write_text('{"step": 5, "acc": 0.5}\n{"step": 9, "acc": 0.95}\n')
        point = Point(Strategy.ALLREDUCE, 1, nodes=1, local_batch=8.0, step_time_s=0.1)
        data = Measurement(point, steps_done=9).to_json()
        name = f"{run}/main/0/1"
        database.add_measurement(NewMeasurement(name, key.exact, key.similar, "main", run, data, 1.0))
    told = {team: histories(database, home, recipe, team=team)["main"].same for team in (None, "red", "blue")}
    for team in (None, "red"):
        (curve,) = curves_of(told[team], [])
        assert (curve.metric, curve.points, curve.is_run) == ("acc", ((5.0, 0.5), (9.0, 0.95)), True)
    assert curves_of(told["blue"], []) == ()
    other = main.model_copy(update={"batch": Batch(total=16)})
    other_recipe = recipe.model_copy(update={"experiments": {"main": other}})
    borrowed = {
        team: histories(database, home, other_recipe, team=team)["main"] for team in (None, "red", "blue")
    }
    for team in (None, "red"):
        (kin,) = curves_of(borrowed[team].same, borrowed[team].similar)
        assert (kin.points, kin.batch, kin.is_kin) == (curve.points, 8.0, True)
    assert curves_of([], borrowed["blue"].similar) == ()


def test_a_team_learns_of_machines_from_its_own_jobs(database):
    for workers in (1, 2):
        keep(database, "r-red", "job", "s", 1.0, workers)
    assert experience_of(database, "mine", team="red").jobs == 1
    assert experience_of(database, "mine", team="blue") is None
    assert experience_of(database, "mine") is None


def lasted(duration_s, steps=0, numbers=None, *, startup_s=0.0, point=True, **more):
    at = Point(Strategy.ALLREDUCE, 1, nodes=1, local_batch=8.0, step_time_s=0.1) if point else None
    return Measurement(
        at, startup_s=startup_s, tail_s=0.0, duration_s=duration_s, steps_done=steps, numbers=numbers, **more
    )


@pytest.mark.parametrize(
    ("measured", "numbers", "duration_s", "spread"),
    [
        (lasted(24, 200, {"--steps": 200}, startup_s=4), {"--steps": 800}, 84, 0.0),
        (lasted(24, 198, {"--steps": 200}, startup_s=4), {"--steps": 800}, 84, 0.0),
        (lasted(20, 200, {"--steps": 200, "--lr": 0.1}), {"--steps": 200, "--lr": 0.4}, 20, 0.0),
        (lasted(20, 200, {"--epochs": 4}, epochs_done=4.0), {"--epochs": 2}, 10, 0.0),
        (lasted(20, 200, {"--epochs": 4}, epochs_done=3.0), {"--epochs": 2}, 10, 0.0),
        (lasted(20, 0, {"steps": 100.0}, point=False), {"steps": 200.0}, 40, 0.2),
        (lasted(20, 0, {"word 1": 10}, point=False), {"word 1": 40}, 20, 1.39),
        (lasted(20, 200, {"--seed": 1}), {"--seed": 1000}, 20, 0.0),
        (lasted(20, 200, None), {"--steps": 800}, 20, 0.0),  # of a version that kept no numbers
        (lasted(20, 200, {}), {"--steps": 800}, 80, 0.0),
        (lasted(20, 200, {"--steps": 200}), {"--steps": 200, "--max-steps": 800}, 20, 0.0),
        (lasted(20, 200, {}), {"--hidden": 800}, 20, 0.0),
        (lasted(20, 200, {}), {"--epochs": 8}, None, 0.0),  # of how many is not known
        (lasted(20, 200, {}, epochs_done=4), {"--epochs": 8}, 40, 0.0),
        (lasted(20, 5, {}, unit="epoch"), {"--steps": 800}, None, 0.0),  # it came to 5 epochs
        (lasted(20, 200, {"--epochs": 4}), {"--epochs": 8}, 40, 0.21),  # it shows no epochs
        (lasted(20, 200, {"--epochs": 90}, epochs_done=4), {"--epochs": 180}, 20, 0.69),  # it ends by itself
        (lasted(20, 200, {"word 1": 200}), {}, None, 0.0),  # its length is gone
        (lasted(20, 200, {"--lr": 0.1}), {}, 20, 0.0),
        (lasted(20, 0, {}, point=False), {"--epochs": 8}, 20, 2.3),
    ],
)
def test_a_longer_job_takes_longer(measured, numbers, duration_s, spread):
    found = as_long(measured, numbers)
    assert found.duration_s == (duration_s and pytest.approx(duration_s))
    assert found.step_spread == pytest.approx(spread, abs=0.02)


def whole(duration_s, numbers, code=(1,), **more):
    return Measurement(None, duration_s=float(duration_s), numbers=numbers, code_lines=code, **more)


ROWS = [(40, {"rows": 40.0}), (23, {"rows": 22.0}), (11, {"rows": 10.0})]


@pytest.mark.parametrize(
    ("tasks", "lengths"),
    [
        (ROWS[:1], {}),
        (ROWS[:2], {}),  # one pair may be chance
        (ROWS, {"rows": (10.0, 40.0)}),
        ([*ROWS, (41, {"rows": 40.0})], {"rows": (10.0, 40.0)}),
        ([*ROWS, (41, {"rows": 80.0})], {}),
        ([(40, {"rows": 40.0}), (41, {"rows": 40.0}), (42, {"rows": 40.0})], {}),  # nothing has changed
        ([(40, {"rows": 40.0, "lr": 0.1}), (22, {"rows": 20.0, "lr": 0.2}), (11, {"rows": 10.0, "lr": 0.3})],
         {}),  # which of the two?
        ([(40, {"rows": 40.0, "lr": 0.1}), (22, {"rows": 20.0, "lr": 0.1}), (41, {"rows": 40.0, "lr": 1}),
          (11, {"rows": 10.0, "lr": 1})], {"rows": (10.0, 40.0)}),
        ([(40, {"seed": 4.0}), (20, {"seed": 2.0}), (10, {"seed": 1.0})], {}),
    ],
)  # fmt: skip
def test_a_number_that_times_of_whole_tasks_follow_is_their_length(tasks, lengths):
    seen = [whole(seconds, numbers) for seconds, numbers in tasks]
    assert lengths_seen(seen) == lengths
    if lengths:
        found = as_long(seen[0], seen[1].numbers, lengths)
        assert found.duration_s == pytest.approx(tasks[1][0], rel=0.1)
        assert found.step_spread < 0.25


def test_times_of_other_machines_and_of_other_code_are_not_compared():
    """Two of the three were measured elsewhere, or before the code was changed: no length was seen."""
    for others in ({"offer": "m4.large"}, {"code": (1, 2)}):
        mixed = [whole(s, n, **(others if s < 20 else {})) for s, n in ROWS]
        assert lengths_seen(mixed) == {}
        fast = [whole(s / 9, n, **others) for s, n in ROWS]  # else 9 times as fast refutes it
        assert lengths_seen([whole(*each) for each in ROWS] + fast) == {"rows": (10.0, 40.0)}


def test_what_number_a_part_has_is_no_length_by_one_pair():
    first, second = whole(60, {"--part": 1.0}), whole(110, {"--part": 2.0})
    found = as_long(first, {"--part": 9.0}, lengths_seen([first, second]))
    assert (found.duration_s, found.step_spread) == (60, pytest.approx(2.2, abs=0.02))


def test_of_two_learnt_lengths_both_count_and_beyond_what_was_seen_there_is_more_doubt():
    lengths = {"rows": (10.0, 40.0), "passes": (1.0, 4.0)}
    one = whole(10, {"rows": 20.0, "passes": 1.0})
    found = as_long(one, {"rows": 40.0, "passes": 4.0}, lengths)
    assert found.duration_s == pytest.approx(80)
    further = as_long(one, {"rows": 160.0, "passes": 1.0}, lengths)
    assert further.duration_s == pytest.approx(80)
    assert further.step_spread > found.step_spread + 0.3


def test_code_of_strangers_says_nothing_and_an_earlier_version_does(database, home, tmp_path):
    def told(name, script, steps):
        code = tmp_path / name
        code.mkdir(exist_ok=True)
        (code / "train.py").write_text(script)
        text = {"name": "job", "experiments": {"main": {"command": f"python train.py {steps}"}}}
        (code / "recipe.yaml").write_text(json.dumps(text))
        return histories(database, home, read_recipe(code / "recipe.yaml"))["main"]

    ours = "\n".join(f"line {n}" for n in range(20))
    first = told("a", ours, 200)
    database.add_measurement(new_row("1", first.fingerprint, "main", None, lasted(24, 200, startup_s=4)))
    assert [m.duration_s for m in told("a", ours, 200).same] == [24]
    assert [m.duration_s for m in told("a", ours.replace("line 7", "line seven"), 800).similar] == [84]
    assert told("b", "\n".join(f"row {n}" for n in range(20)), 200).similar == []


@pytest.mark.parametrize(("provider", "factor"), [("local", 2.0), ("aws", 1.0)])
def test_only_a_quote_of_this_machine_follows_its_load(database, home, recipe, monkeypatch, provider, factor):
    recipe = recipe.model_copy(update={"provider": provider})
    key = histories(database, home, recipe)["main"].fingerprint
    keep(database, OWNER, key.exact, key.similar, 10.0)
    database.put_forecast(OWNER, json.dumps({"load": 0.0}))
    cores = os.cpu_count() or 1
    monkeypatch.setattr(HomeLoad, "now", lambda: HomeLoad(99.0 * cores))
    (told,) = histories(database, home, recipe)["main"].same
    assert (told.point.step_time_s > 0.1 * factor) is (provider == "local")
    assert told.point.step_time_s >= 0.1
    assert told.as_dict()["step_time_s"] == 0.1
    assert told.as_dict()["duration_s"] == 10.0
    assert "as_seen" not in json.loads(told.to_json())
