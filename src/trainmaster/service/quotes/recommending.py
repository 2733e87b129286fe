"""How many machines a job should have, by what was measured of it: Anwar's question about one's own runs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from trainmaster.advisor.papers.measured_table import PUBLISHED, MeasuredTable
from trainmaster.advisor.papers.recommend import RecommendQuery, recommend
from trainmaster.db import Database, queries
from trainmaster.db.queries import ALL_RUNS, RunFilter
from trainmaster.providers import load_catalogue
from trainmaster.service.quotes.fingerprint import kinship
from trainmaster.service.quotes.history import KIN, measured_rows
from trainmaster.spec.errors import UsageError


def recommended(
    database: Database, wish: RecommendQuery, profile: str = PUBLISHED, which: RunFilter = ALL_RUNS
) -> dict[str, Any]:
    """The object of ``trainmaster recommend --json``.

    Args:
        database: of the home.
        wish: what is asked.
        profile: `PUBLISHED`, or ``RUN`` or ``RUN/EXPERIMENT``: what was measured of that job, in this and in
            other runs.
        which: only what was measured in these.

    Raises:
        UsageError: a wish that cannot be, or the run has several jobs.
        NotFoundError: there is no such run, or nothing was measured there.
    """
    if profile == PUBLISHED:
        return recommended_by_table(wish)
    run, _, experiment = profile.partition("/")
    database.run_row(run)
    rows = queries.profile(database, run, experiment or None, which)
    if len({row["experiment"] for row in rows}) > 1 and not experiment:
        names = ", ".join(sorted({row["experiment"] for row in rows}))
        raise UsageError(f"{run} has measured several jobs: {names}", f"Ask for {run}/EXPERIMENT.")
    found = [(row["run_id"], each) for row, each in measured_rows(rows)]
    own = next((each.code_lines or () for of, each in found if of == run), ())
    measured = [each for _, each in found if kinship(own, each.code_lines or ()) >= KIN]
    offer = measured[0].offer if measured else ""  # the newest measurement's: types are not comparable
    like = [each for each in measured if each.offer == offer]
    return recommend(MeasuredTable.of_measurements(profile, like, _memory_bytes(offer)), wish)


@cache
def _memory_bytes(offer: str) -> float | None:
    """Main memory of a type of machines, as it is published; None if unknown."""
    found = load_catalogue("builtin").cheapest(offer)
    return None if found is None else float(found.memory_bytes)


def recommended_by_table(wish: RecommendQuery, file: Path | None = None) -> dict[str, Any]:
    """The same by a table of one's own, or by the published one; needs no home.

    Args:
        wish: what is asked.
        file: CSV, see `MeasuredTable.read`.

    Raises:
        UsageError: a wish that cannot be, or a table with mistakes.
        NotFoundError: nothing was measured there.
    """
    return recommend(MeasuredTable.of_file(file) if file is not None else MeasuredTable.published(), wish)
