"""Labels of recipes and runs: bounded and checked."""

from __future__ import annotations

import pytest

from trainmaster.spec import Recipe
from trainmaster.spec.errors import RecipeError, UsageError
from trainmaster.spec.labels import as_overrides, changed, checked_note, parsed_changes
from trainmaster.spec.recipe import read_recipe

RECIPE = "labels: {project: x, cost-centre: 7, ok: true}\nexperiments: {main: {command: 'true'}}\n"


def test_they_are_texts_as_they_are_written():
    assert Recipe.from_text(RECIPE).labels == {"project": "x", "cost-centre": "7", "ok": "true"}


def test_all_that_is_wrong_is_told_where_it_stands():
    wrong = RECIPE.replace("x,", "[1],").replace("ok:", "o k:").replace("7", "'" + "7" * 300 + "'")
    with pytest.raises(RecipeError) as refused:
        Recipe.from_text(wrong)
    assert "labels.project" in str(refused.value)
    wrong = wrong.replace("[1]", "x")
    with pytest.raises(RecipeError) as refused:
        Recipe.from_text(wrong)
    assert [mistake.key_path for mistake in refused.value.mistakes] == ["labels.cost-centre", "labels.o k"]
    many = "".join(f"  l{number}: x\n" for number in range(65))
    with pytest.raises(RecipeError, match="65 labels; a run has at most 64"):
        Recipe.from_text(f"labels:\n{many}experiments: {{main: {{command: 'true'}}}}\n")


def test_those_of_the_command_line_come_on_top(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text(RECIPE)
    found = read_recipe(file, overrides=as_overrides(["project=a b=c", "team/x=1", "ok-"]))
    assert found.labels == {"project": "a b=c", "cost-centre": "7", "team/x": "1"}
    assert Recipe.from_text(found.as_yaml()).labels == found.labels


@pytest.mark.parametrize(
    "wrong", ["project", "=x", "a b=x", "a.b=1", "a=x\ny", f"a={'x' * 257}", "1=2", "a--"]
)
def test_what_is_no_label_is_refused(wrong):
    with pytest.raises(UsageError):
        parsed_changes([wrong])


def test_there_are_not_too_many():
    with pytest.raises(UsageError, match="65; a run has at most 64"):
        changed({f"l{number}": "" for number in range(64)}, {"one": "more"})
    with pytest.raises(UsageError, match="a note of 4001 characters"):
        checked_note("x" * 4001)
