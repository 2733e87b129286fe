"""The first released schema. Revisions of their own change it later: see docs/development/database.md."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """From nothing. New databases are made by `metadata.create_all` at once, which gives the same."""
    op.create_table(
        "event",
        sa.Column("id", _KEY, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("experiment", sa.Text(), nullable=True),
        sa.Column("task", sa.BigInteger(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("after", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event")),
    )
    op.create_index(op.f("ix_event_run_id_id"), "event", ["run_id", "id"], unique=False)
    op.create_table(
        "run",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("recipe", sa.Text(), nullable=False),
        sa.Column("recipe_path", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("code_path", sa.Text(), nullable=False),
        sa.Column("store_url", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("session_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("earlier_s", sa.Float(), server_default="0", nullable=False),
        sa.Column("cost_usd", sa.Float(), server_default="0", nullable=False),
        sa.Column("stop_wanted", sa.Text(), nullable=True),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("lease_token", sa.Integer(), server_default="0", nullable=False),
        sa.Column("lease_expires_at", sa.Float(), nullable=True),
        sa.Column("turn", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("home", sa.Text(), server_default="", nullable=False),
        sa.Column("home_id", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
    )
    op.create_index(op.f("ix_run_created_at"), "run", ["created_at"], unique=False)
    op.create_table(
        "experiment",
        sa.Column("id", _KEY, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        sa.Column("tasks_total", sa.BigInteger(), nullable=False),
        sa.Column("rest_reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_experiment_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experiment")),
        sa.UniqueConstraint("run_id", "name", name=op.f("uq_experiment_run_id_name")),
    )
    op.create_table(
        "attempt",
        sa.Column("id", _KEY, nullable=False),
        sa.Column("experiment_id", _KEY, nullable=False),
        sa.Column("task", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        sa.Column("opened_at", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("restored", sa.Integer(), nullable=True),
        sa.Column("members", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiment.id"], name=op.f("fk_attempt_experiment_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempt")),
        sa.UniqueConstraint(
            "experiment_id", "task", "number", name=op.f("uq_attempt_experiment_id_task_number")
        ),
    )
    op.create_table(
        "task",
        sa.Column("id", _KEY, nullable=False),
        sa.Column("experiment_id", _KEY, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        sa.Column("parameters", sa.Text(), server_default="{}", nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("retries_used", sa.Integer(), server_default="0", nullable=False),
        sa.Column("free_restarts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("not_before", sa.Float(), server_default="0", nullable=False),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.Column("parent", sa.BigInteger(), nullable=True),
        sa.Column("restored", sa.Integer(), nullable=True),
        sa.Column("bad_checkpoints", sa.Text(), server_default="[]", nullable=False),
        sa.Column("metrics", sa.Text(), server_default="{}", nullable=False),
        sa.Column("model_uri", sa.Text(), nullable=True),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiment.id"], name=op.f("fk_task_experiment_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_task")),
        sa.UniqueConstraint("experiment_id", "number", name=op.f("uq_task_experiment_id_number")),
    )
    op.create_index(
        op.f("ix_task_experiment_id_state_reason"), "task", ["experiment_id", "state", "reason"], unique=False
    )
    op.create_index(
        "ix_task_model",
        "task",
        ["experiment_id", "number"],
        unique=False,
        sqlite_where=sa.text("model_uri IS NOT NULL"),
    )
