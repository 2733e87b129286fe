"""Tables of endpoints: what services of runs are called, and the replicas that answer for them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, ForeignKey, Index, Integer, Table, Text, UniqueConstraint

from trainmaster.db.tables.runs import metadata

endpoint = Table(
    "endpoint",
    metadata,
    Column("id", Text, primary_key=True),
    Column("team", Text, ForeignKey("team.name"), doc="whose it is; null for the owner of the home"),
    Column("name", Text, nullable=False, doc="by which it is asked"),
    Column("place", Text, unique=True, doc="team/name, which one has at a time; null when it is over"),
    Column("run_id", Text, ForeignKey("run.id"), nullable=False),
    Column("experiment", Text, nullable=False),
    Column("model", Text, doc="as the recipe names it"),
    Column("version", Text, doc="that replicas are to have: NAME@NUMBER, or a task's model"),
    Column("model_uri", Text, doc="where that is published"),
    Column("refused", Text, doc="the version that did not become healthy while another one answered"),
    Column("failures", Integer, nullable=False, server_default="0", doc="ends of replicas in a row"),
    Column("try_at", Float, nullable=False, server_default="0", doc="before that none is begun anew"),
    Column("asked_at", Float, doc="when somebody was turned away last, by `Database.clock_s`"),
    Column("created_at", Float, nullable=False),
    Column("ended_at", Float),
    UniqueConstraint("run_id", "experiment"),
)
Index(None, endpoint.c.team, endpoint.c.created_at)

replica = Table(
    "replica",
    metadata,
    Column("id", Text, primary_key=True),
    Column("endpoint_id", Text, ForeignKey("endpoint.id"), nullable=False),
    Column("task", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False, server_default="0", doc="whose port it is"),
    Column("version", Text),
    Column("model_uri", Text),
    Column("state", Text, nullable=False, doc="STARTING, READY, DRAINING or GONE"),
    Column("node", Text, doc="its machine; null for that of the run's home"),
    Column("port", Integer),
    Column("said", Text, nullable=False, server_default="", doc="what the health check saw last"),
    Column("created_at", Float, nullable=False),
    Column("ready_at", Float, doc="when it answered for the first time"),
    Column("draining_since", Float, doc="since then it gets no new requests; by `Database.clock_s`"),
    Column("ended_at", Float),
    UniqueConstraint("endpoint_id", "task"),
)

replica_load = Table(
    "replica_load",
    metadata,
    Column("replica_id", Text, ForeignKey("replica.id"), primary_key=True),
    Column("server", Text, primary_key=True, doc="whose proxy has counted"),
    Column("in_flight", Integer, nullable=False),
    Column("at", Float, nullable=False, doc="by `Database.clock_s`: soon it says nothing any more"),
)
