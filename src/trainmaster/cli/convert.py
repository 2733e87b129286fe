"""``trainmaster convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmaster.cli.output import say, show


def convert(
    document: Annotated[Path, typer.Argument(help="RADL (.radl), or TOSCA's simple profile (.yaml, .yml).")],
    recipe: Annotated[
        Path | None,
        typer.Argument(metavar="[RECIPE]", help="The file to be made; without it, it is printed."),
    ] = None,
) -> None:
    """Make a recipe of a document of Infrastructure Manager; what was dropped stands in it as comments."""
    from trainmaster.service.conversion.converting import convert as converted
    from trainmaster.service.conversion.reading import read_document, write_recipe

    text = converted(read_document(document), str(document))
    if recipe is None:
        show(text.rstrip("\n"))
        return
    write_recipe(recipe, text)
    say(f"{recipe}: write its `command`, then `trainmaster check {recipe}`")
