"""``quote --measurements FILE``: points that the user measured, instead of a profile."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.advisor.model.measurement import Measurement
from trainmaster.advisor.quote.beliefs import STARTUP_UNSEEN_S
from trainmaster.control.task.gangs import workers_per_node
from trainmaster.dataclass import dataclass
from trainmaster.providers import Catalogue
from trainmaster.service.quotes.candidate_offers import catalogue_is_own
from trainmaster.spec import Experiment, Recipe, Strategy
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmaster.advisor.model.tables import Table

#: What a row may say beside what `predict` reads: the instance type that it was measured on.
INSTANCE: Final = "instance"


@dataclass(frozen=True)
class OwnPoints:
    """Measured points of a CSV, by experiment.

    Attributes:
        measurements: of each experiment that has rows.
        fingerprint: of the file.
        note: for the user.
    """

    measurements: Mapping[str, list[Measurement]]
    fingerprint: str
    note: str = ""

    @classmethod
    def read(cls, file: Path, recipe: Recipe, catalogue: Catalogue, *, may_fail: bool = False) -> OwnPoints:
        """Read and check it.

        Args:
            file: with the columns of `predict`'s measurements, and ``instance``.
            recipe: its experiments are the jobs, by their names; if there is one only, by the recipe's name
                too, or whatever the only job of the file is called.
            catalogue: has the types that rows name.
            may_fail: rows may lack their time: what they tried did not fit.

        Raises:
            UsageError: it has mistakes, no rows of any experiment, or types that the catalogue has not.
        """
        from trainmaster.advisor.model.tables import read_table

        table = read_table(file, measured=True, more=(INSTANCE,), may_fail=may_fail)
        jobs = _jobs(table, recipe)
        measurements = {
            name: [_measurement(table, row, recipe.experiments[name], catalogue) for row in rows]
            for name, rows in jobs.items()
        }
        digest = hashlib.sha256(file.read_bytes()).hexdigest()[:32]
        note = (
            f"from {file}: start-up, memory and pauses were not measured; a start-up of "
            f"{STARTUP_UNSEEN_S:g} s is assumed"
        )
        return cls(measurements, digest, note)


def _jobs(table: Table, recipe: Recipe) -> dict[str, list[int]]:
    """The rows of each experiment."""
    rows: dict[str, list[int]] = {}
    for row, job in enumerate(table.jobs):
        rows.setdefault(job, []).append(row)
    found = {name: rows[name] for name in recipe.experiments if name in rows}
    if not found and len(recipe.experiments) == 1:
        (name,) = recipe.experiments
        if recipe.name in rows:
            found = {name: rows[recipe.name]}
        elif len(rows) == 1:
            found = {name: next(iter(rows.values()))}
    if not found:
        names = ", ".join(repr(job) for job in list(rows)[:8])
        raise UsageError(
            f"{table.path}: job: it has rows of {names}, and none of an experiment of this recipe",
            f"Call the job as the experiment: {', '.join(recipe.experiments)}.",
        )
    return found


def _measurement(table: Table, row: int, experiment: Experiment, catalogue: Catalogue) -> Measurement:
    point = table.point(row)
    if point.nodes is None:  # as the recipe would spread them
        point = replace(point, nodes=math.ceil(point.workers / workers_per_node(experiment)))
    wanted = Strategy(experiment.distributed.strategy) if experiment.distributed else Strategy.ALLREDUCE
    if point.sync is not wanted:
        raise UsageError(
            f"{table.where(row)}: sync: found '{point.sync}'; experiments.{experiment.name} is '{wanted}'",
            "Leave such rows out, or give them a job of their own.",
        )
    return Measurement(
        point,
        startup_s=STARTUP_UNSEEN_S,
        offer=_measured_on(table, row, experiment, catalogue),
        does_not_fit=point.step_time_s is None or None,
    )


def _measured_on(table: Table, row: int, experiment: Experiment, catalogue: Catalogue) -> str:
    """The type that the row names, or the only one that the recipe allows; else this machine."""
    named = table.rows[row].get(INSTANCE, "")
    allowed = experiment.hardware.instance
    if not named and len(allowed) == 1 and not any(sign in allowed[0] for sign in "*?["):
        named = allowed[0]
    if not named or named == "local" or catalogue_is_own(catalogue):
        return "local"
    offer = catalogue.cheapest(named) or catalogue.cheapest(named, spot=True)
    if offer is None:
        raise UsageError(
            f"{table.where(row)}: {INSTANCE}: there is no {named!r} in '{catalogue.name}'",
            "Name a type that `trainmaster offers` shows, or leave it empty if it was this machine.",
        )
    return offer.instance_type


def with_shipped(catalogue: Catalogue) -> Catalogue:
    """A catalogue with what ships behind it: one may have measured on types that are not to be rented now."""
    from trainmaster.providers import load_catalogue

    return (
        catalogue if catalogue_is_own(catalogue) else catalogue.with_offers([*catalogue, *load_catalogue()])
    )
