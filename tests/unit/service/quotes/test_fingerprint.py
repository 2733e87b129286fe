"""Fingerprints: what voids a measurement, and what does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainmaster.executors import NodeCapacity
from trainmaster.service.quotes.fingerprint import code_of, fingerprint_of, local_device
from trainmaster.service.quotes.profiling import shapes_of
from trainmaster.spec import Recipe, read_recipe

BASE = {
    "command": "python train.py --lr {{lr}}",
    "parameters": {"lr": [0.1, 0.2]},
    "distributed": {"strategy": "allreduce", "workers": 2},
    "batch": {"global": 64},
    "steps": 100,
    "env": {"A": "1"},
    "secrets": ["TOKEN"],
    "data": {"x": {"dir": "images"}},
}


def recipe_of(directory: Path, top=(), **changed):
    experiment = {**BASE, **changed}
    path = directory / "recipe.yaml"
    path.write_text(json.dumps({"name": "job", "experiments": {"main": experiment}, **dict(top)}))
    return read_recipe(path)


def fingerprint(directory: Path, *, code: str = "c", device: str = "d", top=(), **changed):
    recipe = recipe_of(directory, top, **changed)
    return fingerprint_of(recipe, recipe.experiments["main"], code, device)


@pytest.mark.parametrize(
    "changed",
    [
        {"distributed": {"strategy": "allreduce", "workers": 4}},
        {"distributed": {"strategy": "allreduce", "workers": "1..8"}},
        {"steps": 5000},
        {"retries": 3, "timeout": "1h", "profile": {"seconds": 5}, "checkpoint": {"every": "5s"}},
        {"top": {"budget": {"total": "$5"}, "objective": "fastest", "name": "other"}},
    ],
)
def test_workers_length_and_budget_change_nothing(tmp_path, changed):
    assert fingerprint(tmp_path, **changed) == fingerprint(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"code": "other"},
        {"parameters": {"lr": [0.1, 0.3]}},
        {"env": {"A": "2"}},
        {"secrets": ["OTHER"]},
        {"data": {"x": {"dir": "other"}}},
        {"data": {}},
        {"batch": {"global": 128}},
        {"setup": "pip install x"},
        {"container": "python:3.12"},
    ],
)
def test_what_makes_it_a_similar_one(tmp_path, changed):
    ours, other = fingerprint(tmp_path), fingerprint(tmp_path, **changed)
    assert ours.exact != other.exact
    assert ours.similar == other.similar


@pytest.mark.parametrize(
    "changed",
    [
        {"device": "other"},
        {"command": "python other.py --lr {{lr}}"},
        {"framework": "jax"},
        {"distributed": {"strategy": "ps-async", "workers": 2}},
        {"distributed": None, "batch": {"per_worker": 64}},
    ],
)
def test_what_makes_it_another_job(tmp_path, changed):
    if changed.get("distributed", 1) is None:
        del changed["distributed"]
        recipe = recipe_of(tmp_path)
        alone = recipe.experiments["main"].model_copy(update={"distributed": None})
        other = fingerprint_of(recipe, alone, "c", "d")
    else:
        other = fingerprint(tmp_path, **changed)
    ours = fingerprint(tmp_path)
    assert ours.exact != other.exact
    assert ours.similar != other.similar


def test_relative_data_are_told_apart_by_the_recipes_folder(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert fingerprint(tmp_path / "a").exact != fingerprint(tmp_path / "b").exact


def test_the_recipe_is_no_part_of_the_code(tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print(1)")
    first = code_of(recipe_of(code), code)
    assert code_of(recipe_of(code, steps=7), code) == first
    sent = Recipe.from_text("name: job\nexperiments: {main: {command: ls}}\n", directory=tmp_path)
    assert code_of(sent, code) == first, "a server reads what was changed with `--set`, beside the file"
    (code / "other.yaml").write_text("a: 1")
    second = code_of(recipe_of(code), code)
    assert second != first
    (code / "train.py").chmod(0o755)
    third = code_of(recipe_of(code), code)
    assert third != second
    (code / "link").symlink_to("train.py")
    assert code_of(recipe_of(code), code) not in (first, second, third)


def test_a_device_is_its_processor_cores_and_gpus(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: Fast  CPU @ 3GHz\n")
    machine = NodeCapacity(cores=4, memory_bytes=1, gpus=())
    assert local_device(machine, tmp_path) == "local: 4 x Fast CPU @ 3GHz, no GPU"
    card = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0"
    card.mkdir(parents=True)
    (card / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 5\n")
    machine = NodeCapacity(cores=4, memory_bytes=1, gpus=("0", "1"))
    assert local_device(machine, tmp_path) == "local: 4 x Fast CPU @ 3GHz, 2 x NVIDIA H200"
    assert "no GPU" in local_device(NodeCapacity(1, 1, ()), tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("workers", "batch", "most", "elsewhere", "expected"),
    [
        (3, 63, 2, False, [3]),  # it will run here, so it is measured as it will be
        (64, 64, 2, True, [1, 2]),
        (4, 64, 8, True, [4]),
        ("auto", 64, 2, False, [1, 2]),
        ("auto", 64, 16, False, [1, 2, 16]),
        ("auto", 63, 16, False, [1]),
        ("2..8", 64, 16, False, [2, 4, 8]),
        ("3..8", 63, 2, False, [3]),
        ("4..8", 64, 2, True, []),
        ("auto", 64, 0, True, []),
    ],
)
def test_shapes_that_are_measured(tmp_path, workers, batch, most, elsewhere, expected):
    gang = {"strategy": "allreduce", "workers": workers}
    recipe = recipe_of(tmp_path, distributed=gang, batch={"global": batch})
    assert shapes_of(recipe.experiments["main"], most, elsewhere=elsewhere) == expected
