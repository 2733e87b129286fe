"""Names of runs: drawn by chance, and claimed on the object store that their artifacts will be on."""

from __future__ import annotations

import secrets
import socket
from typing import TYPE_CHECKING, Final

from trainmaster.artifacts.owner import Owner, claim
from trainmaster.spec.errors import PublishError, UsageError, fails_as
from trainmaster.spec.processes import this_user

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.control.task.layout import Home
    from trainmaster.db import Database

#: 40 random bits: of a thousand runs of one name, two have drawn the same once in two million times.
_ID_BYTES: Final = 5
_DRAWS: Final = 100


def claim_name(home: Home, database: Database, name: str, now: float) -> Owner:
    """Draw an id that no run has, in a home, its database or its object store, and take it.

    That shows too that the object store can be written: a model that cannot be kept is not worth training.

    Args:
        home: of the run.
        database: the database.
        name: of the recipe.
        now: in seconds since 1970.

    Raises:
        UsageError: the object store cannot be written.
    """
    home_id, who = home.identity(), {"host": socket.gethostname(), "user": this_user()}
    with fails_as("TRAINMASTER_STORE", on=PublishError):
        for _ in range(_DRAWS):
            run = f"{name}-{secrets.token_hex(_ID_BYTES)}"
            if home.run_directory(run).exists() or database.has_run(run):
                continue  # homes that share a database share the names too
            owner = Owner(run, home_id, now)
            if claim(home.store_url, owner, who):
                return owner
    raise UsageError(
        f"TRAINMASTER_STORE: {_DRAWS} ids in a row were those of other runs",
        "Give the recipe another name, or set another TRAINMASTER_STORE.",
    )


def owner_of(row: RowMapping, home: Home) -> Owner:
    """What the artifacts of a run say of whose they are.

    Args:
        row: of the run, in the database.
        home: that it is driven from; of runs of early versions it is the only one known.
    """
    return Owner(row["id"], row["home_id"] or home.identity(), row["created_at"])
