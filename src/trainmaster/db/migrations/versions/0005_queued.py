"""How long a run has waited for what other runs hold, and when it had given everything back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Columns that say of every run there is: it never waited, and ended when its last task did."""
    op.add_column("run", sa.Column("closed_at", sa.Float(), nullable=True))
    op.add_column("run", sa.Column("queued_at", sa.Float(), nullable=True))
    op.add_column("run", sa.Column("queued_for", sa.Text(), nullable=True))
    op.add_column("run", sa.Column("queued_s", sa.Float(), nullable=False, server_default="0"))
