"""`History`: what was measured of an experiment before, in profiles and in runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy.engine import RowMapping

from trainmaster.artifacts import take_snapshot
from trainmaster.control.decide.task import Policy
from trainmaster.control.loop.recording import Recorded, Recorder, Where
from trainmaster.control.task.layout import Home
from trainmaster.db import Database, NewMeasurement
from trainmaster.executors import NodeCapacity, detect_capacity
from trainmaster.service.quotes.fingerprint import Fingerprint, code_of, fingerprint_of, local_device
from trainmaster.spec import Recipe
from trainmaster.spec.errors import StoreError

if TYPE_CHECKING:
    from trainmaster.advisor.model.experience import Experience
    from trainmaster.advisor.model.measurement import Measurement


_codes: dict[tuple[str, Path], str] = {}


@dataclass(frozen=True, slots=True)
class History:
    """Measurements of one experiment, newest first.

    Attributes:
        fingerprint: of the experiment as it is now.
        same: of the very same: code, data, parameters, image and device.
        similar: of others with the same command, launcher, strategy and device.
        team: whose measurements they are; None for the owner's.
    """

    fingerprint: Fingerprint
    same: list[Measurement] = field(default_factory=list)
    similar: list[Measurement] = field(default_factory=list)
    team: str | None = None


def histories(
    database: Database, home: Home, recipe: Recipe, snapshot: Path | None = None, team: str | None = None
) -> dict[str, History]:
    """By experiment.

    Args:
        database: the database.
        home: takes the snapshot of the code, which a run will need too.
        recipe: what was read.
        snapshot: of its code; None takes one.
        team: that asks; no team learns what another has measured, nor what the owner has (None).

    Raises:
        UsageError: its code cannot be read.
    """
    if snapshot is None:
        excluded = (home.root, home.cache, *recipe.secret_files)
        snapshot = take_snapshot(
            recipe.code, recipe.directory, home.snapshots, exclude=excluded, include=recipe.include
        ).path
    device, code = local_device(detect_capacity()), _code_of(recipe, snapshot)
    found = {}
    for name, experiment in recipe.experiments.items():
        key = fingerprint_of(recipe, experiment, code, device)
        found[name] = History(
            key,
            _read(database.measurements(key.exact, team)),
            _read(database.similar_measurements(key.similar, key.exact, team)),
            team,
        )
    return found


def experience_of(database: Database, *fingerprints: str, team: str | None = None) -> Experience | None:
    """What jobs other than these have shown of this machine.

    Args:
        database: the database.
        *fingerprints: of the jobs that are quoted; their own points count as such.
        team: that asks; None for the owner.
    """
    from trainmaster.advisor.model.experience import MOST_JOBS, Experience
    from trainmaster.advisor.model.knowledge import prepared
    from trainmaster.advisor.model.steptime import StepTimeModel

    jobs: dict[str, list[Measurement]] = {}
    for row in database.other_measurements(*fingerprints, team=team):
        for measurement in _read([row]):
            point = measurement.point
            if point is not None and point.step_time_s and measurement.offer == "local":
                jobs.setdefault(row["fingerprint"], []).append(measurement)
    learnt = []
    for found in jobs.values():
        points = [prepared(m, None) for m in found]
        if len({point.workers for point in points}) > 1:  # else it says nothing of how workers get on
            learnt.append(StepTimeModel.fit(points).coordinates)
        if len(learnt) == MOST_JOBS:
            break
    return Experience.of(learnt)


def make_recorder(
    database: Database,
    home: Home,
    run: str,
    recipe: Recipe,
    snapshot: Path,
    machine: NodeCapacity,
    policies: Mapping[str, Policy],
    where: Callable[[str], Where] | None = None,
) -> Recorder:
    """What keeps the measurements of a run that is driven here.

    Those of other machines are found again by the same fingerprint, and bear the name of what they ran on.

    Args:
        database: the database.
        home: that the run is in.
        run: its id.
        recipe: of the run.
        snapshot: its code.
        machine: this one.
        policies: per experiment.
        where: what an experiment runs on; None is this machine.
    """
    known: dict[str, str] = {}

    def keep(found: Sequence[Recorded]) -> None:
        try:
            code = known.setdefault("code", known.get("code") or code_of(recipe, snapshot))
        except OSError:  # the snapshot is gone: what was measured is unknown
            return
        device = local_device(machine)
        keys = {
            name: fingerprint_of(recipe, recipe.experiments[name], code, device)
            for name in {each.experiment for each in found}
        }
        rows = [
            NewMeasurement(
                id=each.attempt,
                fingerprint=keys[each.experiment].exact,
                similar=keys[each.experiment].similar,
                experiment=each.experiment,
                run_id=run,
                data=each.measurement.to_json(),
                measured_at=each.measurement.measured_at,
            )
            for each in found
        ]
        with suppress(StoreError):  # the run matters more, and says so itself if the database is away
            database.add_measurement(*rows, patient=False)

    return Recorder(
        run=run,
        recipe=recipe,
        policies=policies,
        where=where or (lambda _: Where("local", machine.cores)),
        attempt_directory=lambda experiment, task, attempt: (
            home.attempt(run, experiment, task, attempt).directory
        ),
        keep=keep,
    )


def _code_of(recipe: Recipe, snapshot: Path) -> str:
    """`code_of`, read once: a snapshot never changes, and a run asks for its history again and again."""
    key = (recipe.source_text, snapshot)
    if key not in _codes:
        _codes.clear()
        _codes[key] = code_of(recipe, snapshot)
    return _codes[key]


def _read(rows: Sequence[RowMapping]) -> list[Measurement]:
    from trainmaster.advisor.model.measurement import Measurement

    found = []
    for row in rows:
        try:
            found.append(Measurement.from_json(row["data"]))
        except (ValueError, TypeError, KeyError):  # a newer version wrote it: less is known, nothing is wrong
            continue
    return found
