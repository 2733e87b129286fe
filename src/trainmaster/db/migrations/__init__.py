"""Schema migrations (Alembic), forward only. New databases are created at the newest revision."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from trainmaster.spec.errors import StoreError

if TYPE_CHECKING:
    from alembic.config import Config


#: The baseline. What builds before the first release wrote has a smaller number.
FIRST_REVISION: Final = "0011"
# Any number will do, if it is always the same: what holds it may create or change the schema.
_SCHEMA_LOCK = 7_261_001


def lock_schema(connection: Connection) -> None:
    """Wait until no other process creates or migrates the tables, to the end of the transaction."""
    if connection.dialect.name != "sqlite":  # there, writers have the lock since they began
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_SCHEMA_LOCK)))


def upgrade(engine: Engine, found: str, wanted: str, shown_url: str) -> None:
    """Bring a database from revision ``found`` to ``wanted``.

    Raises:
        StoreError: a newer Trainmaster wrote it, or a build before the first release.
    """
    from alembic import command
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError

    config = alembic_config()
    if found < FIRST_REVISION:
        raise StoreError(
            f"the database {shown_url} has schema {found}, of a build before 0.2.0: it cannot be upgraded",
            "Move the home away, or name a new one in TRAINMASTER_HOME (another database in "
            "TRAINMASTER_DATABASE). The build that wrote it can go on with it.",
        )
    try:
        ScriptDirectory.from_config(config).get_revision(found)
    except CommandError as error:
        raise StoreError(
            f"the database {shown_url} has schema {found}, this Trainmaster knows up to {wanted}",
            "A newer Trainmaster wrote it: update this one (pip install -U trainmaster).",
        ) from error
    with engine.begin() as connection:
        lock_schema(connection)  # the second one finds it done: Alembic looks at the revision itself
        config.attributes["connection"] = connection
        command.upgrade(config, wanted)


def alembic_config() -> Config:
    """Where the revisions are."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config
