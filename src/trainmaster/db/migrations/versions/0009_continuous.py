"""What goes on from one run to the next: each part adds its tables in a function of its own."""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

#: As long as a server has what groups give hold if it is not told otherwise.
_GROUPS_HOLD_S = 7 * 86400.0
_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Each part in the order in which they refer to each other."""
    _registry()
    _groups()
    _apps()


def _groups() -> None:
    """What single sign-on says of somebody holds for some time."""
    op.add_column("account", sa.Column("groups_until", sa.Float(), nullable=True))
    account = sa.table("account", sa.column("name"), sa.column("admin_by"), sa.column("groups_until"))
    member = sa.table("member", sa.column("account"), sa.column("by_groups", sa.Boolean()))
    by_groups = account.c.name.in_(sa.select(member.c.account).where(member.c.by_groups))
    # What they gave before holds as long as if it had just been said: null would hold for ever.
    op.execute(
        account.update()
        .where(by_groups | (account.c.admin_by == "groups"))
        .values(groups_until=time.time() + _GROUPS_HOLD_S)
    )


def _registry() -> None:
    """Models that have names, versions and aliases."""
    op.create_table(
        "registered_model",
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), server_default="", nullable=False),
        sa.Column("tags", sa.Text(), server_default="{}", nullable=False),
        sa.Column("last_version", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("team", "name", name="pk_registered_model"),
    )
    op.create_table(
        "model_version",
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("experiment", sa.Text(), nullable=False),
        sa.Column("task", sa.BigInteger(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("tags", sa.Text(), server_default="{}", nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_model_version_run_id"),
        sa.PrimaryKeyConstraint("team", "name", "version", name="pk_model_version"),
        sa.UniqueConstraint(
            "team", "name", "run_id", "experiment", "task",
            name="uq_model_version_team_name_run_id_experiment_task",
        ),
    )  # fmt: skip
    op.create_index("ix_model_version_run_id", "model_version", ["run_id"])
    op.create_table(
        "model_alias",
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("alias", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("moved_by", sa.Text(), nullable=False),
        sa.Column("moved_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("team", "name", "alias", name="pk_model_alias"),
    )
    op.create_table(
        "model_move",
        sa.Column("id", _KEY, nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("alias", sa.Text(), nullable=False),
        sa.Column("before", sa.Integer(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("moved_by", sa.Text(), nullable=False),
        sa.Column("moved_at", sa.Float(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("experiment", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_model_move"),
        sa.UniqueConstraint(
            "team", "name", "alias", "run_id", "experiment",
            name="uq_model_move_team_name_alias_run_id_experiment",
        ),
    )  # fmt: skip
    op.create_table(
        "run_model",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("experiment", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_run_model_run_id"),
        sa.PrimaryKeyConstraint("run_id", "experiment", "data", name="pk_run_model"),
    )
    op.create_index("ix_run_model_team_name_version", "run_model", ["team", "name", "version"])


def _apps() -> None:
    """TensorBoards and notebooks, and who is let in."""
    op.create_table(
        "app",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=True),
        sa.Column("opened_by", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=True),
        sa.Column("runs", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("home_id", sa.Text(), nullable=False),
        sa.Column("place", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("ends", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=True),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("used_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["team"], ["team.name"], name="fk_app_team"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_app_run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_app"),
        sa.UniqueConstraint("place", name="uq_app_place"),
    )
    op.create_index("ix_app_team_created_at", "app", ["team", "created_at"])
    op.create_index("ix_app_home_id_state", "app", ["home_id", "state"])
    op.create_table(
        "app_pass",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("app_id", sa.Text(), nullable=False),
        sa.Column("is_ticket", sa.Boolean(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("credential", sa.Text(), nullable=True),
        sa.Column("is_session", sa.Boolean(), nullable=False),
        sa.Column("team", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["app_id"], ["app.id"], name="fk_app_pass_app_id"),
        sa.PrimaryKeyConstraint("digest", name="pk_app_pass"),
    )
    op.create_index("ix_app_pass_app_id", "app_pass", ["app_id"])
