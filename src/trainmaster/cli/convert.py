"""``trainmaster convert``."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from trainmaster.cli.output import print_json, say, show
from trainmaster.spec.errors import fails_as


def convert(
    document: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="sbatch, SkyPilot, dstack, docker-compose, RADL or TOSCA; or a line of torchrun, in quotes.",
        ),
    ],
    recipe: Annotated[
        Path | None,
        typer.Argument(metavar="[RECIPE]", help="The file to be made; without it, it is printed."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was made as JSON.")] = False,
) -> None:
    """Make a recipe of a file of another tool; what was dropped or is to be decided is a comment in it."""
    from trainmaster.service.conversion.converting import conversion_of_file

    made = conversion_of_file(document)
    if recipe is not None:
        _write(recipe, made.recipe)
        count = f"{len(made.decisions)} to decide, {len(made.dropped)} dropped"
        say(f"{recipe}: read its comments ({count}), then `trainmaster check {shlex.quote(str(recipe))}`")
    if as_json:
        print_json(asdict(made))
    elif recipe is None:
        show(made.recipe.rstrip("\n"))


def _write(path: Path, text: str) -> None:
    """Make the file of a recipe.

    Raises:
        UsageError: there is one already, or it cannot be made.
    """
    hint = "Give another path, or remove what is there."
    with fails_as(f"{path} cannot be made", hint), path.open("x", encoding="utf-8") as file:
        file.write(text)
