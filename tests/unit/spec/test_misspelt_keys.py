"""Every key of every part of a recipe with a letter that is wrong: the message names place, word and key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainmaster.spec import read_recipe
from trainmaster.spec.errors import RecipeError
from trainmaster.spec.node import compose
from trainmaster.spec.reading import Noun, Problems, ReportedMistake, keys_of, read_noun

RECIPE_PAGE = Path(__file__).parents[3] / "docs" / "recipe.md"


def parts(noun: type[Noun] = Noun) -> list[type[Noun]]:
    """All parts that a recipe may have."""
    below = [each for kind in noun.__subclasses__() for each in (kind, *parts(kind))]
    return list(dict.fromkeys(below))


def documented(heading: str) -> list[str]:
    """Keys in the first column of the table below a heading."""
    table = RECIPE_PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [key for row in re.findall(r"(?m)^\| (`.*?) \|", table) for key in re.findall(r"`(\w+)`", row)]


def misspelt(word: str) -> set[str]:
    """A letter too much, one that is missing, two that changed places."""
    at = len(word) // 2
    return {
        word[: at + 1] + word[at:],
        word[:at] + word[at + 1 :],
        word[: at - 1] + word[at] + word[at - 1] + word[at + 1 :],
    }


@pytest.mark.parametrize("noun", parts(), ids=lambda noun: noun.__name__)
def test_a_misspelt_key_is_named_with_its_place_and_the_key_that_was_meant(noun):
    known = [key.name for _, key in keys_of(noun)] + [name for name, _ in noun.hoisted]
    unclear = []
    for key in (each for each in known if len(each) > 2):
        for word in misspelt(key) - set(known):
            problems = Problems()
            with pytest.raises(ReportedMistake):
                read_noun(noun, compose(f"x-mine: 1\n{word}: 1\n", "r.yaml"), ("part",), problems)
            found = [(each.line, each.column, each.message) for each in problems.mistakes]
            if (2, 1, f"unknown key '{word}'; did you mean '{key}'?") not in found:
                unclear.append((key, found))
    assert unclear == []


@pytest.mark.parametrize("heading", ["For the whole recipe", "For an experiment"])
def test_every_documented_key(heading, tmp_path):
    keys = documented(heading)
    assert len(keys) > 18
    indent = "" if heading == "For the whole recipe" else "    "
    path = tmp_path / "recipe.yaml"
    for key in keys:
        word = key[:-2] + key[-1] + key[-2]
        path.write_text(f"experiments:\n  train:\n    command: ls\n{indent}{word}: 1\n")
        with pytest.raises(RecipeError) as caught:
            read_recipe(path)
        where = f"recipe.yaml:4:{len(indent) + 1}: {'experiments.train.' if indent else ''}{word}: "
        assert f"{where}unknown key '{word}'; did you mean '{key}'?" in str(caught.value)
