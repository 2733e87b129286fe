"""Fingerprints: what voids a measurement, and what does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainmaster.executors.capacity import NodeCapacity
from trainmaster.service.quotes.fingerprint import (
    CodeFingerprint,
    code_of,
    fingerprint_of,
    kinship,
    local_device_name,
)
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
    return fingerprint_of(recipe, recipe.experiments["main"], CodeFingerprint(code), device)


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
        {"checkpoint": {"from": "r-1/main/0@2"}},
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
        other = fingerprint_of(recipe, alone, CodeFingerprint("c"), "d")
    else:
        other = fingerprint(tmp_path, **changed)
    ours = fingerprint(tmp_path)
    assert ours.exact != other.exact
    assert ours.similar != other.similar


def test_relative_data_are_told_apart_by_the_recipes_folder(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert fingerprint(tmp_path / "a").exact != fingerprint(tmp_path / "b").exact


def test_recipe_and_logs_are_no_part_of_the_code(tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print(1)")
    first = code_of(recipe_of(code), code).digest
    assert code_of(recipe_of(code, steps=7), code).digest == first
    sent = Recipe.from_text("name: job\nexperiments: {main: {command: ls}}\n", directory=tmp_path)
    assert code_of(sent, code).digest == first, "a server reads what `--set` changed, beside the file"
    (code / "run.log").write_text("what an earlier run has printed")
    assert code_of(recipe_of(code), code).digest == first
    (code / "other.yaml").write_text("a: 1")
    second = code_of(recipe_of(code), code).digest
    assert second != first
    (code / "train.py").chmod(0o755)
    third = code_of(recipe_of(code), code).digest
    assert third != second
    (code / "link").symlink_to("train.py")
    assert code_of(recipe_of(code), code).digest not in (first, second, third)


def test_a_device_is_its_processor_cores_and_gpus(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: Fast  CPU @ 3GHz\n")
    machine = NodeCapacity(cores=4, memory_bytes=1, gpus=())
    assert local_device_name(machine, tmp_path) == "local: 4 x Fast CPU @ 3GHz, no GPU"
    card = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0"
    card.mkdir(parents=True)
    (card / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 5\n")
    machine = NodeCapacity(cores=4, memory_bytes=1, gpus=("0", "1"))
    assert local_device_name(machine, tmp_path) == "local: 4 x Fast CPU @ 3GHz, 2 x NVIDIA H200"
    assert "no GPU" in local_device_name(NodeCapacity(1, 1, ()), tmp_path / "nowhere")


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


TRAIN = """
import torch
data = load("images")
for epoch in range(10):
    for batch in data:
        loss = step(batch)
    print(f"epoch {epoch} loss {loss}")
"""
STRANGER = """
import sys, torch
net = torch.nn.Linear(10, 2)
for number in range(int(sys.argv[1])):
    out = net(torch.rand(8, 10))
    out.sum().backward()
    print("step", number)
"""


def lines_of(directory: Path, **files: str) -> tuple[int, ...]:
    directory.mkdir()
    for name, text in files.items():
        (directory / f"{name}.py").write_text(text)
    return code_of(recipe_of(directory), directory).lines


def test_versions_of_one_code_are_kin_and_codes_of_strangers_are_not(tmp_path):
    first = lines_of(tmp_path / "a", train=TRAIN)
    assert kinship(first, lines_of(tmp_path / "b", train=TRAIN.replace("range(10)", "range(30)"))) > 0.6
    assert kinship(first, lines_of(tmp_path / "c", train=TRAIN, plot="import pylab\n")) > 0.7
    assert kinship(first, lines_of(tmp_path / "d", train=STRANGER)) < 0.2
    assert kinship(first, ()) == 0
    long = "\n".join(f"line {n} of a long script" for n in range(1000))
    assert kinship(
        lines_of(tmp_path / "e", train=long), lines_of(tmp_path / "f", train=long.replace("7", "seven"))
    ) == pytest.approx(729 / 1271, abs=0.2)


def test_a_job_is_known_by_the_files_that_its_command_names(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)

    def similar(command: str) -> str:
        recipe = recipe_of(tmp_path, command=command, parameters={})
        found = fingerprint_of(recipe, recipe.experiments["main"], code_of(recipe, tmp_path), "d")
        return found.similar

    assert similar("python train.py --lr 0.1") == similar("python -u ./train.py --lr 0.2".replace("./", ""))
    assert similar("python train.py") != similar("python other.py")
    assert similar("sleep 10") == similar("sleep 20") != similar("rest 10")


def test_numbers_of_a_job_bear_the_names_that_the_user_gave_them(tmp_path):
    recipe = recipe_of(
        tmp_path,
        command="python train.py 8 --steps 200 --lr=0.1 trainer.epochs=3 '{{lr}}'".replace("'", ""),
        parameters={"lr": [0.5]},
        steps=70,
        env={"DEPTH": "4", "NAME": "x", "LARGE": "1e999"},
    )
    found = fingerprint_of(recipe, recipe.experiments["main"], CodeFingerprint("c"), "d").numbers
    assert {name: found[name] for name in ("word 2", "--steps", "--lr", "trainer.epochs", "DEPTH", "lr")} == {
        "word 2": 8, "--steps": 200, "--lr": 0.1, "trainer.epochs": 3, "DEPTH": 4, "lr": 0.5,
    }  # fmt: skip
    assert found["steps"] == 70
    assert not {"NAME", "LARGE"} & set(found)


def test_code_that_names_no_directory_for_checkpoints_writes_none(tmp_path):
    def may_save(text, **changed):
        (tmp_path / "train.py").write_text(text)
        recipe = recipe_of(tmp_path, **changed)
        return fingerprint_of(recipe, recipe.experiments["main"], code_of(recipe, tmp_path), "d").may_save

    assert not may_save("print(1)")
    assert may_save('os.environ["TRAINMASTER_CHECKPOINT_DIR"]')
    assert may_save("print(1)", command="python train.py --to $TRAINMASTER_CHECKPOINT_DIR")
    assert may_save("print(1)", env={"TO": "$TRAINMASTER_CHECKPOINT_DIR"})
    assert may_save("print(1)", command="python -m package_of_an_image"), "it is not seen"
