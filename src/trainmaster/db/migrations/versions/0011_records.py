"""What a run says of itself lies in its record, the audit is a chain, notes have topics, teams have shares.

Each part adds what it needs in a function of its own.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

_NAMES = ("kind", "after", "reason", "message", "experiment", "topic")
_EVENT = sa.table("event", *(sa.column(name, sa.Text()) for name in _NAMES))


def upgrade() -> None:
    """Each part in the order in which they refer to each other."""
    _invites()
    _facts()
    _audit()
    _topics()
    _shares()


def _invites() -> None:
    """Invites end with the token that they were made with; those that are there were made with none known."""
    op.add_column("invite", sa.Column("made_with", sa.Text(), nullable=True))


def _facts() -> None:
    """What was found out of a run while it was driven, for whoever drives it later."""
    op.create_table(
        "run_fact",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_run_fact_run_id"),
        sa.PrimaryKeyConstraint("run_id", "kind", "name", name="pk_run_fact"),
    )


def _audit() -> None:
    """A hash over each row and the one before, and how far it was sent on.

    What is there gets no hash: nothing shows that it is as it was written. The chain begins behind it.
    """
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


def _topics() -> None:
    """What an event tells of; notes that are there were known by how they begin."""
    op.add_column("event", sa.Column("topic", sa.Text(), nullable=True))
    event = _EVENT.c
    is_run, is_note = event.kind == "run", event.kind == "note"
    in_danger = sa.and_(_begins("it will "), event.message.like("%than quoted%"))
    kept = sa.or_(
        _begins("nothing becomes "), event.message.like("% was moved for this run before: version %")
    )
    topic = sa.case(
        (sa.and_(is_run, event.after == "RUNNING"), "run.started"),
        (sa.and_(is_run, event.after == "DONE"), "run.ended"),
        (sa.and_(is_note, event.reason == "NODE_LOST"), "run.node_lost"),
        (sa.and_(is_note, _begins("quote: ")), "quote.bound"),
        (sa.and_(is_note, in_danger), "quote.in_danger"),
        (sa.and_(is_note, _begins("promoted: ")), "model.promoted"),
        (sa.and_(is_note, _begins("budget: ")), "budget.reached"),
        (sa.and_(is_note, event.experiment.is_not(None), _begins("gate of ")), "gate.said"),
        (sa.and_(is_note, event.experiment.is_not(None), kept), "model.not_promoted"),
    )
    op.execute(_EVENT.update().values(topic=topic))


def _begins(text: str) -> sa.ColumnElement[bool]:
    return sa.func.substr(_EVENT.c.message, 1, len(text)) == text


def _shares() -> None:
    """How many cores of a server's own machine tasks of a team take at once."""
    op.add_column("budget", sa.Column("cpus_at_once", sa.Integer(), nullable=True))
