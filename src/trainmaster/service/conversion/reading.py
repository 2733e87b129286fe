"""The document that is converted, and the recipe that is made of it, as files."""

from __future__ import annotations

from pathlib import Path

from trainmaster.spec.errors import UsageError
from trainmaster.spec.node import MAX_RECIPE_BYTES


def read_document(path: Path) -> str:
    """The text of a document.

    Raises:
        UsageError: it cannot be read.
    """
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


def write_recipe(path: Path, text: str) -> None:
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
