"""``trainmaster init``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from trainmaster.cli.output import print_json, say, show
from trainmaster.spec.errors import UsageError, fails_as

#: Beside the recipe; an editor shows by it what keys mean.
_SCHEMA = ".recipe.schema.json"


def init(
    script: Annotated[
        str | None, typer.Argument(help="That trains; without it one is looked for in this directory.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="What is written, if it is not there.")
    ] = Path("recipe.yaml"),
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Run the script with --help if only that shows its options."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Write a first recipe by looking at this directory; say what was not found."""
    import json
    from dataclasses import asdict

    from trainmaster.service.first_recipe import first_recipe
    from trainmaster.spec import read_recipe
    from trainmaster.spec.schema import EDITOR_LINE, recipe_schema

    if output.exists():
        raise UsageError(f"{output} is there already", "`--output FILE` writes another one.")
    found = first_recipe(Path.cwd(), script, may_run=yes)
    beside = output.parent / _SCHEMA
    text = f"{EDITOR_LINE}{_SCHEMA}\n{found.recipe}"
    with fails_as(str(output), "Name another file with --output."):
        with output.open("x", encoding="utf-8") as written:  # whoever else writes it now keeps it
            written.write(text)
        if not beside.exists():
            beside.write_text(json.dumps(recipe_schema(), ensure_ascii=False) + "\n", encoding="utf-8")
    read_recipe(output)
    if as_json:
        print_json({**asdict(found), "file": str(output)})
        return
    show(found.recipe.rstrip())
    if found.others:
        say(f"note: it could also be {', '.join(found.others[:5])}: `trainmaster init SCRIPT`")
    for note in found.notes:
        say(f"note: {note}")
    if found.metrics:
        say(f"note: what it prints is read as {', '.join(found.metrics[:8])}")
    word = shlex.quote(str(output))
    say(f"{output} is written; `trainmaster check {word}` looks at it, `trainmaster run {word}` runs it")
