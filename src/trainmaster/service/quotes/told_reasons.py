"""Lines about changed machines and sizes; `ReportedReasons`: why nothing is changed, each reason once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from trainmaster.db import Note
from trainmaster.spec.topics import ADAPTED

if TYPE_CHECKING:
    from trainmaster.control.loop.run_state import Task

_NO_DIGITS: Final = str.maketrans("", "", "0123456789.")


def adapted(task: Task, words: str) -> Note:
    """A line of what was decided of a task's machines or members."""
    return Note(f"{task.experiment}: {words}", task.experiment, topic=ADAPTED)


class ReportedReasons:
    """Of one run.

    Args:
        most: of an attempt so many are told.
        before: experiments, and lines that earlier drivers of the run have told.
    """

    def __init__(self, most: int, before: Iterable[tuple[str, str]] = ()) -> None:
        self._most = most
        self._before = {(name, _reason(line)) for name, line in before}
        self._told: dict[str, list[str]] = {}

    def tell(self, task: Task, attempt: str, words: str) -> list[Note]:
        """Why nothing is changed of a task, if that is to be told; see `is_new`."""
        return [adapted(task, words)] if self.is_new(task.experiment, attempt, words) else []

    def is_new(self, experiment: str, attempt: str, words: str) -> bool:
        """Whether a line is to be told; then it has been.

        >>> told = ReportedReasons(3, [("train", "it is slow: the last 30 s are too short")])
        >>> told.is_new("train", "x/train/0/2", "it is slow: the last 20 s are too short")
        False
        >>> told.is_new("train", "x/train/0/2", "it is slow: there is no checkpoint")
        True

        Args:
            experiment: of the attempt.
            attempt: its id.
            words: whose part after the last colon is the reason; numbers in it do not make it another one.
        """
        told, reason = self._told.setdefault(attempt, []), _reason(words)
        if not words or reason in told or (experiment, reason) in self._before or len(told) >= self._most:
            return False
        told.append(reason)
        return True

    def enough(self, attempt: str) -> None:
        """Of an attempt nothing more is told."""
        self._told.setdefault(attempt, []).extend([""] * self._most)


def _reason(words: str) -> str:
    return words.rpartition(":")[2].translate(_NO_DIGITS)
