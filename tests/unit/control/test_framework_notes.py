"""Which image `container: auto` is, and what is told where machines lack a recipe's framework."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from trainmaster.control.checks import framework_notes as notes
from trainmaster.control.checks.framework_notes import framework_notes
from trainmaster.spec import Recipe
from trainmaster.spec.errors import RecipeError
from trainmaster.spec.frameworks import PACKAGES, Packages

PYTORCH = PACKAGES["pytorch"].image
HERE = {"PATH": "/usr/bin"}


def recipe(provider: str = "local", **keys: object) -> Recipe:
    experiment = {"command": "python train.py", **keys}
    return Recipe.from_dict({"name": "x", "provider": provider, "experiments": {"train.a": experiment}})


@pytest.fixture
def lacking(monkeypatch):
    """This machine's Python has nothing of PyTorch, under whatever name."""
    missing = Packages("no_such_torch", "torch", PYTORCH)
    monkeypatch.setitem(PACKAGES, "pytorch", missing)


@pytest.mark.parametrize(
    ("provider", "where"),
    [
        ("local", "this machine's Python has no no_such_torch"),
        ("lab", "this machine's Python has no no_such_torch, nor have machines of lab"),
        ("aws", "machines of aws have no no_such_torch"),
    ],
)
def test_machines_without_the_framework_are_told_with_what_helps(lacking, provider, where):
    told = f"train.a: {where}: `container: auto` takes {PYTORCH}, or `setup: pip install torch`"
    assert framework_notes(recipe(provider, framework="pytorch"), HERE) == [told]


@pytest.mark.parametrize(
    "keys",
    [
        {"framework": "pytorch", "setup": "pip install torch"},
        {"framework": "pytorch", "container": "me/torch:1"},
        {"framework": "plain"},
        {"framework": "mpi"},
        {},
    ],
)
def test_nothing_is_said_where_the_recipe_brings_it_or_names_none(lacking, keys):
    assert framework_notes(recipe("aws", **keys), HERE) == []


def test_of_machines_that_are_the_users_own_affair_nothing_is_said(lacking):
    assert framework_notes(recipe("hosts", framework="pytorch"), HERE) == []
    own = {**HERE, "TRAINMASTER_AWS_IMAGE": "ami-1"}
    assert framework_notes(recipe("aws", framework="pytorch"), own) == []


def test_a_framework_without_an_image_of_ours_is_installed(monkeypatch):
    monkeypatch.setitem(PACKAGES, "jax", replace(PACKAGES["jax"], module="no_such_jax"))
    (told,) = framework_notes(recipe(framework="jax"), HERE)
    assert told.endswith("Python has no no_such_jax: `setup: pip install jax` brings it")


def test_the_python_of_an_active_environment_is_the_one_that_is_asked(tmp_path: Path, monkeypatch):
    """An active virtual environment comes first on PATH: what it says counts, not what we have."""
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    for code, told in ((0, 0), (1, 1), (7, 0)):  # one that fails in another way has said nothing
        python.write_text(f"#!/bin/sh\nexit {code}\n")
        python.chmod(0o755)
        notes._asked.cache_clear()
        found = framework_notes(recipe(framework="pytorch"), {**HERE, "VIRTUAL_ENV": str(tmp_path)})
        assert len(found) == told


def test_auto_is_the_image_of_the_framework_and_stays_it(monkeypatch):
    found = recipe(framework="tensorflow", container="auto", hardware={"gpus": 1})
    image = PACKAGES["tensorflow"].gpu_image
    assert found.experiments["train.a"].container == image
    assert framework_notes(found, HERE) == [
        f"train.a: container: auto is {image} (TRAINMASTER_IMAGE_TENSORFLOW names another)"
    ]
    assert found.summary()["experiments"]["train.a"]["container"] == image
    monkeypatch.setenv("TRAINMASTER_IMAGE_TENSORFLOW", "me/tf:1")
    again = Recipe.from_text(found.as_yaml(), directory=Path())
    assert again.experiments["train.a"].container == image, "a run goes on in the image it began in"
    assert recipe(framework="tensorflow", container="auto").experiments["train.a"].container == "me/tf:1"


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({}, "there is no `framework` to choose it by; write an image's name"),
        (
            {"framework": "jax"},
            "no image is known for jax; write an image's name, or set TRAINMASTER_IMAGE_J",
        ),
    ],
)
def test_auto_without_an_image_is_refused_at_its_place(keys, told):
    with pytest.raises(RecipeError, match=told) as caught:
        recipe(container="auto", **keys)
    assert caught.value.mistakes[0].key_path == "experiments.train.a.container"


def test_images_are_whole_references_and_those_of_the_docs():
    page = (Path(__file__).parents[3] / "docs/how/container.md").read_text()
    for framework, packages in PACKAGES.items():
        for gpus, image in enumerate((packages.image, packages.gpu_image or packages.image)):
            if image:
                assert re.fullmatch(r"docker\.io/[a-z]+/[a-z-]+:\d[\w.-]+", image)
                assert f"`{image.removeprefix('docker.io/')}`" in page
                found = recipe(framework=framework, container="auto", hardware={"gpus": gpus})
                assert found.experiments["train.a"].container == image


def test_what_lies_beside_a_recipe_is_not_run_to_look_for_a_framework(tmp_path, monkeypatch):
    beside = tmp_path / "beside"
    beside.mkdir()
    for name in ("importlib", "no_such_torch"):
        (beside / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    python = tmp_path / "python"  # of the system: nothing has loaded `importlib` before
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.chdir(beside)
    assert not notes._asked(str(python), "no_such_torch", "")
    assert notes._asked(str(python), "json", "")
    assert not (tmp_path / "ran").exists()
