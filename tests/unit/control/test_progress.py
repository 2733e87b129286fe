"""How far a task is, by what it has printed."""

import json
from types import SimpleNamespace

import pytest

from trainmaster.cli.watching import task_text
from trainmaster.control.decide.effects import Policy
from trainmaster.control.measure.measuring import trace_of
from trainmaster.control.measure.progress import TaskProgress
from trainmaster.control.notes.task_notes import MISSED_AFTER_S, MetricNotes
from trainmaster.control.task.layout import AttemptPlace
from trainmaster.spec import read_recipe


def start(tmp_path, attempt=1, is_behind=False, earlier=None, **keys):
    """Progress of an attempt, and what writes a line to its log."""
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps({"name": "job", "experiments": {"main": {"command": "true"} | keys}}))
    place = AttemptPlace(tmp_path / "attempt")
    place.directory.mkdir()
    context = SimpleNamespace(
        experiment=read_recipe(path).experiments["main"],
        members=("worker-0",),
        place=place,
        attempt=attempt,
        goes_on=attempt > 1,
        parameters={},
    )

    def say(line):
        with place.log("worker-0").open("a") as file:
            file.write(line + "\n")

    return TaskProgress.of(context, is_behind=is_behind, earlier=earlier), say


def mnist(progress, say, batches=40):
    """As PyTorch's MNIST example: batches of 64 out of 6400 examples, 10 a second, each tenth is shown."""
    for batch in range(0, batches, 10):
        epoch, inside = divmod(batch, 100)
        say(f"Train Epoch: {epoch + 1} [{inside * 64}/6400 ({inside}%)]\tLoss: 0.400000")
        progress.update(100 + batch / 10)


def test_examples_become_steps_by_the_recipes_batch(tmp_path):
    progress, say = start(tmp_path, batch={"global": 64}, epochs=2, examples=6400)
    mnist(progress, say, batches=141)
    assert progress.metrics == {"epoch": 2, "examples": 8960, "loss": 0.4}
    assert progress.steps_per_s == pytest.approx(10.0)
    assert progress.eta_s == pytest.approx(6.0)
    assert task_text(progress).endswith("10 steps/s  6 s left")
    assert progress.trace.steady().step_time_s == pytest.approx(0.1)


def test_examples_without_a_batch_have_a_rate_and_a_time_left_too(tmp_path):
    progress, say = start(tmp_path, epochs=2, examples=6400)
    mnist(progress, say, batches=141)
    assert progress.steps_per_s is None
    assert progress.eta_s == pytest.approx(6.0)
    assert task_text(progress).endswith("640 examples/s  6 s left")


def test_nobody_knows_how_many_examples_there_will_be(tmp_path):
    progress, say = start(tmp_path)
    mnist(progress, say)
    assert progress.eta_s is None
    assert task_text(progress).endswith("640 examples/s")


@pytest.mark.parametrize(
    "line",
    [
        "| epoch   2 |    10/   20 batches | lr 20.00 | ms/batch 100.0 | loss  7.37 | ppl  1581.40",
        "Epoch: [2][10/20]\tLoss 7.37 (7.4)",
        "Train Epoch: 2 [640/1280 (50%)]\tLoss: 0.4",
        "Epoch 1:  50%|#####     | 10/20 [00:01<00:01,  9.9it/s, loss=0.4]",
        "Epoch 2/4\r10/20 [=====>.....] - ETA: 0s - loss: 0.4",
    ],
)
def test_the_length_of_an_epoch_is_read_from_what_is_printed(tmp_path, line):
    """PyTorch's word language model, ImageNet (epoch 2 is the third) and MNIST; Lightning; Keras 2."""
    progress, say = start(tmp_path, epochs=4)
    for inside in range(1, 11):
        say(
            line.replace("10/", f"{inside}/").replace("640/1280 (50%)", f"{64 * inside}/1280 ({5 * inside}%)")
        )
        progress.update(100 + inside / 10)
    epochs_left = 1.5 if line.startswith("Epoch: [") else 2.5
    assert progress.eta_s == pytest.approx(20 * epochs_left / 10)


def test_what_the_recipe_says_of_the_length_counts(tmp_path):
    progress, say = start(tmp_path, epochs=4, steps=100)
    for inside in range(1, 11):
        say(f"| epoch   1 | {inside}/   20 batches | loss  7.37 |")
        progress.update(100 + inside / 10)
    assert progress.eta_s == pytest.approx(9.0)


def test_steps_go_on_over_epochs(tmp_path):
    progress, say = start(tmp_path, steps=168)
    for batch in range(10, 90, 10):
        epoch, inside = divmod(batch, 84)
        say(f"| epoch {epoch + 1:3d} | {inside:5d}/   84 batches | lr 20.00 | ms/batch 12.30 | loss  5.20")
        progress.update(100 + batch / 10)
    assert progress.metrics["step"] == 80
    assert progress.steps_per_s == pytest.approx(10.0)
    assert progress.eta_s == pytest.approx(8.8)


def test_steps_epochs_and_examples_tell_the_batch(tmp_path):
    path = tmp_path / "recipe.yaml"
    main = {"command": "true", "steps": 200, "epochs": 2, "examples": 6400}
    path.write_text(json.dumps({"name": "job", "experiments": {"main": main}}))
    trace = trace_of(read_recipe(path).experiments["main"], 0.0)
    for second in range(10):
        trace.add(second, examples=640 * second)
    assert trace.steady().step_time_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("keys", "unit"),
    [
        ({"steps": 160}, "epoch"),
        ({"steps": 160, "epochs": 8}, "step"),
        ({"steps": 160, "command": "python train.py --epochs 8"}, "step"),
        ({"command": "python train.py --epochs 8"}, "epoch"),
    ],
)
def test_epochs_are_so_many_steps_where_both_lengths_are_known(tmp_path, keys, unit):
    progress, say = start(tmp_path, **keys)
    for epoch in (1, 2, 3, 4):
        say(f"epoch {epoch} loss 0.5")
        progress.update(2.0 * epoch)
    assert progress.trace.unit == unit
    steady = progress.trace.steady()
    assert steady.step_time_s == pytest.approx(0.1 if unit == "step" else 2.0)


def test_epochs_are_so_many_steps_where_the_script_prints_how_many_there_are(tmp_path):
    progress, say = start(tmp_path, steps=160)
    for epoch in (1, 2, 3, 4):
        say(f"Epoch {epoch}/8 loss 0.5")
        progress.update(2.0 * epoch)
    assert progress.trace.unit == "step"
    assert progress.trace.steady().step_time_s == pytest.approx(0.1)
    assert progress.total_steps == 160


def test_what_was_written_before_it_was_followed_says_nothing_of_its_speed(tmp_path):
    """A node's log of a minute comes within a second: 120 steps, of a script that makes two a second."""
    progress, say = start(tmp_path, is_behind=True, steps=1000)
    for step in range(1, 101):
        say(f"step {step} loss 0.5")
    for look in range(20):
        now = 1000 + look / 2
        if look in (1, 2, 3):
            for step in range(40 * look + 61, 40 * look + 101):
                say(f"step {step} loss 0.5")
        elif look > 3:
            say(f"step {217 + look} loss 0.5")
        progress.update(now)
        assert progress.steps_per_s is None or progress.steps_per_s == pytest.approx(2.0)
    assert progress.metrics["step"] == 236
    assert progress.from_step == 223, "of the moment at which it had caught up"
    assert progress.steps_per_s == pytest.approx(2.0)
    assert progress.eta_s == pytest.approx(382)
    assert progress.trace.steady().step_time_s == pytest.approx(0.5)


def test_much_that_was_written_before_takes_as_long_as_it_takes(tmp_path):
    progress, say = start(tmp_path, is_behind=True)
    for look in range(40):
        for step in range(1000) if look < 30 else [0]:
            say(f"step {min(look, 30) * 1000 + max(look - 30, 0) + step} loss 0.5")
        progress.update(1000 + look / 2)
        assert look > 29 or progress.steps_per_s is None
    assert progress.from_step == 30_000
    assert progress.steps_per_s == pytest.approx(2.0)


@pytest.mark.parametrize("first", ["step 0 loss 0.5", "epoch 0: preparing", ""])
def test_an_attempt_that_goes_on_has_not_made_the_steps_of_the_one_before(tmp_path, first):
    progress, say = start(tmp_path, attempt=2, earlier={"step": 251, "loss": 0.1}, steps=1000)
    say(first)
    progress.update(100.0)
    assert progress.from_step is None
    for second in range(10):
        say(f"step {241 + second} loss 0.5")
        progress.update(107.0 + second)
    assert progress.steps_per_s == pytest.approx(1.0)
    assert progress.trace.steady().step_time_s == pytest.approx(1.0)
    assert (progress.from_step, progress.came_to) == (241, 251)


def test_epochs_are_progress_too(tmp_path):
    progress, say = start(tmp_path, attempt=2)
    for epoch in range(3, 20):
        say(json.dumps({"epoch": epoch, "loss": 0.5}))
        progress.update(100.0 + epoch)
    assert progress.from_step is None
    assert progress.trace.steady().step_time_s == pytest.approx(1.0)


def test_a_first_attempt_goes_on_from_nowhere(tmp_path):
    progress, say = start(tmp_path)
    say("step 1 loss 0.5")
    progress.update(100.0)
    assert progress.from_step is None


def test_until_holds_at_the_first_line_that_says_so_whatever_comes_after(tmp_path):
    progress, say = start(tmp_path, until="accuracy >= 0.9")
    say("step 1 accuracy 0.5")
    progress.update(100.0)
    assert progress.reached == ""
    say("step 2 accuracy 0.95\nstep 3 accuracy 0.2")
    progress.update(101.0)
    assert progress.reached == "until accuracy >= 0.9: accuracy is 0.95 at step 2"


def test_a_metric_of_until_that_never_comes_is_told_once(tmp_path):
    progress, say = start(tmp_path, until="acc >= 0.9")
    notes = MetricNotes({"main": Policy(until=progress.until), "other": Policy()})
    say("step 1 accuracy 0.5")
    progress.update(100.0)
    of_run = {("main", 0): progress}
    assert notes.look(of_run, 100.0) == notes.look(of_run, 100.0 + MISSED_AFTER_S - 1) == []
    (note,) = notes.look(of_run, 100.0 + MISSED_AFTER_S)
    assert "acc is not reported; reported are accuracy, step so far" in note.message
    assert notes.look(of_run, 1000.0) == []


def test_a_metric_of_a_search_that_never_comes_is_told_once_before_the_task_has_ended(tmp_path):
    progress, say = start(tmp_path)
    wrong, right = (MetricNotes({"main": Policy(searched=name)}) for name in ("acuracy", "accuracy"))
    say("step 1 accuracy 0.5")
    progress.update(100.0)
    of_run = {("main", 0): progress}
    assert wrong.look(of_run, 100.0) == right.look(of_run, 100.0) == []
    (note,) = wrong.look(of_run, 100.0 + MISSED_AFTER_S)
    assert "reported are accuracy, step; did you mean accuracy? A task that ends without" in note.message
    assert wrong.look(of_run, 1000.0) == right.look(of_run, 1000.0) == []


def test_how_long_it_reports_nothing_is_known(tmp_path):
    progress, say = start(tmp_path)
    progress.update(100.0)
    assert (progress.moved_at, progress.longest_pause_s) == (None, None)
    found = []
    for now, line in (
        (101.0, "step 1 loss 0.5"),
        (103.0, ""),
        (106.0, "step 2 loss 0.4"),
        (107.0, "step 3 loss 0.3"),
    ):
        if line:
            say(line)
        progress.update(now)
        found.append((progress.moved_at, progress.longest_pause_s))
    assert found == [(101.0, None), (101.0, None), (106.0, 5.0), (107.0, 5.0)]


def test_what_a_script_says_of_its_length_counts_where_the_recipe_does_not(tmp_path):
    progress, say = start(tmp_path)
    for step in (10, 20):
        say(f"step {step}/100 loss 0.4")
        progress.update(step)
    assert (progress.said_steps, progress.total_steps) == (100, 100)
    assert progress.eta_s == pytest.approx(80.0)
    (tmp_path / "known").mkdir()
    known, say = start(tmp_path / "known", steps=50)
    for step in (10, 20):
        say(f"step {step}/100 loss 0.4")
        known.update(step)
    assert (known.said_steps, known.total_steps) == (0, 50)


@pytest.mark.parametrize(
    ("totals", "said"),
    [((500, 500), 500), ((500,), 0), ((10, 20), 0), ((5, 5), 0)],
    ids=["told twice", "told once", "it grows with the steps", "less than it has done"],
)
def test_a_total_that_is_reported_is_believed_once_it_stays(tmp_path, totals, said):
    progress, _ = start(tmp_path)
    file = progress.directory / "worker-0.metrics.jsonl"
    for number, total in enumerate(totals, 1):
        with file.open("a") as lines:
            lines.write(json.dumps({"step": 10 * number, "total_steps": total}) + "\n")
        progress.update(number)
    assert progress.said_steps == said


def test_a_script_that_shows_epochs_only_says_its_length_in_epochs(tmp_path):
    progress, say = start(tmp_path)
    say("Epoch 3/10, loss: 0.4")
    progress.update(1)
    assert progress.said_steps == 10
    say("step 5 loss 0.4")
    progress.update(2)
    assert progress.said_steps == 0, "how many steps an epoch has is not known"


@pytest.mark.parametrize(
    ("asked", "lines", "said"),
    [
        ("--steps 500", ["step 10 loss 0.4"], 500),
        ("--steps 500", ["step 501 loss 0.4"], 0),
        ("--steps 500", ["step 10/80 loss 0.4", "step 11/80 loss 0.4"], 80),
        ("--steps 500", ["epoch 2 loss 0.4"], 0),
        ("--epochs 4", ["epoch 2 loss 0.4"], 4),
        ("--epochs 4", ["step 10 loss 0.4"], 0),
        ("--epochs 4", ["| epoch   2 |    10/   20 batches | loss  7.37 | ppl  1581.40"], 80),
        ("--epochs 4", [f"epoch {e} step {s}/20 loss 0.4" for e in (1, 2) for s in (5, 15)], 80),
        ("--epochs 4", ["Train Epoch: 2 [640/1280 (50%)]\tLoss: 0.4"], 4),
    ],
)
def test_a_command_asks_for_a_length_in_what_its_script_counts(tmp_path, asked, lines, said):
    progress, say = start(tmp_path, command=f"python train.py {asked}")
    for line in lines:
        say(line)
    progress.update(1)
    assert progress.said_steps == said


def test_parts_of_epochs_count_where_only_examples_are_shown(tmp_path):
    progress, say = start(tmp_path, command="python train.py --epochs 4")
    mnist(progress, say, batches=201)
    assert progress.trace.steps_done == pytest.approx(2.0, abs=0.15), "not the third, which has begun"
    assert progress.trace.steady().step_time_s == pytest.approx(10.0)


def test_how_often_checkpoints_are_written_is_known_by_those_that_were_published(tmp_path):
    progress, _ = start(tmp_path)
    assert progress.saves_every_s(100.0, 150.0, 60.0) is None, "it is too early"
    assert progress.saves_every_s(100.0, 400.0, 60.0) is None, "it may not have come to its first one"
    assert progress.saves_every_s(100.0, 400.0, 60.0, is_sure=True) == 0.0
    assert progress.saves_every_s(100.0, 4000.0, 60.0) == 0.0
    for at in (None, 220.0, 220.0, 340.0):
        progress.saved(at)
    assert (progress.checkpoint_at, progress.saves_every_s(100.0, 400.0, 60.0)) == (340.0, 120.0)
    (tmp_path / "b").mkdir()
    behind, _ = start(tmp_path / "b", is_behind=True)
    assert behind.saves_every_s(100.0, 400.0, 60.0) is None, "some were published before"
