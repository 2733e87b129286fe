"""Schemas: every released one comes forward, and the migrations end where the tables are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from database_nouns import NOW, ended, new_run, opened, planned

from trainmaster.db import (
    ActualOutcome,
    ClusterRow,
    Database,
    NewMeasurement,
    NewQuoteRow,
    RunChange,
    migrations,
    queries,
    tables,
)
from trainmaster.db.engine import SCHEMA_REVISION, make_engine
from trainmaster.db.migrations import alembic_config, upgrade
from trainmaster.spec import Recipe
from trainmaster.spec.states import EndReason, State

#: What `Database` had written in each released version, as `sqlite3 .dump` and `pg_dump --inserts` tell it.
RELEASED = Path(__file__).parent / "released"


def differences(engine: sa.Engine) -> list[object]:
    with engine.connect() as connection:
        return compare_metadata(MigrationContext.configure(connection), tables.metadata)


def test_a_new_database_is_what_the_tables_say(database):
    assert differences(database.engine) == []


def test_the_newest_revision_is_that_of_the_tables():
    scripts = ScriptDirectory.from_config(alembic_config())
    assert (scripts.get_base(), scripts.get_heads()) == (migrations.FIRST_REVISION, [SCHEMA_REVISION])


def test_every_revision_has_its_dumps():
    revisions = {script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()}
    for engine_name in ("sqlite", "postgresql"):
        assert {path.name.partition(".")[0] for path in RELEASED.glob(f"*.{engine_name}.sql")} == revisions


@pytest.mark.parametrize("revision", sorted({path.name.partition(".")[0] for path in RELEASED.glob("*.sql")}))
def test_what_an_older_version_wrote_is_read_and_gone_on_with(revision, engine_name, url):
    load(url, (RELEASED / f"{revision}.{engine_name}.sql").read_text())
    database = Database(url)
    assert differences(database.engine) == []
    assert database.run_row("r-1")["state"] == "RUNNING"
    assert [(row["number"], row["state"]) for row in database.live_task_rows("r-1")] == [(1, "ACQUIRING")]
    assert {row["reason"]: row["tasks"] for row in database.tallies("r-1")} == {None: 1, "SUCCEEDED": 1}
    (model,) = queries.models(database, "r-1")
    assert (model["uri"], json.loads(model["metrics"])) == ("file:///store/m", {"loss": 0.5})
    assert [(m["experiment"], m["data"], m["run_id"]) for m in database.measurements("f")] == [
        ("a", '{"duration_s": 5}', "r-1")
    ]
    assert [(q["kind"], q["time_s"], q["kept"]) for q in database.quotes_of("r-1")] == [
        ("estimate", 6.0, True),
        ("binding", None, None),
    ]
    assert [(c["id"], c["state"], c["data"], c["waited_s"]) for c in database.clusters_of("r-1")] == [
        ("r-1.a", "ACTIVE", '{"asked": 1}', 9.5)
    ]
    lease = database.acquire("r-1", NOW + 1000)
    database.requeue(lease, NOW + 1000)
    database.commit(lease, [planned(2)], NOW + 1000)
    assert len(queries.events(database, "r-1")) == 9
    database.close()


NEXT = f"""
import sqlalchemy as sa
from alembic import op
revision, down_revision = "next", "{SCHEMA_REVISION}"
def upgrade():
    op.add_column("run", sa.Column("made_up", sa.Text()))
    op.execute("UPDATE run SET made_up = id")
"""


def test_two_processes_that_migrate_at_once_do_it_once(engine_name, url, tmp_path, monkeypatch):
    (tmp_path / "next.py").write_text(NEXT)
    config = alembic_config()
    versions = f"{Path(migrations.__file__).parent / 'versions'} {tmp_path}"
    config.set_main_option("version_locations", versions)
    config.set_main_option("path_separator", "space")
    monkeypatch.setattr(migrations, "alembic_config", lambda: config)
    load(url, (RELEASED / f"{SCHEMA_REVISION}.{engine_name}.sql").read_text())
    engine = make_engine(url)
    upgrade(engine, SCHEMA_REVISION, "next", "a test")
    upgrade(engine, SCHEMA_REVISION, "next", "a test")  # it was older when this one looked
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT made_up FROM run").scalars().all() == ["r-1"]
    engine.dispose()


def load(url: str, dump: str) -> None:
    engine = make_engine(url)
    with engine.begin() as connection:
        raw = connection.connection.driver_connection
        raw.executescript(dump) if engine.dialect.name == "sqlite" else raw.execute(dump)
    engine.dispose()


def write_examples(database: Database) -> None:
    """What the dumps in `RELEASED` hold; called when a revision is released: docs/development/database.md."""
    lease = database.create_run(new_run(), NOW)
    database.commit(lease, [RunChange(State.WAITING, State.RUNNING), planned(0), opened(0), planned(1)], NOW)
    done = ended(0, EndReason.SUCCEEDED)
    database.commit(lease, [opened(1), done], NOW)
    with database.engine.begin() as connection:
        connection.execute(
            tables.task.update()
            .where(tables.task.c.number == 0)
            .values(model_uri="file:///store/m", metrics='{"loss":0.5}')
        )
    database.add_measurement(NewMeasurement("r-1/a/0/1", "f", "s", "a", "r-1", '{"duration_s": 5}', NOW))
    quote = database.add_quote(NewQuoteRow("r-1", None, "estimate", NOW, '{"p95": 7}'))
    database.record_outcome(quote, ActualOutcome(6.0, 0.0, True))
    database.add_quote(NewQuoteRow("r-1", "a", "binding", NOW + 1, "{}"))
    database.put_cluster(lease, ClusterRow("r-1.a", "lab", "h", "ACTIVE", '{"asked": 1}', waited_s=9.5), NOW)
    database.release(lease, NOW + 9)
    with database.engine.begin() as connection:
        for table in tables.metadata.sorted_tables:
            fill(connection, table)


def fill(connection: sa.Connection, table: sa.Table) -> None:
    """A row in a table that has none: migrations that come have to carry rows of all tables over."""
    if connection.execute(table.select().limit(1)).first() is not None:
        return
    row: dict[str, object] = {}
    for column in table.columns:
        python = column.type.python_type
        if column.foreign_keys:
            row[column.name] = connection.scalar(sa.select(next(iter(column.foreign_keys)).column).limit(1))
        elif python is not int or not column.primary_key:  # numbers of rows come by themselves
            row[column.name] = {str: "{}", bytes: b"{}", bool: True}.get(python, python(1))
        elif len(table.primary_key) > 1:
            row[column.name] = 1
    connection.execute(table.insert().values(row))


def recipe_keys():
    """What a row has of a recipe: an older version reads none with a key that it does not know."""
    schema = Recipe.model_json_schema()
    parts = {"Recipe": schema, **schema["$defs"]}
    return {f"{name}.{key}" for name, part in parts.items() for key in part.get("properties", {})}


def test_a_new_key_of_recipes_comes_with_a_new_revision():
    """An older version on the home of a newer one fails once, in one sentence, and not with each run."""
    known = RELEASED / f"{SCHEMA_REVISION}.recipe.txt"
    new = recipe_keys() - set(known.read_text().split()) if known.exists() else set()
    assert not new, "add a revision, which may change nothing"
