"""What an event tells of is a column; before, notes were known by how they begin."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

_NAMES = ("kind", "after", "reason", "message", "experiment", "topic")
_EVENT = sa.table("event", *(sa.column(name, sa.Text()) for name in _NAMES))


def upgrade() -> None:
    """Notes that are there are looked at once more."""
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
