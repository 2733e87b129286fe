"""Who may use a server: teams, tokens, sessions; what they asked for; whose a run is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Runs that there are belong to the owner of the home."""
    op.add_column("run", sa.Column("team", sa.Text(), nullable=True))
    op.add_column("run", sa.Column("submitted_by", sa.Text(), nullable=True))
    op.create_index("ix_run_team_created_at", "run", ["team", "created_at"])
    op.create_table(
        "team",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("monthly_usd", sa.Float(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_team"),
    )
    op.create_table(
        "token",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("beginning", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=True),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("used_at", sa.Float(), nullable=True),
        sa.Column("revoked_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["team"], ["team.name"], name="fk_token_team"),
        sa.PrimaryKeyConstraint("name", name="pk_token"),
        sa.UniqueConstraint("digest", name="uq_token_digest"),
    )
    op.create_table(
        "web_session",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=True),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=True),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["team"], ["team.name"], name="fk_web_session_team"),
        sa.PrimaryKeyConstraint("digest", name="pk_web_session"),
    )
    op.create_table(
        "submission",
        sa.Column("caller", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_submission_run_id"),
        sa.PrimaryKeyConstraint("caller", "key", name="pk_submission"),
    )
    op.create_table(
        "audit",
        sa.Column("id", _KEY, nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=True),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
