"""Topics that a team can be told of, and which events of a run they are. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trainmaster.spec.states import EndReason, State

#: How notes of a run begin that have a topic.
QUOTE_BOUND: Final = "quote: "
QUOTE_IN_DANGER: Final = "it will "
BUDGET: Final = "budget: "
PROMOTED: Final = "promoted: "

TOPICS: Final = {
    "run.started": "a run has started",
    "run.ended": "a run has ended",
    "run.node_lost": "a machine of a run is lost",
    "quote.bound": "a run has its binding quote",
    "quote.in_danger": "a run will take longer or cost more than quoted",
    "model.promoted": "a run's model has become what an alias means",
    "workflow.refused": "a workflow could not start a run",
    "budget.reached": "50, 80 or 100 % of the month's budget are spent",
}


def topic_of(event: Mapping[str, Any]) -> str | None:
    """The topic of an event of a run; None for most.

    >>> topic_of({"kind": "run", "after": "DONE", "reason": "SUCCEEDED", "message": ""})
    'run.ended'
    """
    if event["kind"] == "run":
        return {State.RUNNING: "run.started", State.DONE: "run.ended"}.get(event["after"])
    if event["kind"] != "note":
        return None
    if event["reason"] == EndReason.NODE_LOST:
        return "run.node_lost"
    message = event["message"]
    if message.startswith(QUOTE_BOUND):
        return "quote.bound"
    if message.startswith(QUOTE_IN_DANGER) and "than quoted" in message:
        return "quote.in_danger"
    if message.startswith(PROMOTED):
        return "model.promoted"
    return "budget.reached" if message.startswith(BUDGET) else None
