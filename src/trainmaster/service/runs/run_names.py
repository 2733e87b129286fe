"""Names of runs: drawn by chance, claimed on the store of their artifacts, and as people write them."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainmaster.db import Database, queries
from trainmaster.spec.errors import NotFoundError, PublishError, UsageError, fails_as
from trainmaster.spec.processes import this_user

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.artifacts.owner import Owner
    from trainmaster.control.task.layout import Home

#: 40 random bits: of a thousand runs of one name, two have drawn the same once in two million times.
_ID_BYTES: Final = 5
_DRAWS: Final = 100
#: A run that there is not is looked for among so many, the newest.
_NEAR: Final = 200
#: What the owner of a home has begun there, or sent to its server without an account.
OWN_AT_HOME: Final = (None, "owner")


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
    from trainmaster.artifacts.owner import Owner, claim

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
    from trainmaster.artifacts.owner import Owner

    return Owner(row["id"], row["home_id"] or home.identity(), row["created_at"])


def resolve_run(
    database: Database,
    text: str,
    which: queries.RunFilter = queries.ALL_RUNS,
    own: Sequence[str | None] = OWN_AT_HOME,
) -> str:
    """The id of the run that the user means: by its id, its name, a beginning of its id, or ``latest``.

    Its name is the label ``name``. Several may have one, so that an id means the same run for ever.

    Args:
        database: the database.
        text: what the user has written.
        which: only one of these.
        own: ``latest`` is the newest of those that these have sent; see `Caller.own`.

    Raises:
        NotFoundError: none, or several.
    """
    if queries.is_among(database, text, which):  # to who asks, others are not there
        return text
    if text == "latest":
        if newest := queries.run_ids(database, limit=1, which=replace(which, senders=tuple(own))):
            return newest[0]
        raise NotFoundError(
            "there is no run `latest`: that is the last one that you started, and you started none here",
            "`trainmaster status` lists the runs; name one by its id.",
        )
    from trainmaster.spec.where import Comparison  # most runs are named by their ids

    is_called = replace(which, where=Comparison("label", "name", "=", text, text))
    words, hint = "are called", "Name one by its id; `trainmaster label RUN name=NAME` calls it otherwise."
    found = queries.run_ids(database, limit=5, which=is_called)
    if not found:
        words, hint = "begin with", "Give more of the id."
        found = queries.run_ids(database, text, limit=5, which=which)
    if len(found) == 1:
        return found[0]
    if found:
        raise NotFoundError(f"several runs {words} {text!r}: {', '.join(found)}", hint)
    raise no_run(database, text, which)


def no_run(database: Database, text: str, which: queries.RunFilter = queries.ALL_RUNS) -> NotFoundError:
    """What to raise where no run is meant: with the nearest id or name of those that are asked about."""
    from trainmaster.spec.node import nearest

    rows = queries.runs(database, limit=_NEAR, which=which)
    named = filter(None, (json.loads(row["labels"]).get("name") for row in rows))
    near = nearest(text, [*(row["id"] for row in rows), *named])
    meant = f"; did you mean {near}?" if near else "."
    return NotFoundError(f"there is no run {text!r}", f"`trainmaster status` lists the runs{meant}")
