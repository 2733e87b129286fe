"""Tables of workflows: recipes that a server keeps, what starts them, and each start."""

from __future__ import annotations

from sqlalchemy import Column, Float, ForeignKey, Index, Integer, LargeBinary, Table, Text, UniqueConstraint

from trainmaster.db.tables.runs import Key, metadata

workflow = Table(
    "workflow",
    metadata,
    Column("id", Text, primary_key=True),
    Column("team", Text, nullable=False, doc="empty for the owner of the home"),
    Column("name", Text, nullable=False, doc="of the recipe"),
    Column("request", Text, nullable=False, doc="what is submitted at each start, as JSON"),
    Column("concurrency", Text, nullable=False, doc="wait, skip or cancel"),
    Column("pushes", Text, nullable=False, doc="volumes that its commands say they push, as JSON"),
    Column("state", Text, nullable=False, doc="ENABLED or PAUSED"),
    Column("revision", Integer, nullable=False, doc="counts how often it was registered"),
    Column("registered_by", Text, nullable=False),
    Column("account", Text, doc="of whom: its runs start only while that one may run in the team"),
    Column("token", Text, doc="that it was registered with: likewise, while that is not revoked"),
    Column("secret", LargeBinary, doc="of its webhook, sealed; null without one"),
    Column("created_at", Float, nullable=False),
    Column("changed_at", Float, nullable=False),
    UniqueConstraint("team", "name"),
)

workflow_trigger = Table(
    "workflow_trigger",
    metadata,
    Column("workflow_id", Text, ForeignKey("workflow.id"), primary_key=True),
    Column("key", Text, primary_key=True, doc="such as `volume pets`"),
    Column("ordinal", Integer, nullable=False),
    Column("data", Text, nullable=False, doc="the trigger of the recipe as JSON"),
    Column("seen", Float, nullable=False, doc="the newest version, or time, that a start was decided for"),
)

workflow_firing = Table(
    "workflow_firing",
    metadata,
    Column("id", Key, primary_key=True),
    Column("workflow_id", Text, ForeignKey("workflow.id"), nullable=False),
    Column("trigger", Text, nullable=False, doc="key of the trigger, or `by hand`"),
    Column("cause", Text, nullable=False, doc="the version, the time or the id of the webhook"),
    Column("at", Float, nullable=False),
    Column("state", Text, nullable=False, doc="WAITING, STARTED, SKIPPED or REFUSED"),
    Column("run_id", Text, ForeignKey("run.id")),
    Column("message", Text, nullable=False, server_default="", doc="what was skipped, or why"),
    Column("chain", Text, nullable=False, server_default="[]", doc="workflows that led to it, as JSON"),
    Column("tries", Integer, nullable=False, server_default="0", doc="how often its start was begun"),
    Column("due_at", Float, nullable=False, doc="of a WAITING one: when somebody may try to start it"),
    UniqueConstraint("workflow_id", "trigger", "cause"),
)
Index(None, workflow_firing.c.workflow_id, workflow_firing.c.id)
Index(None, workflow_firing.c.run_id)
Index(None, workflow_firing.c.state)
