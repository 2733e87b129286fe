"""What users write into TRAINMASTER_DATABASE."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trainmaster.db import Database
from trainmaster.db.engine import make_engine, shown
from trainmaster.spec.errors import MissingPartError, StoreError, UsageError


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg", "postgresql+asyncpg"])
def test_every_spelling_of_postgresql_means_our_driver(scheme):
    pytest.importorskip("psycopg")
    engine = make_engine(f"{scheme}://me:secret@db.example:5433/lab?sslmode=require&connect_timeout=3")
    arguments = engine.dialect.create_connect_args(engine.url)[1]
    assert engine.url.drivername == "postgresql+psycopg"
    assert (arguments["host"], arguments["port"], arguments["dbname"]) == ("db.example", 5433, "lab")
    assert (arguments["sslmode"], arguments["connect_timeout"]) == ("require", "3")


@pytest.mark.parametrize(
    "text",
    ["/srv/trainmaster.db", "", "postgresql", "sqlite://me:secret@nowhere/x.db", "postgresql://h:secret/x"],
)
def test_what_is_no_url_is_a_mistake_and_not_repeated(text):
    with pytest.raises(UsageError, match="TRAINMASTER_DATABASE: this is no database URL") as caught:
        Database(text)
    assert "secret" not in str(caught.value)
    assert "postgresql://" in caught.value.hint


def test_other_databases_are_refused():
    with pytest.raises(UsageError, match="mysql is not supported"):
        Database("mysql://me:secret@host/db")


@pytest.mark.parametrize("text", ["postgres://me:secret@h/db", "postgresql://h/db?user=me&password=secret"])
def test_a_password_is_not_shown(text):
    assert "secret" not in shown(text)
    pytest.importorskip("psycopg")
    engine = make_engine(text)
    assert "secret" not in engine.url.render_as_string()
    assert engine.url.password == "secret"


def test_a_server_that_is_not_there(tmp_path):
    pytest.importorskip("psycopg")
    with pytest.raises(StoreError, match="cannot use the database") as caught:
        Database(f"postgresql://me:secret@/db?host={tmp_path}")
    assert "secret" not in str(caught.value)
    assert "server running" in caught.value.hint


def test_a_missing_driver_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingPartError, match=r"pip install 'trainmaster\[postgres\]'"):
        make_engine("postgresql://h/db")


def test_sqlite_loads_nothing_of_postgresql_nor_alembic(tmp_path):
    code = (
        "import sys; from trainmaster.db import Database; Database(sys.argv[1]).close(); "
        "print([n for n in sys.modules if 'psycopg' in n or 'postgresql' in n or 'alembic' in n])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, f"sqlite:///{tmp_path / 'x.db'}"],
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"
