"""What other work has disturbed: left out where there is better, and measured again once it is quiet."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest

from trainmaster.advisor.model.devices import Device
from trainmaster.advisor.model.knowledge import Knowledge, undisturbed
from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.control.measure.profile_attempt import NoStepsError
from trainmaster.control.task.layout import Home
from trainmaster.executors.capacity import detect_capacity
from trainmaster.providers import Catalogue
from trainmaster.service import Service
from trainmaster.service.quotes.fingerprint import Fingerprint
from trainmaster.service.quotes.history import History, new_row
from trainmaster.service.quotes.job_knowledge import (
    JobKnowledge,
    _helps_again,
    counts_epochs,
    is_quiet,
    why_no_length,
)
from trainmaster.service.quotes.measured_now import MeasuredNow
from trainmaster.service.quotes.profiling import Profiler
from trainmaster.service.quotes.quote_options import QuoteOptions
from trainmaster.service.quotes.quote_service import Quoter
from trainmaster.spec import Experiment, Recipe, Strategy

CALM = Measurement(Point(Strategy.ALLREDUCE, 1, nodes=1, step_time_s=0.1), held=0.02)
DISTURBED = replace(CALM, point=replace(CALM.point, step_time_s=0.2), held=0.5)
OTHER_SHAPE = replace(DISTURBED, point=replace(DISTURBED.point, workers=2))


@pytest.mark.parametrize(
    ("measured", "left"),
    [
        ([DISTURBED, CALM], [CALM]),
        ([DISTURBED], [DISTURBED]),
        ([DISTURBED, OTHER_SHAPE, CALM], [OTHER_SHAPE, CALM]),
        ([DISTURBED, replace(CALM, offer="m4.large")], [DISTURBED, replace(CALM, offer="m4.large")]),
        ([replace(CALM, held=None), DISTURBED], [replace(CALM, held=None)]),
    ],
)
def test_what_was_disturbed_counts_only_where_there_is_nothing_better(measured, left):
    assert undisturbed(measured) == left


def test_knowledge_says_how_much_of_it_was_disturbed():
    here = {"local": Device("", 2.0, "local")}
    assert Knowledge.of([DISTURBED], [], here, {}).held == 0.5
    assert Knowledge.of([DISTURBED, CALM], [], here, {}).held == 0.02


@pytest.mark.parametrize(("load", "quiet"), [(0.1, True), (0.4, False)])
def test_a_machine_is_quiet_by_its_load(load, quiet):
    cores = detect_capacity().cores
    assert is_quiet(lambda: (load * cores, 9.0, 9.0)) is quiet


@pytest.mark.parametrize(
    ("measured", "helps"),
    [
        ([DISTURBED, OTHER_SHAPE], True),
        ([CALM], False),
        ([replace(DISTURBED, offer="m4.large")], False),
        ([DISTURBED, DISTURBED], False),
    ],
)
def test_what_was_disturbed_is_measured_again_once_and_only_where_it_was(measured, helps):
    assert _helps_again(Knowledge.of(measured, [], {"local": Device("", 2.0, "local")}, {})) is helps


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("python train.py", "or says what that costs"),
        ("python train.py --max-steps 2000", "(its command asks for 2,000 steps)"),
        ("python train.py --epochs 3", "(its command asks for 3 epochs)"),
    ],
)
def test_a_gang_that_was_never_measured_is_led_to_that_and_told_the_length_of_its_command(command, asked):
    gang = {"name": "main", "command": command, "distributed": {"workers": 2, "strategy": "allreduce"}}
    why = why_no_length(Experiment.model_validate(gang))
    assert "no length: set `steps`" in why
    assert "`trainmaster quote` measures it" in why
    assert why.endswith(asked)


@pytest.mark.parametrize(
    ("seen", "shape", "is_here", "is_told"),
    [
        ({}, {}, False, True),
        ({}, {}, True, False),
        ({}, {"per_node": 2}, False, False),
        ({"offer": "m4.large"}, {}, False, False),
        ({"point": CALM.point}, {}, False, False),
    ],
)
def test_whole_tasks_on_one_machine_say_nothing_of_a_gang_between_machines(seen, shape, is_here, is_told):
    """They were quoted 13 s (7 to 26) for 2 min 37 s."""
    measured = Measurement(**{"point": None, "duration_s": 1.3, **seen})
    known = Knowledge.of([measured], [], {"local": Device("", 2.0, "local")}, {})
    distributed = {"workers": 2, "strategy": "allreduce", **shape}
    gang = {"name": "main", "command": "python a.py", "steps": 150, "distributed": distributed}
    why = why_no_length(Experiment.model_validate(gang), known, is_here=is_here)
    assert bool(why) is is_told
    assert ("seen on one machine only" in why) is is_told


def test_a_gang_that_showed_steps_and_no_length_is_asked_for_its_length():
    """It was told that it shows no steps."""
    known = Knowledge.of([replace(CALM, duration_s=4.0)], [], {"local": Device("", 2.0, "local")}, {})
    gang = {"name": "main", "command": "a.py", "distributed": {"workers": 3, "strategy": "allreduce"}}
    why = why_no_length(Experiment.model_validate(gang), known, is_here=False)
    assert "no length: set `steps`" in why
    assert "(a step takes 0.1 s)" in why


@pytest.mark.parametrize(
    ("seen", "steps", "is_told"),
    [
        (replace(CALM, unit="epoch"), 1200, True),
        (CALM, 1200, False),
        (replace(CALM, unit="epoch"), None, False),
        (replace(CALM, unit="epoch", duration_s=9.0), 1200, False),
    ],
)
def test_an_epoch_that_is_taken_for_a_step_is_told_until_a_run_has_come_to_its_end(seen, steps, is_told):
    known = Knowledge.of([seen], [], {"local": Device("", 2.0, "local")}, {})
    experiment = Experiment.model_validate({"name": "main", "command": "python a.py", "steps": steps})
    assert counts_epochs(experiment, known) is is_told


def test_what_was_measured_of_all_experiments_is_read_once(monkeypatch):
    asked = []

    def measurements(recipe, _load):
        asked.append(recipe)
        seen = [Measurement(None, duration_s=9.0, offer="m4.large")]
        return {name: History(Fingerprint(name, name), seen if name != "d" else []) for name in "abcd"}

    monkeypatch.setattr("trainmaster.service.quotes.history.experience_of", lambda *_, **__: None)
    catalogue = Catalogue("some", (SimpleNamespace(instance_type="m4.large", provider="aws"),))
    builder = SimpleNamespace(
        catalogue=catalogue, knowledge=lambda _, same, *__: Knowledge.of(same, [], {}, {})
    )
    recipe = SimpleNamespace(experiments=dict.fromkeys("abcd"), is_notebook=False)
    jobs = JobKnowledge(SimpleNamespace(measurements=measurements, database=None), print, None)
    known = jobs.known(recipe, "abd", builder)
    assert [each.fingerprint for each in known.values()] == list(known) == ["a", "b"]
    assert asked == [recipe]
    assert jobs.known(recipe, "", builder) == {}
    assert asked == [recipe]


def test_what_showed_no_steps_with_some_numbers_of_workers_is_said_beside_its_quote(tmp_path, monkeypatch):
    (code := tmp_path / "code").mkdir()
    recipe = Recipe.from_text("name: job\nexperiments: {main: {command: 'true'}}\n", directory=code)
    home = Home(tmp_path / "h", tmp_path / "c", f"file://{tmp_path}/s", f"sqlite:///{tmp_path / 'd.db'}")
    with closing(Service(home)) as service:

        def measure(profiler, one, *_):
            key = service.measurements(one)["main"].fingerprint
            seen = Measurement(None, duration_s=60.0, startup_s=1.0, measured_at=1.0)
            service.database.add_measurement(new_row("profile", key, "main", None, seen))
            profiler.not_measured["main"] = "the task ran for 60 s and showed no step"

        monkeypatch.setattr(Profiler, "measure", measure)
        made = Quoter(service, lambda _: None).quote(recipe, {}, QuoteOptions())
    assert made.time_s is not None
    assert "main: not all of it could be measured: the task ran for 60 s and showed no step" in made.notes


def test_what_showed_no_steps_is_measured_again_only_if_it_may_show_some(tmp_path, monkeypatch):
    """A minute of it was spent for each quote."""
    (code := tmp_path / "code").mkdir()
    text = "name: job\nexperiments: {main: {command: 'true', %s}}\n"
    home = Home(tmp_path / "h", tmp_path / "c", f"file://{tmp_path}/s", f"sqlite:///{tmp_path / 'd.db'}")
    measured, told = [], []

    def attempt(session, _place, _number, variant, _find):
        measured.append(variant)
        raise NoStepsError("the task ran for 60 s and showed no step", "Report steps.")

    monkeypatch.setattr("trainmaster.service.quotes.profiling._Session._attempt", attempt)
    with closing(Service(home)) as service:

        def quoted(keys="", **how):
            recipe = Recipe.from_text(text % keys, directory=code)
            made = Quoter(service, told.append).quote(recipe, {}, QuoteOptions(**how))
            assert made.main.notes == (
                "not measured: the task ran for 60 s and showed no step. Report steps.",
            )
            return len(measured)

        assert quoted() == 1
        assert quoted() == 1
        assert told[-1] == "main: it showed no steps when it was measured (--fresh measures again)"
        assert quoted(fresh=True) == 2
        assert quoted("metrics: {pattern: 'step (?P<step>[0-9]+)'}") == 3
        assert quoted("profile: {seconds: 120}") == 4
        (code / "train.py").write_text("print('other code')")
        assert quoted() == 5
        assert quoted() == 5
        recipe = Recipe.from_text(text % "", directory=code)
        key = service.measurements(recipe)["main"].fingerprint
        seen = Measurement(None, duration_s=60.0, startup_s=1.0, measured_at=1.0)
        service.database.add_measurement(new_row("run", key, "main", None, seen))
        made = Quoter(service, told.append).quote(recipe, {}, QuoteOptions())
    assert not [note for note in made.notes if "could be measured" in note], "a run has shown more since"


@pytest.mark.parametrize(
    ("timeout", "said"), [("30s", "will take 1 min"), ("63s", "may take 1 min"), ("2m", ""), (None, "")]
)
def test_a_quote_says_that_a_timeout_ends_what_is_quoted(tmp_path, timeout, said):
    (code := tmp_path / "code").mkdir()
    keys = "" if timeout is None else f", timeout: {timeout}"
    recipe = Recipe.from_text(
        f"name: job\nexperiments: {{main: {{command: 'true'{keys}}}}}\n", directory=code
    )
    home = Home(tmp_path / "h", tmp_path / "c", f"file://{tmp_path}/s", f"sqlite:///{tmp_path / 'd.db'}")
    with closing(Service(home)) as service:
        key = service.measurements(recipe)["main"].fingerprint
        for number in range(9):
            seen = Measurement(None, duration_s=60.0, startup_s=1.0, measured_at=float(number))
            service.database.add_measurement(new_row(f"profile-{number}", key, "main", None, seen))
        made = Quoter(service, lambda _: None).quote(recipe, {}, QuoteOptions())
    told = [note for note in made.notes if "timeout" in note]
    assert bool(told) is bool(said)
    assert all(each.startswith(f"main: an attempt {said}") for each in told), told


@pytest.mark.parametrize("may_save", [True, False])
def test_of_a_run_it_is_known_whether_its_code_can_write_checkpoints(may_save):
    known = MeasuredNow()
    known.read("main", History(Fingerprint("f", "f", may_save=may_save)))
    assert known.saves_none == (set() if may_save else {"main"})
