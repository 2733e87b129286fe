"""Write tests/unit/db/released/REVISION.*: run this once before a new schema is released."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/unit/db"))

from test_migrations import RELEASED, recipe_keys, write_examples  # noqa: E402

from trainmaster.db import Database  # noqa: E402
from trainmaster.db.engine import SCHEMA_REVISION  # noqa: E402
from trainmaster.testing.private_postgres import PrivatePostgres, find_postgres  # noqa: E402

_NOISE = ("--", "SET ", "SELECT pg_catalog.set_config", "\\")


def main() -> None:
    """Dump both engines, and which keys recipes have."""
    RELEASED.mkdir(exist_ok=True)
    (RELEASED / f"{SCHEMA_REVISION}.recipe.txt").write_text("\n".join(sorted(recipe_keys())) + "\n")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "x.db")
        write(f"sqlite:///{path}")
        connection = sqlite3.connect(path)
        lines = [line for line in connection.iterdump() if not line.startswith(("BEGIN", "COMMIT"))]
        connection.close()
        keep("sqlite", lines)
    with PrivatePostgres() as server:
        write(server.url)
        dump = [find_postgres() / "pg_dump", "--inserts", "--no-owner", "-h", server.directory]
        text = subprocess.run(
            [*dump, "-U", "trainmaster", "postgres"], capture_output=True, text=True, check=True
        ).stdout
        # Its schema is `public`, and what loads it may mean another.
        lines = [line.replace("public.", "") for line in text.splitlines()]
        keep("postgresql", [line for line in lines if line and not line.startswith(_NOISE)])


def write(url: str) -> None:
    """Let this version write its examples into a new database."""
    database = Database(url)
    write_examples(database)
    database.close()


def keep(engine_name: str, lines: list[str]) -> None:
    """Keep a dump."""
    (RELEASED / f"{SCHEMA_REVISION}.{engine_name}.sql").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
