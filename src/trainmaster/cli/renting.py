"""What is put before the user before money is spent."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainmaster.cli.output import can_ask, say
from trainmaster.spec.errors import UsageError
from trainmaster.spec.units import price

if TYPE_CHECKING:
    from trainmaster.api import ClientProtocol, RunPlan


def agree(client: ClientProtocol, plan: RunPlan, *, yes: bool) -> None:
    """Show what a run would rent and cost, and ask. Hosts of one's own cost nothing: there is no question.

    Args:
        client: has planned it.
        plan: of the run.
        yes: the user has agreed before.

    Raises:
        UsageError: the user does not want it, or there is no terminal to ask on; nothing was started.
    """
    told = list(plan.lines)
    if plan.quote is not None:
        from trainmaster.cli.quote import wide_line

        line = client.score_line(plan.provider)
        told += [line] if line else []
        told += [wide for one in plan.quote.experiments.values() if (wide := wide_line(one))]
    for line in (*told, *(f"note: {note}" for note in plan.notes)):
        say(line)
    if yes or not plan.most_usd_per_hour:
        return
    usd = f"at most {price(plan.most_usd_per_hour)} per hour"
    if not can_ask():
        raise UsageError(
            f"this rents machines for {usd}, and there is no terminal to ask on",
            "Nothing was started. `--yes` agrees.",
        )
    sys.stderr.write(f"Rent this for {usd}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("not rented: you did not agree", "Nothing was started.")


def agree_to_send(lines: Sequence[str], *, yes: bool) -> None:
    """Show what is sent to the machine that is to drive a run, and ask.

    Args:
        lines: what that is.
        yes: the user has agreed before.

    Raises:
        UsageError: the user does not want it, or there is no terminal to ask on; nothing was started.
    """
    say("its first machine is sent, into memory where nothing else is said:")
    for line in lines:
        say(f"  {line}")
    if yes:
        return
    if not can_ask():
        raise UsageError(
            "--on-cluster sends credentials to a machine, and there is no terminal to ask on",
            "Nothing was started. `--yes` agrees.",
        )
    sys.stderr.write("Send them? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("not sent: you did not agree", "Nothing was started.")
