"""The audit is a chain: each row has a hash over itself and the one before; and how far it was sent on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """What is there gets no hash: nothing shows that it is as it was written. The chain begins behind it."""
    op.add_column("audit", sa.Column("hash", sa.Text(), server_default="", nullable=False))
    op.create_table(
        "audit_sink",
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("sent", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("sent_at", sa.Float(), nullable=True),
        sa.Column("trouble", sa.Text(), server_default="", nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("try_at", sa.Float(), server_default="0", nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("target", name="pk_audit_sink"),
    )
