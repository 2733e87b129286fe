"""The outbox: one row for each event that is still to be sent to a subscriber, written with the event itself.

Messages are for those whom a recipe names; notices are what a team's webhooks are to be told: CloudEvents,
sent by `trainmaster.service.notifications.webhooks`, see `webhook_rows`.

A driver claims a message before sending it, and deletes the row when it was taken. It may die in
between: then the row is there still, and the next driver sends it again. Only the lease's holder may claim.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from trainmaster.db import tables as t
from trainmaster.db.leases import Lease
from trainmaster.spec.topics import TOPICS

#: For each subscription of a run the kinds of events that it wants.
Wanted = Sequence[Sequence[str]]


def wanted_kinds(connection: Connection, run: str) -> Wanted:
    """What a run's subscribers want."""
    stored = connection.execute(_SUBSCRIPTIONS, {"run": run}).scalar()
    found: Wanted = json.loads(stored) if stored else []
    return found


def insert_messages(
    connection: Connection, wanted: Wanted, events: Sequence[dict[str, Any]], ids: Sequence[int]
) -> None:
    """Write down to whom events are to be sent; ``ids`` are those of the events."""
    rows = [
        {"run_id": event["run_id"], "event_id": event_id, "subscription": number}
        for event, event_id in zip(events, ids, strict=True)
        for number, kinds in enumerate(wanted)
        if event["kind"] in kinds
    ]
    if rows:
        connection.execute(t.outbox.insert(), rows)


def messages_query(run: str, without: Collection[int] = (), limit: int = 100) -> sa.Select[Any]:
    """Messages of a run with their events: those that were tried least, and of these the oldest, first.

    Args:
        run: its id.
        without: subscriptions that are left out.
        limit: at most so many.
    """
    return (
        sa.select(t.outbox, *(column for column in t.event.c if column.name not in ("id", "run_id")))
        .join(t.event, t.event.c.id == t.outbox.c.event_id)
        .where(t.outbox.c.run_id == run, t.outbox.c.subscription.not_in(without))
        .order_by(t.outbox.c.tries, t.outbox.c.id)
        .limit(limit)
    )


def claim(connection: Connection, lease: Lease, message: int, tries: int) -> bool:
    """Claim a message for one more try than ``tries``.

    False if that is not ours to do: somebody else has, it was taken, or another process drives the run.
    """
    claimed = connection.execute(
        t.outbox.update()
        .where(t.outbox.c.id == message, t.outbox.c.tries == tries, _is_newest(lease))
        .values(tries=tries + 1)
    )
    return claimed.rowcount == 1


def end(connection: Connection, lease: Lease, message: int, note: dict[str, Any] | None) -> None:
    """A message was taken; or it is given up, and an event ``note`` says why, which is not sent."""
    ended = connection.execute(t.outbox.delete().where(t.outbox.c.id == message, _is_newest(lease)))
    if ended.rowcount and note is not None:
        connection.execute(t.event.insert(), note)


def insert_notices(connection: Connection, events: Sequence[Mapping[str, Any]]) -> None:
    """Write down to which webhooks of a run's team its events are to be sent, in their transaction."""
    topical = [(event["topic"], event) for event in events if event["topic"] in TOPICS]
    if not topical:
        return
    run = topical[0][1]["run_id"]
    hooks = connection.execute(
        sa.select(t.webhook.c.id, t.webhook.c.topics, t.webhook.c.team)
        .join(t.run, sa.func.coalesce(t.run.c.team, "") == t.webhook.c.team)
        .where(t.run.c.id == run, t.webhook.c.disabled_at.is_(None))
    ).all()
    for topic, event in topical:
        data = {
            "run": run,
            "team": hooks[0].team or None if hooks else None,
            **{key: event[key] for key in ("before", "after", "reason", "message", "experiment", "task")},
        }
        for hook in hooks:
            if topic in json.loads(hook.topics):
                insert_notice(connection, hook.id, topic, run, data, event["at"])


def insert_notice(
    connection: Connection, hook: str, topic: str, subject: str, data: Mapping[str, Any], now: float
) -> None:
    """One notice, as CloudEvents 1.0 has it."""
    name = f"msg_{secrets.token_hex(12)}"
    body = {
        "specversion": "1.0",
        "id": name,
        "source": "/trainmaster",
        "type": f"trainmaster.{topic}",
        "subject": subject,
        "time": datetime.fromtimestamp(now, UTC).isoformat(),
        "datacontenttype": "application/json",
        "data": data,
    }
    row = {"id": name, "webhook_id": hook, "topic": topic, "body": json.dumps(body), "at": now, "due_at": now}
    connection.execute(t.notice.insert().values(row))


def _is_newest(lease: Lease) -> sa.ColumnElement[bool]:
    """The run was undriven since; its driver may have released it: the last messages come after that."""
    return sa.exists().where(t.run.c.id == lease.run, t.run.c.lease_token == lease.token)


_SUBSCRIPTIONS = sa.select(t.run.c.notify).where(t.run.c.id == sa.bindparam("run"))
