"""What could not be saved yet: how often that was tried, what the waiting has cost, what is kept here."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Columns that say of every task there is: nothing of it waits."""
    op.add_column("task", sa.Column("tries", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("task", sa.Column("try_at", sa.Float(), nullable=False, server_default="0"))
    op.add_column("task", sa.Column("saving_usd", sa.Float(), nullable=False, server_default="0"))
    op.add_column("task", sa.Column("kept_model", sa.Integer(), nullable=True))
    op.add_column("task", sa.Column("kept_checkpoint", sa.Integer(), nullable=True))
    op.create_index(
        "ix_task_kept",
        "task",
        ["experiment_id", "number"],
        unique=False,
        sqlite_where=sa.text("kept_model IS NOT NULL"),
    )
