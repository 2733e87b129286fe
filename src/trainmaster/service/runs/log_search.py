"""`search_logs`: lines with a text in the logs of many runs, within bounds of time and number."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from trainmaster.db import queries
from trainmaster.db.queries import RunFilter
from trainmaster.service.service import Service
from trainmaster.spec.errors import TrainmasterError, UsageError

#: So many lines are given by default.
LINES: Final = 200
#: Of one run; its own logs can be searched for the rest.
OF_A_RUN: Final = 20
#: An answer comes after that.
WITHIN_S: Final = 5.0
#: Of a line more is not shown.
_LINE_CHARACTERS: Final = 1000
_RUNS: Final = 100


def search_logs(
    service: Service,
    which: RunFilter,
    text: str,
    limit: int = LINES,
    after: str | None = None,
    since: str | None = None,
    within_s: float = WITHIN_S,
) -> dict[str, Any]:
    """Look through the logs of members and machines, those of the newest runs first.

    Args:
        service: of the home.
        which: runs that whoever asks may see.
        text: as it is, but for upper and lower case.
        limit: at most so many lines.
        after: ``next`` of the answer before.
        since: only what was written since so long ago, such as ``24h``.
        within_s: it ends after that, and says where to go on.

    Returns:
        See `ClientProtocol.search_logs`.

    Raises:
        UsageError: no text, number or time.
        NotFoundError: there is no run ``after``.
    """
    from trainmaster.service.runs.log_streams import LineChoice, LogStreams

    if not text or limit < 1:
        raise UsageError("there is nothing to search for", "Give a text, and a limit of 1 or more.")
    now, pattern = time.time(), re.compile(re.escape(text.encode()), re.IGNORECASE)
    found = LineChoice.of(None, None, since, now)
    choice = LineChoice(pattern=pattern, since=None if found is None else found.since)
    if after is not None:
        service.database.run_row(after)
    ends_at = time.monotonic() + within_s

    def is_late() -> bool:
        return time.monotonic() > ends_at

    lines: list[dict[str, Any]] = []
    cut: list[str] = []
    count = 0
    last = after
    for row in _rows(service, which, after):
        if count and (len(lines) >= limit or is_late()):
            return {"lines": lines, "runs": count, "cut": cut, "next": last}
        last, count = row["id"], count + 1
        if choice.since is not None and (row["ended_at"] or now) < choice.since:
            continue
        try:
            streams = LogStreams(service, last, None, None, None, choice, system=None, is_enough=is_late)
            most = min(OF_A_RUN, limit - len(lines))
            found_lines = (
                line for piece in streams.read(follow=False) for line in piece.split(b"\n") if line
            )
            mine = list(islice(found_lines, most + 1))
        except TrainmasterError:  # of a home that cannot be read from here, or removed just now
            cut.append(last)
            continue
        lines += [_hit(last, line) for line in mine[:most]]
        if len(mine) > most or is_late():
            cut.append(last)
    return {"lines": lines, "runs": count, "cut": cut, "next": None}


def _rows(service: Service, which: RunFilter, after: str | None) -> Iterator[Any]:
    while page := queries.runs(service.database, _RUNS, after, which):
        yield from page
        after = page[-1]["id"]


def _hit(run: str, line: bytes) -> dict[str, Any]:
    """A line, and whose it is.

    >>> _hit("r-1", b"train/0#2 worker-1 | loss | nan")["line"]
    'loss | nan'
    """
    label, _, said = line.decode("utf-8", "replace").partition(" | ")
    place, _, member = label.rpartition(" ")
    experiment, _, number = place.rpartition("/")
    task, _, attempt = number.partition("#")
    return {
        "run": run,
        "experiment": experiment,
        "task": int(task),
        "attempt": int(attempt),
        "member": member,
        "line": said[:_LINE_CHARACTERS],
    }
