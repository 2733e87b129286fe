"""What an image of a machine can hold: the hashes of what `setup` and `container` put on it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from trainmaster.control.checks.preflight import check_parts
from trainmaster.control.task.environment_hashes import environment_hashes
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError

CONTENT = {"setup": "pip install -r needs.txt", "command": "python train.py"}


def of(directory: Path, team: str = "", **keys: object) -> tuple[str, ...]:
    train = {key: value for key, value in {**CONTENT, **keys}.items() if value is not None}
    content = {"name": "r", "provider": "lab", "experiments": {"train": train}}
    recipe = Recipe.from_dict(content, directory=directory)
    return environment_hashes(recipe.experiments.values(), directory, team)


def test_whatever_changes_what_is_on_a_machine_makes_it_another_one(tmp_path: Path) -> None:
    (tmp_path / "needs.txt").write_text("numpy==2.0")
    first = of(tmp_path)
    assert len(first) == 1
    assert of(tmp_path, command="python eval.py", hardware={"instance": "m4.large"}) == first, "that is not"
    others = [of(tmp_path, setup="pip install -r needs.txt --pre"), of(tmp_path, team="biology")]
    others.append(of(tmp_path, container="pytorch/pytorch:2.8.0"))
    (tmp_path / "needs.txt").write_text("numpy==2.1")
    others.append(of(tmp_path))
    for one, other in itertools.combinations([first, *others], 2):
        assert set(one).isdisjoint(other)
    assert len(others[2]) == 2, "the setup in the container, and its image"
    assert of(tmp_path, setup=None) == ()


def test_experiments_that_need_the_same_need_it_once(tmp_path: Path) -> None:
    experiments = {"train": CONTENT, "again": CONTENT, "other": {**CONTENT, "setup": "true"}}
    recipe = Recipe.from_dict({"name": "r", "experiments": experiments}, directory=tmp_path)
    assert len(environment_hashes(recipe.experiments.values(), tmp_path)) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"provider": "hosts"}, "its machines stay"),
        ({"provider": "im"}, "makes no images"),
        ({"data": {"d": {"url": "https://example.org/d"}}}, "data: an image is made"),
        ({"experiments": {"train": {"command": "true"}}}, "nothing to put into an image"),
    ],
)
def test_images_of_what_cannot_be_in_one_are_refused(changes: dict[str, object], words: str) -> None:
    content = {"name": "r", "provider": "lab", "bake": True, "experiments": {"train": CONTENT}}
    check_parts(Recipe.from_dict(content))
    with pytest.raises(UsageError, match=words):
        check_parts(Recipe.from_dict({**content, **changes}))
