"""`RefusedRow`: a row of a catalogue that is not used, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that names no offer one could trust.

    Attributes:
        file: where it is written.
        line: from 1; 0 where the file has no lines of its own for it (JSON).
        subject: what it would have offered, such as ``aws ap-southeast-1 m4.large``.
        reason: what is wrong with it.
    """

    file: str
    line: int
    subject: str
    reason: str

    def __str__(self) -> str:
        """As compilers write it.

        >>> str(RefusedRow("mine.csv", 7, "aws m4.large", "the price is 0 USD per hour"))
        'mine.csv:7: aws m4.large: the price is 0 USD per hour'
        """
        where = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (where, self.subject, self.reason) if part)
