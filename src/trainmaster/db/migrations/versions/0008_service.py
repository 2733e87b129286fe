"""What a server of several people keeps: each part adds its tables in a function of its own."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Each part in the order in which they refer to each other."""
    _quote_requests()
    _run_files()
    _drivers()
    _accounts()
    _ledger()
    _uploads()
    _device_logins()


def _quote_requests() -> None:
    """Quotes and plans that were asked for over the network: any server answers and shows them."""
    op.create_table(
        "quote_request",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("asked_by", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("told", sa.Text(), nullable=False),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_quote_request"),
        sa.UniqueConstraint("team", "place", name="uq_quote_request_team_place"),
    )
    op.create_index("ix_quote_request_team_created_at", "quote_request", ["team", "created_at"])
    op.create_index("ix_quote_request_state", "quote_request", ["state"])


def _run_files() -> None:
    """Runs that there are stay in the home that they were started in."""
    op.add_column("run", sa.Column("can_move", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("run", sa.Column("kept_by", sa.Text(), nullable=True))
    op.create_table(
        "run_file",
        sa.Column("id", _KEY, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_run_file_run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_run_file"),
        sa.UniqueConstraint("run_id", "path", "offset", name="uq_run_file_run_id_path_offset"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_run_file_run_id_id", "run_file", ["run_id", "id"])
    op.create_table(
        "run_private",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_run_private_run_id"),
        sa.PrimaryKeyConstraint("run_id", "name", name="pk_run_private"),
    )


def _drivers() -> None:
    """Drivers find the runs that are not over."""
    is_open = sa.text("state != 'DONE'")
    op.create_index("ix_run_open", "run", ["lease_owner"], sqlite_where=is_open)


def _accounts() -> None:
    """Users, members of teams with their roles, invites; whose tokens and sessions are."""
    op.create_table(
        "account",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=True),
        sa.Column("admin_by", sa.Text(), nullable=True),
        sa.Column("issuer", sa.Text(), nullable=True),
        sa.Column("subject", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("disabled_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["team"], ["team.name"], name="fk_account_team"),
        sa.PrimaryKeyConstraint("name", name="pk_account"),
        sa.UniqueConstraint("issuer", "subject", name="uq_account_issuer_subject"),
    )
    op.create_table(
        "member",
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("by_groups", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["team"], ["team.name"], name="fk_member_team"),
        sa.ForeignKeyConstraint(["account"], ["account.name"], name="fk_member_account"),
        sa.PrimaryKeyConstraint("team", "account", name="pk_member"),
    )
    op.create_index("ix_member_account", "member", ["account"])
    op.create_table(
        "invite",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("invited_by", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("used_by", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["team"], ["team.name"], name="fk_invite_team"),
        sa.PrimaryKeyConstraint("digest", name="pk_invite"),
    )
    op.create_index("ix_invite_team", "invite", ["team"])
    op.create_table(
        "team_secret",
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("changed_by", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["team"], ["team.name"], name="fk_team_secret_team"),
        sa.PrimaryKeyConstraint("team", "name", name="pk_team_secret"),
    )
    op.create_table(
        "sign_in",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("nonce", sa.Text(), nullable=False),
        sa.Column("verifier", sa.Text(), nullable=False),
        sa.Column("wanted", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_sign_in"),
    )
    op.create_table(
        "login_attempt",
        sa.Column("id", _KEY, nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_login_attempt"),
    )
    op.create_index("ix_login_attempt_address_at", "login_attempt", ["address", "at"])
    op.add_column("token", sa.Column("account", sa.Text(), nullable=True))
    op.add_column("token", sa.Column("made_with", sa.Text(), nullable=True))
    op.add_column("web_session", sa.Column("account", sa.Text(), nullable=True))
    op.add_column("web_session", sa.Column("created_at", sa.Float(), nullable=False, server_default="0"))
    op.add_column("web_session", sa.Column("address", sa.Text(), nullable=False, server_default=""))
    op.add_column("audit", sa.Column("token", sa.Text(), nullable=True))


def _ledger() -> None:
    """Budgets, and a ledger with what there was before: bills of runs, and what those that go on may cost."""
    budget = op.create_table(
        "budget",
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("monthly_usd", sa.Float(), nullable=True),
        sa.Column("runs_at_once", sa.Integer(), nullable=True),
        sa.Column("usd_per_hour", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("team", name="pk_budget"),
    )
    op.create_table(
        "budget_warning",
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("month", sa.Text(), nullable=False),
        sa.Column("percent", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("team", "month", "percent", name="pk_budget_warning"),
    )
    _webhooks()
    op.create_table(
        "admission",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("most_micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("usd_per_hour", sa.Float(), nullable=False),
        sa.Column("asked_at", sa.Float(), nullable=False),
        sa.Column("admitted_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_admission_run_id"),
        sa.PrimaryKeyConstraint("run_id", name="pk_admission"),
    )
    ledger = op.create_table(
        "ledger",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("day", sa.Text(), nullable=False),
        sa.Column("micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_ledger_run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_ledger"),
        sa.UniqueConstraint("run_id", "kind", "day", name="uq_ledger_run_id_kind_day"),
    )
    op.create_index("ix_ledger_day", "ledger", ["day"])
    connection = op.get_bind()
    limits = connection.execute(sa.text("SELECT name, monthly_usd FROM team WHERE monthly_usd IS NOT NULL"))
    if found := [{"team": row.name, "monthly_usd": row.monthly_usd} for row in limits]:
        connection.execute(budget.insert(), found)
    op.drop_column("team", "monthly_usd")
    now, entries = time.time(), []
    runs = connection.execute(
        sa.text(
            "SELECT id, team, state, recipe, created_at, ended_at, cost_usd FROM run "
            "WHERE cost_usd > 0 OR state <> 'DONE' ORDER BY created_at"
        )
    ).all()
    for run in runs:
        is_over = run.state == "DONE"
        at = (run.ended_at or run.created_at) if is_over else now
        day = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")
        key = {"run_id": run.id, "team": run.team or "", "day": day, "at": at}
        charged = round(run.cost_usd * 1_000_000)
        promised = 0 if is_over else round(_promised_usd(connection, run) * 1_000_000)
        # What was set aside for it is what it has cost, and what it may still cost.
        for kind, amount in (("reserve", max(charged, promised)), ("charge", charged)):
            if amount:
                entries.append({**key, "kind": kind, "micro_usd": amount})
    if entries:
        connection.execute(ledger.insert(), entries)


def _webhooks() -> None:
    """Whom teams have told, and what."""
    op.create_table(
        "webhook",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("topics", sa.Text(), nullable=False),
        sa.Column("secrets", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("disabled_at", sa.Float(), nullable=True),
        sa.Column("disabled_why", sa.Text(), nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("id", name="pk_webhook"),
    )
    op.create_index("ix_webhook_team", "webhook", ["team"])
    op.create_table(
        "notice",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("webhook_id", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("due_at", sa.Float(), nullable=False),
        sa.Column("done_at", sa.Float(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False, server_default=""),
        sa.ForeignKeyConstraint(["webhook_id"], ["webhook.id"], name="fk_notice_webhook_id"),
        sa.PrimaryKeyConstraint("id", name="pk_notice"),
    )
    op.create_index("ix_notice_webhook_id_at", "notice", ["webhook_id", "at"])
    op.create_index("ix_notice_done_at_due_at", "notice", ["done_at", "due_at"])


def _promised_usd(connection: sa.Connection, run: sa.Row[tuple[object, ...]]) -> float:
    """The p95 of its newest quote, or its cap if that is less; 0 if neither can be read."""
    quoted = connection.execute(
        sa.text("SELECT data FROM quote WHERE run_id = :run ORDER BY made_at DESC, id DESC"), {"run": run.id}
    ).scalar()
    promises = []
    for text, keys in ((quoted, ("cost_usd", "p95")), (run.recipe, ("budget", "total_usd"))):
        try:
            found = json.loads(text or "")
            for key in keys:
                found = found[key]
            promises.append(float(found))
        except (TypeError, ValueError, LookupError):
            continue
    return min(promises, default=0.0)


def _uploads() -> None:
    op.create_table(
        "upload",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("received_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("claim", sa.Integer(), server_default="0", nullable=False),
        sa.Column("claimed_until", sa.Float(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("used_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["team"], ["team.name"], name="fk_upload_team"),
        sa.PrimaryKeyConstraint("id", name="pk_upload"),
    )
    op.create_index("ix_upload_team", "upload", ["team"])
    op.create_table(
        "upload_part",
        sa.Column("upload_id", sa.Text(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["upload_id"], ["upload.id"], name="fk_upload_part_upload_id"),
        sa.PrimaryKeyConstraint("upload_id", "offset", name="pk_upload_part"),
    )
    op.create_table(
        "volume_content",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("described", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_volume_content"),
    )


def _device_logins() -> None:
    """Command lines whose login waits until a person confirms it."""
    op.create_table(
        "device_login",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("user_digest", sa.Text(), nullable=False),
        sa.Column("client", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("confirmed", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("digest", name="pk_device_login"),
        sa.UniqueConstraint("user_digest", name="uq_device_login_user_digest"),
    )
