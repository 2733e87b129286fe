"""How many cores of a server's own machine tasks of a team take at once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """One more limit."""
    op.add_column("budget", sa.Column("cpus_at_once", sa.Integer(), nullable=True))
