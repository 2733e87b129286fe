"""What is shown while a job is measured: one line that changes on a terminal, else one per phase."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from trainmaster.api import Accepted, RunPlan
from trainmaster.cli.output import can_ask, duration, say
from trainmaster.cli.renting import agree, show_quote
from trainmaster.spec.errors import RecipeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trainmaster.api import ClientProtocol
    from trainmaster.api.protocol import Stream
    from trainmaster.service import ProfilePhase, ProfileProgress


class Measuring:
    """Shows `ProfileProgress` on standard error."""

    def __init__(self) -> None:
        self._shown: tuple[str, int, ProfilePhase] | None = None
        self._terminal = sys.stderr.isatty()

    def show(self, progress: ProfileProgress) -> None:
        """How far it is now."""
        workers = f" with {progress.workers} workers" if progress.workers > 1 else ""
        what = f"{progress.experiment}{workers}: {progress.phase.value}"
        ended = progress.phase == "stopping"
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{what}{_numbers(progress)}" + ("\n" if ended else ""))
            sys.stderr.flush()
            return
        now = (progress.experiment, progress.workers, progress.phase)
        if now != self._shown:
            self._shown = now
            say(what + (_numbers(progress) if ended else ""))


def watched(stream: Stream[Any], tell: Callable[[str], None] = say) -> Any:  # noqa: ANN401
    """Show what is told while a run is planned or a recipe quoted; the plan, or the quote.

    Args:
        stream: tells it.
        tell: shows lines of a quote.

    Raises:
        KeyboardInterrupt: Ctrl-C, and nothing was measured.
    """
    from trainmaster.api.streams import interruptible

    measuring, found = Measuring(), None
    with interruptible(stream):
        for found in stream:
            if isinstance(found, str):
                say(found)
            elif not isinstance(found, RunPlan):
                from trainmaster.service import ProfileProgress

                if isinstance(found, ProfileProgress):
                    measuring.show(found)
                    continue

                show_quote(found, tell)
    return found


def start_made(client: ClientProtocol, recipe: Path, *, yes: bool) -> tuple[RunPlan, Accepted]:
    """Start a run by a recipe that was made of options: the user has written no file of these lines.

    Args:
        client: plans and starts it.
        recipe: the file, which may go then.
        yes: the user has agreed to the costs before.

    Raises:
        UsageError: an option is wrong, or the user does not want it; nothing was started.
    """
    from trainmaster.spec import read_recipe

    try:
        plan = watched(client.plan_run(read_recipe(recipe), str(recipe), can_agree=yes or can_ask()))
    except RecipeError as error:
        raise UsageError("\n".join(f"{each.key_path}: {each.message}" for each in error.mistakes)) from None
    agree(client, plan, yes=yes)
    return plan, client.accept_run(plan.id, agreed_usd_per_hour=plan.most_usd_per_hour)


def _numbers(progress: ProfileProgress) -> str:
    text = ""
    if progress.step_time_s is not None:
        text += f", {progress.steps} steps of {_short(progress.step_time_s)}"
    if progress.left_s is not None and progress.phase == "measuring":
        text += f", at most {duration(progress.left_s)} left"
    return text


def _short(seconds: float) -> str:
    """A step time for people.

    >>> _short(0.0123), _short(2.5)
    ('12.3 ms', '2.5 s')
    """
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
