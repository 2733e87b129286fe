"""Recipes of many experiments cost what their lines do."""

import pytest

from trainmaster.spec import Recipe, reading
from trainmaster.spec.errors import RecipeError


def test_many_mistakes_of_a_kind_are_found_without_looking_for_each_among_all(monkeypatch):
    looked = []
    monkeypatch.setattr(reading, "nearest", lambda word, known: looked.append(word))
    lines = "".join(f"  e{at}: {{command: a, after: f{at}}}\n" for at in range(500))
    with pytest.raises(RecipeError) as caught:
        Recipe.from_text(f"experiments:\n{lines}")
    assert len(caught.value.mistakes) == 500
    assert len(looked) == 50
    assert caught.value.mistakes[0].message.endswith("e49, e50 and 449 more")
    assert caught.value.mistakes[-1].message == "unknown experiment 'f499'; write one that is known"


def test_variables_of_all_experiments_are_there_once():
    lines = "".join(f"  e{at}: {{command: a}}\n" for at in range(3))
    recipe = Recipe.from_text(f"env: {{A: 1}}\nsecrets: [S]\ndata: {{d: {{dir: .}}}}\nexperiments:\n{lines}")
    first, *others = recipe.experiments.values()
    assert all(each.env is first.env and each.data is first.data for each in others)
