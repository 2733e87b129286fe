"""The examples that come with Trainmaster: recipes with their code, ready to be run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainmaster.spec.errors import NotFoundError

#: In an installed package beside the code, in a working copy of the project above it.
_PACKAGE: Final = Path(__file__).parents[1]
_PLACES: Final = (_PACKAGE / "examples", _PACKAGE.parents[1] / "examples")


@dataclass(frozen=True, slots=True)
class Example:
    """One of them.

    Attributes:
        name: its directory's.
        title: of its README.
        about: the README's first paragraph.
        recipe: YAML.
        directory: with its code.
    """

    name: str
    title: str
    about: str
    recipe: str
    directory: Path


def examples() -> list[Example]:
    """All of them, by name; none if the package was built without."""
    root = next((place for place in _PLACES if place.is_dir()), None)
    if root is None:
        return []
    return [_example(path.parent) for path in sorted(root.glob("*/recipe.yaml"))]


def example(name: str) -> Example:
    """The one with a name.

    Raises:
        NotFoundError: there is none.
    """
    for found in examples():
        if found.name == name:
            return found
    raise NotFoundError(f"there is no example {name!r}", "The page Examples lists them.")


def _example(directory: Path) -> Example:
    readme = (directory / "README.md").read_text(encoding="utf-8")
    title, _, rest = readme.partition("\n")
    about = next((part for part in rest.split("\n\n") if part.strip()), "").replace("`", "")
    recipe = (directory / "recipe.yaml").read_text(encoding="utf-8")
    return Example(
        directory.name, title.removeprefix("#").strip(), " ".join(about.split()), recipe, directory
    )
