"""To whom a run's events are sent: the nouns of ``notify`` in a recipe."""

from __future__ import annotations

from typing import Annotated, Final

from trainmaster.spec.reading import Key, Noun, choice, list_of, noun, pattern, text

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
