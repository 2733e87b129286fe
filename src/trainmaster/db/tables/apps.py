"""Tables of apps: what runs beside runs, and who is let in."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, ForeignKey, Index, Integer, Table, Text, false

from trainmaster.db.tables.runs import metadata

app = Table(
    "app",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False, doc="tensorboard, notebook or port"),
    Column("team", Text, ForeignKey("team.name"), doc="whose it is; null for the owner of the home"),
    Column("opened_by", Text, nullable=False),
    Column("account", Text, doc="of who has opened it: it ends when that one leaves the team"),
    Column("runs", Text, nullable=False, doc="ids of the runs that it shows, as JSON"),
    Column("run_id", Text, ForeignKey("run.id"), doc="the run whose task it is, if it is one"),
    Column("home_id", Text, nullable=False, doc="the home on whose machine it is"),
    Column("place", Text, unique=True, doc="what is open once only; null when it is over"),
    Column("directory", Text, doc="of a notebook: where the work of its user stays"),
    Column("member", Text, doc="of `run_id`, whose `port` it is; null for the first one"),
    Column("state", Text, nullable=False, doc="WAITING, RUNNING (it answers) or DONE"),
    Column("reason", Text, doc="why it is over"),
    Column("ends", Boolean, nullable=False, server_default=false(), doc="somebody wants its end"),
    Column("port", Integer, doc="on the own address of the machine, or of that of `run_id`"),
    Column("owner", Text, doc="the process that looks after it, as `this_process` names it"),
    Column("expires_at", Float, doc="of its lease, by `Database.clock_s`"),
    Column("created_at", Float, nullable=False),
    Column("used_at", Float, nullable=False),
    Column("ended_at", Float),
)
Index(None, app.c.team, app.c.created_at)
Index(None, app.c.home_id, app.c.state)

app_pass = Table(
    "app_pass",
    metadata,
    Column("digest", Text, primary_key=True, doc="SHA-256 of the ticket or cookie"),
    Column("app_id", Text, ForeignKey("app.id"), nullable=False),
    Column("is_ticket", Boolean, nullable=False, doc="good once: it becomes a cookie"),
    Column("expires_at", Float, nullable=False),
    Column("credential", Text, doc="SHA-256 of the session or token behind it; null for who has the machine"),
    Column("is_session", Boolean, nullable=False),
    Column("team", Text, doc="for which it was asked"),
)
Index(None, app_pass.c.app_id)
