"""What was measured, what was quoted and what it came to; what is rented."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """New tables; nothing of the old ones changes."""
    op.create_table(
        "measurement",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("similar", sa.Text(), nullable=False),
        sa.Column("experiment", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("measured_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurement")),
    )
    op.create_index(
        op.f("ix_measurement_fingerprint_measured_at"),
        "measurement",
        ["fingerprint", "measured_at"],
        unique=False,
    )
    op.create_index(
        op.f("ix_measurement_similar_measured_at"), "measurement", ["similar", "measured_at"], unique=False
    )
    op.create_table(
        "quote",
        sa.Column("id", _KEY, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("experiment", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("made_at", sa.Float(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("time_s", sa.Float(), nullable=True),
        sa.Column("cost_usd", sa.Float(), nullable=True),
        sa.Column("kept", sa.Boolean(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_quote_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_quote")),
    )
    op.create_index(op.f("ix_quote_run_id_id"), "quote", ["run_id", "id"], unique=False)
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
