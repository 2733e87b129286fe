"""Topics: what an event of a run is about, for those who look for it; most can be sent to a team. Pure."""

from __future__ import annotations

from typing import Final

from trainmaster.spec.states import EndReason, State

QUOTE_BOUND: Final = "quote.bound"
QUOTE_IN_DANGER: Final = "quote.in_danger"
MODEL_PROMOTED: Final = "model.promoted"
BUDGET_REACHED: Final = "budget.reached"
APPROVAL_WANTED: Final = "approval.wanted"
APPROVAL_ANSWERED: Final = "approval.answered"
#: Webhooks do not send these; `status` shows what they say last.
NOT_PROMOTED: Final = "model.not_promoted"
GATE_SAID: Final = "gate.said"
#: Webhooks do not send it: the home drives a run again whose driver on a machine is gone.
TAKEN_BACK: Final = "run.taken_back"
_STARTED: Final = "run.started"
_ENDED: Final = "run.ended"
_NODE_LOST: Final = "run.node_lost"

#: What can be sent to teams.
TOPICS: Final = {
    _STARTED: "a run has started",
    _ENDED: "a run has ended",
    _NODE_LOST: "a machine of a run is lost",
    QUOTE_BOUND: "a run has its binding quote",
    QUOTE_IN_DANGER: "a run will take longer or cost more than quoted",
    MODEL_PROMOTED: "a run's model has become what an alias means",
    APPROVAL_WANTED: "an experiment waits for a person's approval",
    APPROVAL_ANSWERED: "a person has approved or denied an experiment",
    "workflow.refused": "a workflow could not start a run",
    BUDGET_REACHED: "50, 80 or 100 % of the month's budget are spent",
}


def topic_of(kind: str, after: State | None, reason: EndReason | None) -> str | None:
    """The topic of an event that says itself what it tells of; None for most.

    >>> topic_of("run", State.DONE, None), topic_of("note", None, EndReason.NODE_LOST)
    ('run.ended', 'run.node_lost')
    """
    if kind == "run":
        return {State.RUNNING: _STARTED, State.DONE: _ENDED}.get(after) if after else None
    return _NODE_LOST if kind == "note" and reason is EndReason.NODE_LOST else None
