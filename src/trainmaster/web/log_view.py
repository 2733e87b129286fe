"""`LogView`: what a page shows of a run's logs: the end of one, lines around one, or what was looked for."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from markupsafe import Markup
from pydantic import BaseModel, Field

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import UsageError
from trainmaster.web.log_text import LEVELS, level_of, log_html

if TYPE_CHECKING:
    from trainmaster.service.runs.log_lines import LogLine, LogLines, LogPiece
    from trainmaster.service.teams.team_runs import TeamRuns

#: So many lines are shown at once, and before the one that is asked for.
_ROWS: Final = 400
_BEFORE: Final = 20
#: Of a line more is not shown, and a search ends after that.
_WITHIN_S: Final = 5.0


class LogViewQuery(BaseModel):
    """What of the logs of a run is asked for, as the address has it.

    Attributes:
        experiment, task, attempt, member: whose; empty ones are chosen here.
        at: the same in one word, as `LogLines.key` has it.
        text, level: only lines with it, or of such a level or a worse one.
        line: around this one.
        system: of operating systems instead.
        shown, offset, number: which log is shown already, and from where on it is to be continued.
    """

    experiment: str = ""
    task: str = ""
    attempt: str = ""
    member: str = ""
    at: str = ""
    text: str = Field("", max_length=1000)
    level: str = ""
    line: int = 0
    system: str = ""
    shown: str = ""
    offset: int = Field(0, ge=0)
    number: int = Field(1, ge=1)

    @property
    def place(self) -> tuple[str | None, int | None, int | None, str | None]:
        """Experiment, task, attempt and member, as far as they are said."""
        experiment, task, attempt, member = self.experiment, self.task, self.attempt, self.member
        if self.at:
            experiment, task, attempt, member = (*self.at.split("/"), "", "", "", "")[:4]
        return experiment or None, _whole(task), _whole(attempt), member or None

    @property
    def pattern(self) -> re.Pattern[bytes] | None:
        """What lines must have; None for all of them."""
        if self.text:
            return re.compile(re.escape(self.text.encode()), re.IGNORECASE)
        if self.level not in LEVELS:
            return None
        worse = [LEVELS[each].pattern for each in LEVELS][: [*LEVELS].index(self.level) + 1]
        return re.compile(b"|".join(worse), re.M)


@dataclass(frozen=True, slots=True)
class LogRow:
    """A line as it is shown."""

    number: int
    level: str
    html: Markup

    @classmethod
    def of(cls, line: LogLine, text: str) -> LogRow:
        """Of a line; the text is marked in it."""
        return cls(line.number, level_of(line.text), log_html(line.text, text))


@dataclass(frozen=True, slots=True)
class LogView:
    """What is shown of a run's logs.

    Attributes:
        parts: logs with their rows, and how many lines were found in each; one without a search.
        piece: of the one log, where its rows end; None of a search.
    """

    parts: Sequence[tuple[LogLines, Sequence[LogRow], int]]
    piece: LogPiece | None

    @classmethod
    def of(cls, runs: TeamRuns, run: str, wanted: LogViewQuery) -> LogView:
        """What is asked for.

        Raises:
            UsageError: a number is none, or what is asked for is not there.
        """
        if wrong := next(
            (each for each in (wanted.task, wanted.attempt) if each and not each.isdecimal()), ""
        ):
            raise UsageError(f"{wrong!r} is no number", "Tasks are numbered from 0, attempts from 1.")
        found = runs.log_lines(run, *wanted.place)
        if (pattern := wanted.pattern) is not None:
            return cls(_search(found, pattern, wanted.text), None)
        log = next(found, None)
        if log is None:
            return cls((), None)
        if wanted.shown == log.key:
            piece = log.after(wanted.offset, wanted.number, _ROWS)
        elif wanted.line:
            piece = log.since_line(wanted.line - _BEFORE, _ROWS)
        else:
            piece = log.last(_ROWS)
        rows = [LogRow.of(line, "") for line in piece.lines]
        return cls([(log, rows, 0 if wanted.shown else log.count)], piece)

    @property
    def first(self) -> int:
        """Number of the first row."""
        return self.parts[0][1][0].number if self.parts and self.parts[0][1] else 1


def _search(
    logs: Iterable[LogLines], pattern: re.Pattern[bytes], text: str
) -> list[tuple[LogLines, Sequence[LogRow], int]]:
    found: list[tuple[LogLines, Sequence[LogRow], int]] = []
    left, until = _ROWS, time.monotonic() + _WITHIN_S
    for log in logs:
        lines, count = log.found(pattern, left)
        if count:
            found.append((log, [LogRow.of(line, text) for line in lines], count))
        left -= len(lines)
        if left <= 0 or time.monotonic() > until:
            break
    return found


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
