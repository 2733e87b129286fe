"""What is rented, also in databases that an early build wrote.

0002 was first used without its table ``cluster``, and stamped: such a home would fail at its first cluster.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """The table, where it is missing; nothing elsewhere."""
    if sa.inspect(op.get_bind()).has_table("cluster"):
        return
    op.create_table(
        "cluster",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("home_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("kept_until", sa.Float(), nullable=True),
        sa.Column("waited_s", sa.Float(), nullable=True),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_cluster_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cluster")),
    )
    op.create_index(op.f("ix_cluster_run_id"), "cluster", ["run_id"], unique=False)
