"""Schema migrations (Alembic), forward only. New databases are created at the newest revision."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import Engine

from trainmaster.spec.errors import StoreError


def upgrade(engine: Engine, found: str, wanted: str, shown_url: str) -> None:
    """Bring a database from revision ``found`` to ``wanted``.

    Raises:
        StoreError: ``found`` is not known here, so a newer Trainmaster wrote it.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    try:
        ScriptDirectory.from_config(config).get_revision(found)
    except CommandError as error:
        raise StoreError(
            f"the database {shown_url} has schema {found}, this Trainmaster knows up to {wanted}",
            "A newer Trainmaster wrote it: update this one (pip install -U trainmaster).",
        ) from error
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, wanted)
