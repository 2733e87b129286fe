"""What is refused where machines are containers themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmaster.control.checks.preflight import check_names
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError

RECIPE = """
name: boxed
provider: {provider}
experiments:
  train:
    command: "true"
    container: here/image:1
"""


def test_containers_in_pods_are_refused_with_what_to_write(tmp_path: Path) -> None:
    """Before any pod is there."""
    recipe = Recipe.from_text(RECIPE.format(provider="kubernetes"), directory=tmp_path)
    with pytest.raises(UsageError, match=r"train\.container: .*starts no containers; .*kubernetes\.yaml"):
        check_names(recipe)


@pytest.mark.parametrize("provider", ["[hosts, slurm]", "[slurm, kubernetes]"])
def test_where_one_place_can_they_are_not(provider: str, tmp_path: Path) -> None:
    """Slurm's nodes may have an engine; pods are passed over then."""
    check_names(Recipe.from_text(RECIPE.format(provider=provider), directory=tmp_path))
