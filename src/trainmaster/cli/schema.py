"""``trainmaster schema``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmaster.cli.output import print_json, say, show
from trainmaster.spec.errors import fails_as


def schema(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there instead.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="On one line.")] = False,
) -> None:
    """Print the JSON Schema of recipes, for editors and other programs."""
    import json

    from trainmaster.spec.schema import EDITOR_LINE, recipe_schema

    found = recipe_schema()
    if as_json and output is None:
        print_json(found)
        return
    text = json.dumps(found, indent=2, ensure_ascii=False)
    if output is None:
        show(text)
        return
    with fails_as(str(output), "Name another file."):
        output.write_text(text + "\n", encoding="utf-8")
    say(
        f"{output} is written; an editor uses it for a recipe beside it that begins with\n"
        f"{EDITOR_LINE}{output.name}"
    )
