"""Events: what happened to a run, one row each, in the transaction that made it so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy.engine import Connection

from trainmaster.db import outbox
from trainmaster.db import tables as t
from trainmaster.db.changes import EventChange, ExperimentChange, Note, RunChange, TaskChange
from trainmaster.spec.redaction import redacted
from trainmaster.spec.states import EndReason, State
from trainmaster.spec.topics import topic_of

_SAID = ("before", "after", "reason", "message", "experiment", "task", "attempt", "topic")
_KINDS = {TaskChange: "task", ExperimentChange: "experiment", RunChange: "run", Note: "note"}


def change_event(run: str, change: EventChange, now: float) -> dict[str, Any]:
    """The event that goes with a change, as a row."""
    said = {field.name: getattr(change, field.name) for field in fields(change) if field.name in _SAID}
    return event_row(run, now, _KINDS[type(change)], **said)


def event_row(
    run: str,
    at: float,
    kind: str,
    before: State | None = None,
    after: State | None = None,
    reason: EndReason | None = None,
    message: str = "",
    experiment: str | None = None,
    task: int | None = None,
    attempt: int | None = None,
    topic: str | None = None,
) -> dict[str, Any]:
    """One event as a row; of what follows from the rest of it the topic need not be given."""
    return {
        "run_id": run, "at": at, "kind": kind, "before": before, "after": after, "reason": reason,
        "message": storable(message), "experiment": experiment, "task": task, "attempt": attempt,
        "topic": topic or topic_of(kind, after, reason),
    }  # fmt: skip


def insert_events(
    connection: Connection, events: Sequence[dict[str, Any]], wanted: outbox.Wanted | None = None
) -> None:
    """Write events of a run in their order, and to whom they are to be sent.

    Args:
        connection: in the transaction of what has happened.
        events: rows of `event_row`.
        wanted: see `outbox.wanted_kinds`, if that was looked up already.
    """
    if not events:
        return
    outbox.insert_notices(connection, events)
    if wanted is None:
        wanted = outbox.wanted_kinds(connection, events[0]["run_id"])
    if not wanted:
        connection.execute(t.event.insert(), events)
        return
    insert = t.event.insert().returning(t.event.c.id, sort_by_parameter_order=True)
    outbox.insert_messages(connection, wanted, events, connection.execute(insert, events).scalars().all())


def json_column(value: object) -> str:
    r"""How JSON is written into a text column: compact, never NaN, and so that every database reads it.

    >>> print(json_column({"a\0": ["\udce9", 1.0]}))
    {"a\ufffd":["\\udce9",1.0]}
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    if "\\u0000" in text or "\\ud" in text:  # of names and words that tasks report
        text = json.dumps(_readable(value), separators=(",", ":"), allow_nan=False)
    return text


def _readable(value: Any) -> Any:  # noqa: ANN401 - whatever JSON can say
    """The same without NUL and halves of surrogates, for which PostgreSQL refuses the whole query."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_readable(name): _readable(each) for name, each in value.items()}
    return [_readable(each) for each in value] if isinstance(value, list | tuple) else value


def storable(text: str) -> str:
    r"""A text that every database takes: what tasks print may hold anything.

    >>> storable("caf\xe9 \x00 \udce9") == "caf\xe9 \ufffd \\udce9"
    True
    """
    text = redacted(text).replace("\0", "\ufffd")  # PostgreSQL refuses it
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
