"""The examples that come with Trainmaster: recipes with their code, ready to be run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.spec import Recipe
from trainmaster.spec.errors import NotFoundError, UsageError

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
        models: what it trains gets these names in the registry, as ``NAME@ALIAS``.
        directory: with its code.
    """

    name: str
    title: str
    about: str
    recipe: str
    models: tuple[str, ...]
    directory: Path

    def summary(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "example": self.name,
            "title": self.title,
            "about": self.about,
            "models": list(self.models),
            "directory": str(self.directory),
        }

    def copy_to(self, directory: Path) -> None:
        """Make a copy that can be changed.

        Args:
            directory: to be made.

        Raises:
            UsageError: it is there already, or cannot be made.
        """
        try:
            shutil.copytree(self.directory, directory, ignore=shutil.ignore_patterns("__pycache__"))
        except FileExistsError:
            raise UsageError(f"{directory} is there already", "Name another directory.") from None
        except OSError as error:
            raise UsageError(f"{directory} cannot be made: {error.strerror}", "Name another one.") from None


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
    raise NotFoundError(f"there is no example {name!r}", "`trainmaster examples` lists them.")


def _example(directory: Path) -> Example:
    readme = (directory / "README.md").read_text(encoding="utf-8")
    title, _, rest = readme.partition("\n")
    about = next((part for part in rest.split("\n\n") if part.strip()), "").replace("`", "")
    recipe = (directory / "recipe.yaml").read_text(encoding="utf-8")
    promoted = [each.promote for each in Recipe.from_text(recipe).experiments.values() if each.promote]
    return Example(
        directory.name,
        title.removeprefix("#").strip(),
        " ".join(about.split()),
        recipe,
        tuple(promoted),
        directory,
    )
