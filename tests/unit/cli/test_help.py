"""Every verb says in its help, and docs/cli.md says, what it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.text import Text

from command_line import invoke, whole_command

DOCS = Path(__file__).parents[3] / "docs"


def verbs(command, name=""):
    if found := getattr(command, "commands", None):
        for each, of in found.items():
            if not of.hidden:
                yield from verbs(of, f"{name} {each}".strip())
    elif name:
        yield name, command


VERBS = dict(verbs(whole_command()))


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_names_all_that_it_takes(verb):
    command = VERBS[verb]
    assert command.help
    for parameter in command.params:
        assert parameter.help, f"{verb} {parameter.name}"


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_is_shown_whole(verb):
    """Typer reads help as markup of Rich, to which `[/NAME]` is a tag that ends nothing: an exception."""
    shown = invoke(*verb.split(), "--help")
    assert shown.exit_code == 0, shown.exception
    for parameter in VERBS[verb].params:
        assert Text.from_markup(parameter.help).plain == parameter.help, parameter.name


@pytest.mark.parametrize("verb", VERBS)
def test_its_documentation_names_all_its_options(verb):
    text = "".join(path.read_text() for path in DOCS.rglob("*.md"))
    for parameter in VERBS[verb].params:
        if parameter.param_type_name == "option":
            assert any(name in text for name in parameter.opts), f"{verb} {parameter.opts}"
