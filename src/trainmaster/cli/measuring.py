"""What is shown while a job is measured: one line that changes on a terminal, else one per phase."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from trainmaster.cli.output import duration, say

if TYPE_CHECKING:
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
