"""How far a task is, by what it has printed."""

import json
from types import SimpleNamespace

import pytest

from trainmaster.cli.watching import task_text
from trainmaster.control.layout import AttemptPlace
from trainmaster.control.measuring import trace_of
from trainmaster.control.progress import TaskProgress
from trainmaster.spec import read_recipe


def start(tmp_path, **keys):
    """Progress of an attempt, and what writes a line to its log."""
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps({"name": "job", "experiments": {"main": {"command": "true", **keys}}}))
    place = AttemptPlace(tmp_path / "attempt")
    place.directory.mkdir()
    context = SimpleNamespace(
        experiment=read_recipe(path).experiments["main"], members=("worker-0",), place=place
    )

    def say(line):
        with place.log("worker-0").open("a") as file:
            file.write(line + "\n")

    return TaskProgress.of(context), say


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
    assert task_text(progress).endswith("10 steps/s  6.0 s left")
    assert progress.trace.steady().step_time_s == pytest.approx(0.1)


def test_examples_without_a_batch_have_a_rate_and_a_time_left_too(tmp_path):
    progress, say = start(tmp_path, epochs=2, examples=6400)
    mnist(progress, say, batches=141)
    assert progress.steps_per_s is None
    assert progress.eta_s == pytest.approx(6.0)
    assert task_text(progress).endswith("640 examples/s  6.0 s left")


def test_nobody_knows_how_many_examples_there_will_be(tmp_path):
    progress, say = start(tmp_path)
    mnist(progress, say)
    assert progress.eta_s is None
    assert task_text(progress).endswith("640 examples/s")


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
