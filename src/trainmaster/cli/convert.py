"""``trainmaster convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmaster.cli.output import say, show
from trainmaster.spec.errors import UsageError


def convert(
    document: Annotated[Path, typer.Argument(help="RADL (.radl), or TOSCA's simple profile (.yaml, .yml).")],
    recipe: Annotated[
        Path | None,
        typer.Argument(metavar="[RECIPE]", help="The file to be made; without it, it is printed."),
    ] = None,
) -> None:
    """Make a recipe of a document of Infrastructure Manager; what was dropped stands in it as comments."""
    from trainmaster.service.conversion.converting import convert as converted

    text = converted(_read(document), str(document))
    if recipe is None:
        show(text.rstrip("\n"))
        return
    _write(recipe, text)
    say(f"{recipe}: write its `command`, then `trainmaster check {recipe}`")


def _read(path: Path) -> str:
    """The text of a document.

    Raises:
        UsageError: it cannot be read.
    """
    from trainmaster.spec.node import MAX_RECIPE_BYTES

    try:
        content = path.read_bytes()
        if len(content) > MAX_RECIPE_BYTES:
            raise UsageError(
                f"{path}: {len(content):,} bytes; such documents are smaller", "Is it the right file?"
            )
        return content.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "Give the path of the document.") from error
    except UnicodeDecodeError:
        raise UsageError(f"{path}: this is no text in UTF-8", "Give the path of the document.") from None


def _write(path: Path, text: str) -> None:
    """Make the file of a recipe.

    Raises:
        UsageError: there is one already, or it cannot be made.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} is there already", "Give another name, or remove it.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be made: {error.strerror}", "Give another path.") from error
