"""Invites end with the token that they were made with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Those that are there were made with none, as far as anybody knows."""
    op.add_column("invite", sa.Column("made_with", sa.Text(), nullable=True))
