"""The examples that come with Trainmaster."""

from __future__ import annotations

import pytest

from trainmaster.service.examples import example, examples
from trainmaster.spec import Recipe
from trainmaster.spec.errors import NotFoundError, UsageError


def test_all_their_recipes_are_right():
    for each in examples():
        for path in each.directory.glob("*.yaml"):
            Recipe.read(path)
        assert each.title
        assert each.about


def test_it_says_which_registered_model_it_trains():
    assert example("digits-service").models == ("digits@production",)
    assert example("digits").models == ()
    assert example("digits").summary()["models"] == []


def test_a_copy_is_whole_and_replaces_nothing(tmp_path):
    example("digits").copy_to(tmp_path / "mine")
    assert (tmp_path / "mine" / "train.py").read_text() == (
        example("digits").directory / "train.py"
    ).read_text()
    with pytest.raises(UsageError, match="is there already"):
        example("digits").copy_to(tmp_path / "mine")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"):
        example("digits").copy_to(tmp_path / "file" / "mine")


def test_one_that_is_not_there():
    with pytest.raises(NotFoundError, match="no example 'nothing'"):
        example("nothing")
