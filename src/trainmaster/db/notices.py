"""Notices: what a team's webhooks are still to be told, one row each, written with the event itself.

They are CloudEvents, sent by `trainmaster.service.notifications.webhooks`; see `webhook_rows`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from trainmaster.db import tables as t
from trainmaster.spec.topics import TOPICS


def insert_notices(connection: Connection, events: Sequence[Mapping[str, Any]]) -> None:
    """Write down which webhooks of a run's team are to be told of its events, in their transaction."""
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
