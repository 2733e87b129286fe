"""Services, and what runs elsewhere: each part adds its tables in a function of its own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Each part in the order in which they refer to each other."""
    _endpoints()
    _workflows()
    _removed_models()
    _apps()
    _sinks()
    _on_cluster()


def _apps() -> None:
    """Notebooks keep what was written in them; a port of a member is an app."""
    op.add_column("app", sa.Column("directory", sa.Text(), nullable=True))
    op.add_column("app", sa.Column("member", sa.Text(), nullable=True))


def _sinks() -> None:
    """How far what tasks report was sent to MLflow and others."""
    op.create_table(
        "sink",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("remote", sa.Text(), nullable=True),
        sa.Column("trouble", sa.Text(), server_default="", nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("try_at", sa.Float(), server_default="0", nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_sink_run_id"),
        sa.PrimaryKeyConstraint("run_id", "kind", name="pk_sink"),
    )
    op.create_index("ix_sink_state", "sink", ["state"])
    op.create_table(
        "sink_cursor",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("experiment", sa.Text(), nullable=False),
        sa.Column("task", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("remote", sa.Text(), nullable=False),
        sa.Column("reports", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("sending", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("sending_at", sa.Float(), server_default="0", nullable=False),
        sa.Column("is_over", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_sink_cursor_run_id"),
        sa.PrimaryKeyConstraint("run_id", "kind", "experiment", "task", "attempt", name="pk_sink_cursor"),
    )


def _on_cluster() -> None:
    """Runs that a machine of their own drives."""
    op.add_column("run", sa.Column("away", sa.Text(), nullable=True))
    op.create_index("ix_run_away", "run", ["away"])


def _endpoints() -> None:
    """What services of runs are called, and the replicas that answer for them."""
    op.create_table(
        "endpoint",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("place", sa.Text(), nullable=True),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("experiment", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("version", sa.Text(), nullable=True),
        sa.Column("model_uri", sa.Text(), nullable=True),
        sa.Column("refused", sa.Text(), nullable=True),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("try_at", sa.Float(), server_default="0", nullable=False),
        sa.Column("asked_at", sa.Float(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["team"], ["team.name"], name="fk_endpoint_team"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_endpoint_run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_endpoint"),
        sa.UniqueConstraint("place", name="uq_endpoint_place"),
        sa.UniqueConstraint("run_id", "experiment", name="uq_endpoint_run_id_experiment"),
    )
    op.create_index("ix_endpoint_team_created_at", "endpoint", ["team", "created_at"])
    op.create_table(
        "replica",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("endpoint_id", sa.Text(), nullable=False),
        sa.Column("task", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("version", sa.Text(), nullable=True),
        sa.Column("model_uri", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=True),
        sa.Column("port", sa.Integer(), nullable=True),
        sa.Column("said", sa.Text(), server_default="", nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("ready_at", sa.Float(), nullable=True),
        sa.Column("draining_since", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["endpoint_id"], ["endpoint.id"], name="fk_replica_endpoint_id"),
        sa.PrimaryKeyConstraint("id", name="pk_replica"),
        sa.UniqueConstraint("endpoint_id", "task", name="uq_replica_endpoint_id_task"),
    )
    op.create_table(
        "replica_load",
        sa.Column("replica_id", sa.Text(), nullable=False),
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("in_flight", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["replica_id"], ["replica.id"], name="fk_replica_load_replica_id"),
        sa.PrimaryKeyConstraint("replica_id", "server", name="pk_replica_load"),
    )


def _workflows() -> None:
    """Recipes that a server keeps, what starts them, and each start."""
    op.create_table(
        "workflow",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("concurrency", sa.Text(), nullable=False),
        sa.Column("pushes", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("registered_by", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=True),
        sa.Column("token", sa.Text(), nullable=True),
        sa.Column("secret", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("changed_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workflow"),
        sa.UniqueConstraint("team", "name", name="uq_workflow_team_name"),
    )
    op.create_table(
        "workflow_trigger",
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("seen", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["workflow_id"], ["workflow.id"], name="fk_workflow_trigger_workflow_id"),
        sa.PrimaryKeyConstraint("workflow_id", "key", name="pk_workflow_trigger"),
    )
    op.create_table(
        "workflow_firing",
        sa.Column("id", _KEY, nullable=False),
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        sa.Column("chain", sa.Text(), server_default="[]", nullable=False),
        sa.Column("tries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("due_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["workflow_id"], ["workflow.id"], name="fk_workflow_firing_workflow_id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_workflow_firing_run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_workflow_firing"),
        sa.UniqueConstraint(
            "workflow_id", "trigger", "cause", name="uq_workflow_firing_workflow_id_trigger_cause"
        ),
    )
    op.create_index("ix_workflow_firing_workflow_id_id", "workflow_firing", ["workflow_id", "id"])
    op.create_index("ix_workflow_firing_run_id", "workflow_firing", ["run_id"])
    op.create_index("ix_workflow_firing_state", "workflow_firing", ["state"])


def _removed_models() -> None:
    """Models that were taken out of the registry: their files go some time after."""
    op.create_table(
        "removed_model",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("experiment", sa.Text(), nullable=False),
        sa.Column("task", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("removed_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_removed_model_run_id"),
        sa.PrimaryKeyConstraint("run_id", "experiment", "task", name="pk_removed_model"),
    )
