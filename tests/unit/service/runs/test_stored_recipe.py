"""A run's recipe in the database, damaged: what it was, or an error that names the run and what to do."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings

from hostile_bytes import changed_json
from trainmaster.service.runs.stored_recipe import recipe_text, stored_recipe
from trainmaster.spec import Recipe, read_recipe
from trainmaster.spec.errors import StoreError

RECIPE = {
    "name": "digits",
    "experiments": {
        "train": {"command": "python train.py --lr {lr}", "parameters": {"lr": [0.1, 0.2]}, "retries": 2},
        "test": {"command": "python test.py", "after": ["train"]},
    },
}


def stored():
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "recipe.yaml").write_text(json.dumps(RECIPE))
        return json.loads(read_recipe(Path(scratch) / "recipe.yaml").model_dump_json())


STORED = stored()


@settings(max_examples=100)
@given(changed_json(STORED))
@example(b"")
def test_any_recipe(data):
    try:
        found = stored_recipe({"id": "digits-1", "recipe": data.decode(errors="surrogateescape")})
    except StoreError as error:
        said = str(error)
        assert "the recipe of digits-1" in said
        assert "trainmaster clusters" in said
    else:
        found.order()


def test_a_good_one_is_what_it_was():
    text = json.dumps(STORED)
    assert stored_recipe({"id": "r", "recipe": text}) == Recipe.model_validate_json(text)


@pytest.mark.parametrize("file", ["# mine\nname: x\nexperiments: {main: {command: make}}\n", "name: [\n"])
def test_its_text_is_as_it_was_sent(file):
    assert recipe_text({"id": "r", "recipe": json.dumps({"source_text": file})}) == file


def test_what_was_changed_of_it_is_in_its_text(tmp_path):
    file = tmp_path / "digits.yaml"
    file.write_text("# mine\nexperiments: {main: {command: make, parameters: {lr: [0.1]}}}\n")
    made = read_recipe(file, overrides=["experiments.main.parameters.lr=[0.3]"], provider="hosts")
    text = recipe_text({"id": "r", "recipe": made.model_dump_json()})
    again = Recipe.from_text(text, directory=tmp_path)
    assert (again.name, again.provider, again.experiments) == ("digits", "hosts", made.experiments)
