"""What a run says of itself lies in its record: each part adds its tables in a function of its own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Each part in the order in which they refer to each other."""
    _facts()


def _facts() -> None:
    """What was found out of a run while it was driven, for whoever drives it later."""
    op.create_table(
        "run_fact",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_run_fact_run_id"),
        sa.PrimaryKeyConstraint("run_id", "kind", "name", name="pk_run_fact"),
    )
