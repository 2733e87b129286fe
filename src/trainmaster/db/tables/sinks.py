"""Tables of sinks: how far what tasks report was sent to MLflow and others."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, ForeignKey, Index, Integer, Table, Text, false

from trainmaster.db.tables.runs import metadata

sink = Table(
    "sink",
    metadata,
    Column("run_id", Text, ForeignKey("run.id"), primary_key=True),
    Column("kind", Text, primary_key=True, doc="mlflow or wandb"),
    Column("state", Text, nullable=False, doc="RUNNING, or DONE: the run is over, and it has all"),
    Column("remote", Text, doc="what the other side calls the place of the run, once it has one"),
    Column("trouble", Text, nullable=False, server_default="", doc="why the last try has failed"),
    Column("failures", Integer, nullable=False, server_default="0", doc="of tries, one after the other"),
    Column("try_at", Float, nullable=False, server_default="0", doc="not before"),
    Column("owner", Text, doc="the process that sends, as `this_process` names it"),
    Column("expires_at", Float, doc="of its lease, by `Database.clock_s`"),
)
Index("ix_sink_state", sink.c.state)

sink_cursor = Table(
    "sink_cursor",
    metadata,
    Column("run_id", Text, ForeignKey("run.id"), primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("experiment", Text, primary_key=True),
    Column("task", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("remote", Text, nullable=False, doc="what the other side calls the task"),
    Column("reports", BigInteger, nullable=False, server_default="0", doc="so many were taken"),
    Column("sending", BigInteger, nullable=False, server_default="0", doc="up to here is on its way"),
    Column("sending_at", Float, nullable=False, server_default="0", doc="when what has no time was made"),
    Column("is_over", Boolean, nullable=False, server_default=false(), doc="there is nothing more of it"),
)
