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
    ClusterRow,
    Database,
    NewMeasurement,
    NewQuoteRow,
    RunChange,
    Truth,
    accounts,
    queries,
    tables,
)
from trainmaster.db.engine import SCHEMA_REVISION
from trainmaster.db.migrations import alembic_config, upgrade
from trainmaster.db.urls import make_engine
from trainmaster.spec.states import EndReason, State

#: What `Database` had written in each released version, as `sqlite3 .dump` and `pg_dump --inserts` tell it.
RELEASED = Path(__file__).parent / "released"


def differences(engine: sa.Engine) -> list[object]:
    with engine.connect() as connection:
        return compare_metadata(MigrationContext.configure(connection), tables.metadata)


def test_a_new_database_is_what_the_tables_say(database):
    assert differences(database.engine) == []


def test_the_migrations_end_where_the_tables_are(engine_name, url):
    assert ScriptDirectory.from_config(alembic_config()).get_heads() == [SCHEMA_REVISION]
    load(url, (RELEASED / f"0001.{engine_name}.sql").read_text())
    engine = make_engine(url)
    upgrade(engine, "0001", SCHEMA_REVISION, "a test")
    assert differences(engine) == []
    engine.dispose()
    database = Database(url)
    assert [row["id"] for row in queries.runs(database)] == ["r-1"]
    database.close()


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
    since_2 = [] if revision == "0001" else [("a", '{"duration_s": 5}', "r-1")]
    assert [(m["experiment"], m["data"], m["run_id"]) for m in database.measurements("f")] == since_2
    assert [(q["kind"], q["time_s"], q["kept"]) for q in database.quotes_of("r-1")] == (
        [] if revision == "0001" else [("estimate", 6.0, True), ("binding", None, None)]
    )
    assert [(c["id"], c["state"], c["data"], c["waited_s"]) for c in database.clusters_of("r-1")] == (
        [] if revision == "0001" else [("r-1.a", "ACTIVE", '{"asked": 1}', 9.5)]
    )
    lease = database.acquire("r-1", NOW + 1000)
    database.requeue(lease, NOW + 1000)
    database.commit(lease, [planned(2)], NOW + 1000)
    assert len(queries.events(database, "r-1")) == 9
    database.close()


def test_what_groups_gave_before_it_had_an_end_ends_after_a_week(engine_name, url):
    load(url, (RELEASED / f"0008.{engine_name}.sql").read_text())
    engine = make_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO team (name, created_at) VALUES ('red', 1)")
        for name, admin_by in (("ann", None), ("bob", "groups"), ("kim", "server"), ("eve", None)):
            values = {"name": name, "admin_by": admin_by}
            insert = (
                "INSERT INTO account (name, kind, admin_by, created_at) VALUES (:name, 'user', :admin_by, 1)"
            )
            connection.execute(sa.text(insert), values)
        member = "INSERT INTO member (team, account, role, by_groups) VALUES ('red', :name, 'member', :by)"
        connection.execute(sa.text(member), [{"name": "ann", "by": True}, {"name": "eve", "by": False}])
    engine.dispose()
    database = Database(url)
    until = {row["name"]: row["groups_until"] for row in accounts.accounts(database, "user")}
    database.close()
    assert (until["kim"], until["eve"]) == (None, None)
    assert until["ann"] == until["bob"] > 7 * 86400  # a week after the update, by whichever clock


def test_notes_of_before_get_the_topic_that_they_begin_with(engine_name, url):
    """From then on nobody looks at their words."""
    load(url, (RELEASED / f"0010.{engine_name}.sql").read_text())
    told = [
        ("run", "RUNNING", None, "", "run.started"),
        ("run", "DONE", "SUCCEEDED", "quote: no note", "run.ended"),
        ("run", "STOPPING", None, "", None),
        ("task", "DONE", "SUCCEEDED", "budget: no note", None),
        ("note", None, "NODE_LOST", "worker-1 is lost", "run.node_lost"),
        ("note", None, None, "quote: 2m to 3m; it is kept if the run ends within 3m", "quote.bound"),
        ("note", None, None, "it will take longer than quoted: 4m", "quote.in_danger"),
        ("note", None, None, "it will be tried again", None),
        ("note", None, None, "promoted: a@b is version 2, r-1/a/0", "model.promoted"),
        ("note", None, None, "nothing becomes a@b: it left no model", "model.not_promoted"),
        (
            "note",
            None,
            None,
            "a@b was moved for this run before: version 2 stays as it is",
            "model.not_promoted",
        ),
        ("note", None, None, "gate of a: accuracy is 0.9", "gate.said"),
        ("note", None, None, "budget: you have spent 50 % of the month's $2.00", "budget.reached"),
        ("note", None, None, "Quote: of a script", None),
    ]
    keys = ("kind", "after", "reason", "message")
    rows = [
        {"run_id": "r-2", "experiment": "a", "at": 1.0} | dict(zip(keys, each, strict=False)) for each in told
    ]
    engine = make_engine(url)
    values = ", ".join(f":{key}" for key in rows[0])
    with engine.begin() as connection:
        connection.execute(sa.text(f"INSERT INTO event ({', '.join(rows[0])}) VALUES ({values})"), rows)
    engine.dispose()
    database = Database(url)
    assert [row["topic"] for row in queries.events(database, "r-2")] == [each[-1] for each in told]
    database.close()


def test_a_home_of_an_early_build_gets_the_table_that_its_revision_lacked(engine_name, url):
    load(url, (RELEASED / f"0002.{engine_name}.sql").read_text())
    engine = make_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE cluster")
    engine.dispose()
    database = Database(url)
    assert differences(database.engine) == []
    assert len(database.quotes_of("r-1")) == 2, "what was there stays"
    lease = database.acquire("r-1", NOW + 1000)
    database.put_cluster(lease, ClusterRow("r-1.a", "lab", "h", "ACTIVE", "{}"), NOW + 1000)
    assert [row["id"] for row in database.clusters_of("r-1")] == ["r-1.a"]
    database.close()


def test_two_processes_that_migrate_at_once_do_it_once(engine_name, url):
    load(url, (RELEASED / f"0001.{engine_name}.sql").read_text())
    engine = make_engine(url)
    upgrade(engine, "0001", SCHEMA_REVISION, "a test")
    upgrade(engine, "0001", SCHEMA_REVISION, "a test")  # it was older when this one looked
    assert differences(engine) == []
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
    database.record_truth(quote, Truth(6.0, 0.0, True))
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
