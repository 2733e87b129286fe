"""The outbox: who is still to be told of which event."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """A table, and a column that says of every run there is: nobody is told of it."""
    op.add_column("run", sa.Column("notify", sa.Text(), nullable=True))
    op.create_table(
        "outbox",
        sa.Column("id", _KEY, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("event_id", _KEY, nullable=False),
        sa.Column("subscription", sa.Integer(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False, server_default="0"),
        sa.ForeignKeyConstraint(["event_id"], ["event.id"], name="fk_outbox_event_id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_outbox_run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
        sa.UniqueConstraint("event_id", "subscription", name="uq_outbox_event_id_subscription"),
    )
    op.create_index("ix_outbox_run_id", "outbox", ["run_id"])
