"""Topics: what an event of a run is about, for those who look for it; most can be sent to a team. Pure.

To whom a run's events are sent: the nouns of ``notify`` in a recipe.
"""

from __future__ import annotations

from typing import Annotated, Final

from trainmaster.spec.reading import Key, Noun, choice, list_of, noun, pattern, text
from trainmaster.spec.states import EndReason, State

#: Kinds of events, as `trainmaster.api.Event` has them.
EVENT_KINDS: Final = ("run", "experiment", "task", "note")
_EVENTS: Final = list_of(choice(*EVENT_KINDS), "write kinds of events such as [run, experiment]", single=True)
NOTIFIER_NAME: Final = r"[a-z][a-z0-9_-]*"


class Subscription(Noun):
    """One receiver of a run's events.

    Attributes:
        notifier: what tells it, by name (``by`` in the recipe).
        to: what that needs to know: of ``command`` the command.
        events: kinds of events that are told.
    """

    notifier: Annotated[str, Key("by", pattern(NOTIFIER_NAME, "write a notifier's name such as command"))] = (
        "command"
    )
    to: Annotated[
        str,
        Key(
            "to", text("write what the notifier needs, a command"), required="write what tells you, a command"
        ),
    ]
    events: Annotated[tuple[str, ...], Key("events", _EVENTS)] = ("run",)


read_notify = list_of(noun(Subscription), "write a list, such as [{to: 'mail -s training me@example.org'}]")


QUOTE_BOUND: Final = "quote.bound"
QUOTE_IN_DANGER: Final = "quote.in_danger"
MODEL_PROMOTED: Final = "model.promoted"
BUDGET_REACHED: Final = "budget.reached"
APPROVAL_WANTED: Final = "approval.wanted"
APPROVAL_ANSWERED: Final = "approval.answered"
#: Webhooks do not send these; `status` shows what they say last.
NOT_PROMOTED: Final = "model.not_promoted"
GATE_SAID: Final = "gate.said"
ADAPTED: Final = "run.adapted"
OUTPUT_LOST: Final = "task.output_lost"
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
