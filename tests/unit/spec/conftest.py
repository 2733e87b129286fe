from collections.abc import Callable
from pathlib import Path

import pytest

from trainmaster.spec import Recipe, read_recipe
from trainmaster.spec.errors import RecipeError


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Recipe]:
    """Reads a recipe from its text."""

    def reader(text: str | bytes, **options) -> Recipe:
        path = tmp_path / "recipe.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_recipe(path, **options)

    return reader


@pytest.fixture
def mistakes(read, tmp_path: Path) -> Callable[..., list[str]]:
    """Reads a recipe that is wrong; its messages, without the directory."""

    def reader(text: str | bytes, **options) -> list[str]:
        with pytest.raises(RecipeError) as caught:
            read(text, **options)
        assert caught.value.exit_code == 2
        return str(caught.value).replace(f"{tmp_path}/", "").split("\n")

    return reader
