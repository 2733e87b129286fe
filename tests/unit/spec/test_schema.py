"""The JSON Schema and the reader agree on recipes: those of the house, and those with a change."""

from __future__ import annotations

import ast
import copy
import random
import re
from functools import cache
from pathlib import Path

import pytest
from ruamel.yaml import YAML, YAMLError

from trainmaster.spec import Recipe
from trainmaster.spec.errors import RecipeError
from trainmaster.spec.schema import recipe_schema

jsonschema = pytest.importorskip("jsonschema")
ROOT = Path(__file__).resolve().parents[3]
WANTED = 300
#: What a schema cannot say, by the words of the reader; docs/configuration.md lists it.
ONLY_THE_READER = {
    "what `{{name}}` means": r"\{\{",
    "names of experiments": r"unknown experiment|a cycle|no member of this experiment",
    "keys that need or exclude each other": r"`?\w+`? without|together|leave (it|one) out|samples|has an end",
    "numbers that follow from others": r"tasks; add|be shared|is more than|a step of|(reversed|empty) r",
    "`samples` among the parameters": r"write a whole number",
    "numbers where a name stands": r"the number -?[\d.]+; write |is no time zone",
    "bounds of a target and their sense": r"no bound of the metric|is better is not known",
    "lists and mappings that need an entry": r"no role; write|an empty list; write ",
    "numbers that a strategy or scale rules out": r"with a ps strategy|log sampling from|not two weights",
    "images of this house": r"no image is known|there is no `framework` to choose it by",
}
_EXCEPTIONS = re.compile("|".join(ONLY_THE_READER.values()))
_STRANGE = (None, True, -1, 0, 1.5, "", "x y", "auto", [], ["a", "b"], {}, {"nosuch": 1}, [1, 1], "$", "3q")


@cache
def texts() -> tuple[str, ...]:
    """Recipes of examples, docs and tests, each once."""
    found: dict[str, None] = {}
    for path in sorted((ROOT / "src/trainmaster").rglob("recipe*.yaml")) + sorted(
        (ROOT / "examples").rglob("*.yaml")
    ):
        found[path.read_text()] = None
    for page in sorted(ROOT.glob("docs/**/*.md")):
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            if "experiments:" in block:
                found[block] = None
            elif re.search(r"^command:", block, re.MULTILINE):
                found["experiments:\n  main:\n" + re.sub(r"^(?=.)", "    ", block, flags=re.MULTILINE)] = None
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        source = file.read_text()
        if "experiments" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and "experiments:" in node.value
            ):
                found[node.value] = None
    return tuple(found)


def instance(text):
    """What an editor sees; None of what is no YAML, or no recipe by itself."""
    if "include:" in text or "env_file:" in text or len(text) > 20_000:
        return None
    try:
        found = plain(YAML(typ="safe").load(text))
    except (YAMLError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and "experiments" in found else None


def plain(value):
    """As JSON has it: keys are texts, and so are days."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def mistakes(content):
    try:
        if isinstance(content, str):
            Recipe.from_text(content, directory=ROOT)
        else:
            Recipe.from_dict(content, directory=ROOT)
    except RecipeError as error:
        return [each.message for each in error.mistakes]
    return []


def changed(content, rng):
    """A recipe with one change, somewhere."""
    whole = copy.deepcopy(content)
    places = []

    def walk(value):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            if isinstance(value[key], dict | list):
                walk(value[key])

    walk(whole)
    above, key = rng.choice(places)
    how = rng.randrange(4)
    if how == 0 and isinstance(above, dict):
        above[f"{key}q"] = above.pop(key)
    elif how == 1 and isinstance(above, dict):
        del above[key]
    elif how == 2:
        above[key] = [copy.deepcopy(above[key])]
    else:
        above[key] = rng.choice(_STRANGE)
    return whole


@cache
def verdicts():
    """Of each recipe: what it is, the reader's mistakes, the schema's."""
    validator = jsonschema.Draft202012Validator(recipe_schema())
    known = [(text, found) for text in texts() if (found := instance(text)) is not None]
    rng = random.Random(7)
    good = [found for text, found in known if not mistakes(text)]
    recipes = [(text, found) for text, found in known]
    recipes += [(each, each) for each in (changed(rng.choice(good), rng) for _ in range(400))]
    return [
        (read, mistakes(read), [str(each.message) for each in validator.iter_errors(found)])
        for read, found in recipes
    ]


def test_there_are_enough_of_both_kinds():
    found = verdicts()
    assert len(found) >= WANTED
    assert sum(not wrong for _, wrong, _ in found) >= 100
    assert sum(bool(wrong) for _, wrong, _ in found) >= 100


def test_what_the_reader_takes_the_schema_takes():
    assert [(read, told) for read, wrong, told in verdicts() if not wrong and told] == []


def test_what_only_the_reader_refuses_is_listed():
    unseen = [(read, wrong) for read, wrong, told in verdicts() if wrong and not told]
    assert [each for each in unseen if not any(map(_EXCEPTIONS.search, each[1]))] == []
    assert len(unseen) < len([1 for _, wrong, _ in verdicts() if wrong]) / 2
