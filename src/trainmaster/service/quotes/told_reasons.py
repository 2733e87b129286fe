"""`ToldReasons`: why nothing is changed of a run, each reason once, whoever drives the run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_NO_DIGITS: Final = str.maketrans("", "", "0123456789.")


class ToldReasons:
    """Of one run.

    Args:
        most: of an attempt so many are told.
        before: experiments, and lines that earlier drivers of the run have told.
    """

    def __init__(self, most: int, before: Iterable[tuple[str, str]] = ()) -> None:
        self._most = most
        self._before = {(name, _reason(line)) for name, line in before}
        self._told: dict[str, list[str]] = {}

    def is_new(self, experiment: str, attempt: str, words: str) -> bool:
        """Whether a line is to be told; then it has been.

        >>> told = ToldReasons(3, [("train", "it is slow: the last 30 s are too short")])
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
