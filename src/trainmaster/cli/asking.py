"""What is put before the user before money is spent."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainmaster.cli.output import say
from trainmaster.service.quote_record import price
from trainmaster.spec.errors import UsageError


def show_offer(lines: Sequence[str], notes: Sequence[str]) -> None:
    """The machines, their price, and what is to be expected."""
    for line in lines:
        say(line)
    for note in notes:
        say(f"note: {note}")


def require_consent_possible(usd_per_hour: float, *, yes: bool) -> None:
    """Nobody can be asked without a terminal.

    Args:
        usd_per_hour: at most to be paid.
        yes: the user has agreed before.

    Raises:
        UsageError: there is none, and nobody has agreed.
    """
    if can_consent(yes=yes):
        return
    raise UsageError(
        f"this rents machines for at most {price(usd_per_hour)} per hour, and there is no terminal to ask on",
        "Nothing was started. `--yes` agrees.",
    )


def ask_consent(usd_per_hour: float, *, yes: bool) -> bool:
    """Ask whether so much may be spent; anything but yes is no.

    Args:
        usd_per_hour: at most to be paid.
        yes: the user has agreed before.
    """
    if yes:
        return True
    sys.stderr.write(f"Rent this for at most {price(usd_per_hour)} per hour? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def can_consent(*, yes: bool) -> bool:
    """Whether the user has agreed before, or can be asked.

    Args:
        yes: the user has agreed before.
    """
    return yes or (sys.stdin.isatty() and sys.stderr.isatty())
