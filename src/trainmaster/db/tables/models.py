"""Tables of the model registry."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
)

from trainmaster.db.tables.runs import Key, metadata

registered_model = Table(
    "registered_model",
    metadata,
    Column("team", Text, primary_key=True, doc="empty for the owner of the home"),
    Column("name", Text, primary_key=True),
    Column("description", Text, nullable=False, server_default=""),
    Column("tags", Text, nullable=False, server_default="{}", doc="as JSON"),
    Column("last_version", Integer, nullable=False, server_default="0", doc="no number is given twice"),
    Column("created_at", Float, nullable=False),
)

model_version = Table(
    "model_version",
    metadata,
    Column("team", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("run_id", Text, ForeignKey("run.id"), nullable=False, doc="that left it"),
    Column("experiment", Text, nullable=False),
    Column("task", BigInteger, nullable=False),
    Column("uri", Text, nullable=False),
    Column("tags", Text, nullable=False, server_default="{}", doc="as JSON"),
    Column("created_by", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    UniqueConstraint("team", "name", "run_id", "experiment", "task"),
)
Index(None, model_version.c.run_id)

model_alias = Table(
    "model_alias",
    metadata,
    Column("team", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("alias", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("moved_by", Text, nullable=False),
    Column("moved_at", Float, nullable=False),
)

model_move = Table(
    "model_move",
    metadata,
    Column("id", Key, primary_key=True),
    Column("team", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("alias", Text, nullable=False),
    Column("before", Integer, doc="the version that the alias meant; null if there was none"),
    Column("version", Integer, doc="that it means since; null: it was taken away"),
    Column("kind", Text, nullable=False, doc="promote, rollback, remove, or run"),
    Column("moved_by", Text, nullable=False),
    Column("moved_at", Float, nullable=False),
    Column("run_id", Text, doc="whose recipe has asked for it; null if somebody did it by hand"),
    Column("experiment", Text),
    UniqueConstraint("team", "name", "alias", "run_id", "experiment"),
)

run_model = Table(
    "run_model",
    metadata,
    Column("run_id", Text, ForeignKey("run.id"), primary_key=True, doc="that starts from it"),
    Column("experiment", Text, primary_key=True),
    Column("data", Text, primary_key=True, doc="the name that its members know it by"),
    Column("team", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("version", Integer, nullable=False, doc="fixed when the run was accepted"),
)
Index(None, run_model.c.team, run_model.c.name, run_model.c.version)

removed_model = Table(
    "removed_model",
    metadata,
    Column("run_id", Text, ForeignKey("run.id"), primary_key=True, doc="that left it"),
    Column("experiment", Text, primary_key=True),
    Column("task", BigInteger, primary_key=True, autoincrement=False),
    Column("uri", Text, nullable=False, doc="whose files go some time after"),
    Column("team", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("version", Integer, nullable=False, doc="that was taken out of the registry last"),
    Column("removed_at", Float, nullable=False),
)
