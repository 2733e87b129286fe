"""What people write on a run: its labels and its note. Values of its secrets are taken out before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from trainmaster.db import run_rows
from trainmaster.db.events import json_column, storable
from trainmaster.executors.telemetry.masking import SecretMask
from trainmaster.spec.errors import UsageError
from trainmaster.spec.labels import changed, check_changes, checked_note

if TYPE_CHECKING:
    from trainmaster.service.open_home import OpenHome


def first_labels(labels: Mapping[str, str], secrets: Mapping[str, Mapping[str, str]]) -> str:
    """Those that a run begins with, as they are stored.

    Args:
        labels: of its recipe.
        secrets: values by experiment and name.

    Raises:
        UsageError: one holds the value of a secret, which would stand in the recipe of the run, too.
    """
    mask = SecretMask(value for each in secrets.values() for value in each.values())
    for key, value in labels.items():
        if mask.text(value) != value:
            raise UsageError(
                f"labels.{key} holds the value of a secret", "Nothing was started. Write another text there."
            )
    return json_column(changed({}, {key: storable(value) for key, value in labels.items()}))


def describe_run(
    opened: OpenHome,
    run: str,
    labels: Mapping[str, str | None],
    note: str | None,
    environ: Mapping[str, str],
) -> None:
    """Change labels of a run (None takes one away), and its note unless that is None.

    Raises:
        NotFoundError: there is no such run.
        UsageError: a key or value is wrong, or there are too many.
    """
    check_changes(labels)
    said = None if note is None else checked_note(note)
    mask = SecretMask(_secret_values(opened, opened.database.run_row(run), environ))
    changes = {key: value if value is None else _without(mask, value) for key, value in labels.items()}
    text = None if said is None else _without(mask, said)
    opened.database.write(
        lambda connection, _: run_rows.describe(connection, run, partial(changed, changes=changes), text)
    )


def _secret_values(opened: OpenHome, row: Mapping[Any, Any], environ: Mapping[str, str]) -> Iterable[str]:
    from trainmaster.service.runs.stored_recipe import stored_recipe

    recipe = stored_recipe(row)
    if not any(each.secrets for each in recipe.experiments.values()):
        return ()
    before = opened.replicas.kept_secrets(row, environ)
    try:
        values = opened.of_team(row["team"]).secrets_of(recipe, {**before, **environ}, before)
    except UsageError:  # one is nowhere (any more): what is known is taken out
        names = {name for each in recipe.experiments.values() for name in each.secrets}
        return [value for name, value in {**environ, **before}.items() if name in names]
    return [value for each in values.values() for value in each.values()]


def _without(mask: SecretMask, text: str) -> str:
    return storable(mask.text(text))
