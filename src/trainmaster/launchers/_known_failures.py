"""What the end of a log may say, and what to do about it: shared by the launchers."""

from __future__ import annotations

from collections.abc import Sequence

#: (what the log shows, what it means and what to do). The first match counts: causes stand before
#: the consequences that they have on the other members.
KnownFailures = Sequence[tuple[str, str]]

PEER_ENDED = "Another member of the gang ended first; its log shows the cause."


def not_installed(module: str, package: str) -> tuple[str, str]:
    """The entry for a Python package that is missing.

    >>> not_installed("jax", "jax")[0]
    "No module named 'jax'"
    """
    return (
        f"No module named '{module}'",
        f"{package} is not installed for the Python that ran: add `setup: pip install {package}` to the "
        "experiment, or `container: auto` if it has a `framework` with an image, or activate the virtual "
        "environment that has it before `trainmaster run`.",
    )


def advice(known: KnownFailures, log_tail: str) -> str:
    """What to do about the first sign that the log shows; empty when it shows none.

    >>> advice([("disk on fire", "Pour water.")], "oh no: disk on fire")
    'Pour water.'
    """
    return next((text for sign, text in known if sign in log_tail), "")
