"""What was measured of an experiment before, in profiles and in runs: `History`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import exp, hypot, log
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy.engine import RowMapping

from trainmaster.advisor.model.intervals import median
from trainmaster.advisor.model.task_numbers import numbers_of_task
from trainmaster.artifacts import take_snapshot
from trainmaster.control.decide.task import Policy
from trainmaster.control.loop.recording import AttemptMachine, Recorded, RecordedPhase, Recorder
from trainmaster.control.task.layout import Home
from trainmaster.dataclass import dataclass, field
from trainmaster.db import Database, NewMeasurement
from trainmaster.executors.capacity import NodeCapacity, detect_capacity
from trainmaster.service.quotes.fingerprint import (
    CodeFingerprint,
    Fingerprint,
    code_of,
    fingerprint_of,
    kinship,
    local_device_name,
)
from trainmaster.service.quotes.home_load import HomeLoad, PastDuration
from trainmaster.spec import Experiment, Recipe, Strategy
from trainmaster.spec.errors import StoreError, TrainmasterError
from trainmaster.spec.facts import RunFacts
from trainmaster.spec.processor_limit import check_processor_limit
from trainmaster.spec.recipe_parts import named_places
from trainmaster.spec.until import Until

if TYPE_CHECKING:
    from trainmaster.advisor.market.load import LoadCorrection
    from trainmaster.advisor.model.experience import Experience
    from trainmaster.advisor.model.measurement import Measurement, ObservedCurve
    from trainmaster.service.quotes.earlier_trials import EarlierTrials

#: In the home of a machine that drives a run for another home.
DEVICE_FILE: Final = "device"
#: Another version of a job has at least so much of its code's lines in common with it.
KIN: Final = 0.5
#: Standard deviations to either side that 90 % are within.
_Z90: Final = 1.645
#: Of so many attempts without a target the metrics are read for one.
_MOST_READ: Final = 12
#: Of each curve so many points.
_POINTS: Final = 4096

_codes: dict[tuple[str, Path], CodeFingerprint] = {}


@dataclass(frozen=True, slots=True)
class History:
    """Measurements of one experiment, newest first.

    Attributes:
        fingerprint: of the experiment as it is now.
        same: of the very same: code, data, parameters, image and device.
        similar: of other versions of it: most lines of their code are the same, and files of the command,
            launcher, strategy and device are. `Measurement.step_spread` says how far that is right.
        team: whose measurements they are; None for the owner's.
        earlier_trials: of a sweep, what each trial made in earlier runs of it; see `trials_of_earlier_runs`.
        has_lent_length: the very same was never seen to its end, and is as long as another version was.
    """

    fingerprint: Fingerprint
    same: list[Measurement] = field(default_factory=list)
    similar: list[Measurement] = field(default_factory=list)
    team: str | None = None
    earlier_trials: tuple[EarlierTrials, ...] = ()
    has_lent_length: bool = False


def histories(
    database: Database,
    home: Home,
    recipe: Recipe,
    snapshot: Path | None = None,
    team: str | None = None,
    load: HomeLoad | None = None,
) -> dict[str, History]:
    """By experiment.

    Args:
        database: the database.
        home: takes the snapshot of the code, which a run will need too.
        recipe: what was read.
        snapshot: of its code; None takes one.
        team: that asks; no team learns what another has measured, nor what the owner has (None).
        load: to tell it for, see `HomeLoad.of`; None: that of now where its places are this machine.

    Raises:
        UsageError: its code cannot be read.
    """
    from trainmaster.advisor.market.workload import Workload
    from trainmaster.service.quotes.job_numbers import (
        as_long,
        borrowed,
        borrowing_spread,
        in_one_unit,
        lengths_seen,
        with_length,
    )

    load = load or HomeLoad.now().of(named_places(recipe))
    if snapshot is None:
        excluded = (home.root, home.cache, *recipe.secret_files)
        snapshot = take_snapshot(
            recipe.code, recipe.directory, home.snapshots, exclude=excluded, include=recipe.include
        ).path
    device, code = device_of(home), _code_of(recipe, snapshot)
    found = {}
    for name, experiment in recipe.experiments.items():
        check_processor_limit()
        key = fingerprint_of(recipe, experiment, code, device)
        rows = database.measurements(key.exact, team)
        others = database.similar_measurements(key.similar, key.exact, team)
        kin_rows = [row for row, each in measured_rows(others) if _is_kin(key, each)]
        rowed = [
            (row, sized)
            for some in (rows, kin_rows)
            for read in (_with_curves(home, experiment, some),)
            for (row, _), sized in zip(read, _of_this_size(experiment, [m for _, m in read]), strict=True)
        ]
        told = _at_load(database, rowed, load)
        own, kin = (
            [(name, m) for name, m in told if (name == key.exact) is is_own] for is_own in (True, False)
        )
        has_length = Workload.of(experiment, 0).has_length
        own, kin = in_one_unit(own, kin, "step" if has_length else "")
        lengths = lengths_seen([each for _, each in (*own, *kin)])
        same = [as_long(each, key.numbers, lengths) for _, each in own]
        lent = same
        if not has_length:
            wholes = [as_long(each, key.numbers, lengths) for _, each in kin]
            lent = with_length(same, wholes, borrowing_spread(kin, lengths))
        has_lent = lent != same
        trials: tuple[EarlierTrials, ...] = ()
        if experiment.search is not None and experiment.search.pruner is not None:
            from trainmaster.service.quotes.earlier_trials import trials_of_earlier_runs

            trials = trials_of_earlier_runs(database, recipe, name, (row["run_id"] for row in rows))
        kin_now = borrowed(key.numbers, kin, lengths)
        if not key.may_save:
            # What has published some all the same does that by a package.
            lent, kin_now = (
                [replace(each, saves_every_s=each.saves_every_s or 0.0) for each in some]
                for some in (lent, kin_now)
            )
        else:  # another version that saved nothing says nothing of this one
            kin_now = [replace(each, saves_every_s=each.saves_every_s or None) for each in kin_now]
        found[name] = History(key, lent, kin_now, team, trials, has_lent)
    return found


def _is_kin(key: Fingerprint, measured: Measurement) -> bool:
    return kinship(key.lines, measured.code_lines or ()) >= KIN


def _of_this_size(experiment: Experiment, measured: Sequence[Measurement]) -> list[Measurement]:
    """Without the time that another number of workers or servers took to the end: they shared the work.

    Where only others were seen, and no number of steps says more, theirs count: it may be shared by all
    workers, or by none. Half of that is taken (log), with a doubt that reaches both.
    """
    asked = experiment.distributed
    if asked is None:
        return list(measured)
    from trainmaster.advisor.market.workload import Workload

    size = (asked.workers, asked.parameter_servers)
    apart = [
        m.point is not None and (m.point.workers, m.point.parameter_servers or 0) != size for m in measured
    ]
    is_known = any(m.duration_s for m, other in zip(measured, apart, strict=True) if not other)
    lends = any(apart) and not is_known and not Workload.of(experiment, 0).has_length

    def told(m: Measurement) -> Measurement:
        if m.point is None or not m.duration_s or not lends or isinstance(asked.workers, str):
            return replace(m, duration_s=None)
        fewer = log(m.point.workers / asked.workers)
        servers = log(max(m.point.parameter_servers or 0, 1) / max(asked.parameter_servers, 1))
        doubt = hypot(m.step_spread, (abs(fewer) + abs(servers)) / 2 / _Z90)
        return replace(m, duration_s=m.duration_s * exp(fewer / 2), step_spread=doubt)

    return [told(m) if other else m for m, other in zip(measured, apart, strict=True)]


def _with_curves(
    home: Home, experiment: Experiment, rows: Sequence[RowMapping]
) -> list[tuple[RowMapping, Measurement]]:
    """Rows and measurements; where a target is asked for, with the curves of runs that had none."""
    until, found, left = experiment.ends_at, list[tuple[RowMapping, "Measurement"]](), _MOST_READ
    for row, each in measured_rows(rows):
        told = each
        if until is not None and left and row["run_id"] and not _tells(each, until):
            left -= 1
            curve = _reported(home, experiment, row, each.steps_done)
            told = replace(each, curve=None if curve is None else replace(curve, batch=_batch(each)))
        found.append((row, told))
    return found


def _at_load(
    database: Database, told: Sequence[tuple[RowMapping, Measurement]], load: HomeLoad
) -> list[tuple[str, Measurement]]:
    """Fingerprints and measurements as they would be at this load, which starts and steps follow apart."""

    def shifts(
        seconds: Callable[[Measurement], float | None], busy: Mapping[str, float] | None = None
    ) -> list[LoadCorrection]:
        times = [
            PastDuration((row["fingerprint"], shape_of(m)), row["run_id"], seconds(m) or 0.0, m.offer, m.load)
            for row, m in told
        ]
        return load.shifts(database, times, busy)

    from trainmaster.advisor.model.knowledge import shape_of

    starts = shifts(lambda m: m.startup_s + m.warmup_s)
    wants: dict[str, list[float]] = {}
    for _, m in told:
        place = m.offer.partition(":")[0]
        alone = m.cores + (m.held or 0.0) if m.cores is not None and place == "local" else None
        # Machines of a lab have shares of a core, and members there wait for each other's.
        if (wanted := m.wanted if alone is None else alone) is not None:
            wants.setdefault(place, []).append(wanted)
    busy = {place: min(median(seen), 1.0) for place, seen in wants.items()}
    works = shifts(lambda m: m.point.step_time_s if m.point is not None else m.duration_s, busy)
    return [
        (row["fingerprint"], m.shifted(start, work))
        for (row, m), start, work in zip(told, starts, works, strict=True)
    ]


def _batch(measured: Measurement) -> float | None:
    """Examples of a step of all its workers, whose number may have changed since."""
    at = measured.point
    if at is None or not at.local_batch:
        return None
    return at.local_batch * (1 if at.sync is Strategy.PS_ASYNC else at.workers)


def _tells(measured: Measurement, until: Until) -> bool:
    return measured.curve is not None and measured.curve.metric == until.metric


def _reported(home: Home, experiment: Experiment, row: RowMapping, steps_done: float) -> ObservedCurve | None:
    """What an attempt of a run has left of the metric that a target is of now."""
    from trainmaster.control.measure.measuring import curve_of
    from trainmaster.service.runs.task_reports import reports_of

    with suppress(OSError, ValueError, TrainmasterError):
        task, attempt = map(int, row["id"].rsplit("/", 2)[1:])
        place = home.attempt(row["run_id"], row["experiment"], task, attempt)
        reports = reports_of(experiment, [place])  # it may run still
        with reports.lock:
            column = reports.columns.get(experiment.ends_at.metric) if experiment.ends_at else None
            return None if column is None else curve_of(experiment, column.curve(_POINTS), steps_done)
    return None


def new_row(
    name: str, key: Fingerprint, experiment: str, run: str | None, measured: Measurement
) -> NewMeasurement:
    """A measurement as the database keeps it.

    Args:
        name: id of the attempt, or of the profile.
        key: of what was measured.
        experiment: its name.
        run: id; None for a profile.
        measured: what was found.
    """
    kept = replace(measured, code_lines=key.lines, numbers=dict(key.numbers))
    return NewMeasurement(name, key.exact, key.similar, experiment, run, kept.to_json(), measured.measured_at)


def experience_of(database: Database, *fingerprints: str, team: str | None = None) -> Experience | None:
    """What jobs other than these have shown of this machine.

    Args:
        database: the database.
        *fingerprints: of the jobs that are quoted; their own points count as such.
        team: that asks; None for the owner.
    """
    from trainmaster.advisor.model.experience import MOST_JOBS, Experience
    from trainmaster.advisor.model.knowledge import prepared

    jobs: dict[str, list[Measurement]] = {}
    for row, measurement in measured_rows(database.other_measurements(*fingerprints, team=team)):
        point = measurement.point
        if point is not None and point.step_time_s and measurement.offer == "local":
            jobs.setdefault(row["fingerprint"], []).append(measurement)
    learnt = []
    for found in jobs.values():
        points = [prepared(m, None) for m in found]
        if len({point.workers for point in points}) > 1:  # else it says nothing of how workers get on
            learnt.append(points)
        if len(learnt) == MOST_JOBS:
            break
    return Experience.of(learnt)


def device_of(home: Home, machine: NodeCapacity | None = None) -> str:
    """What fingerprints call this machine; one that drives a run for its home has it say what that one is."""
    try:
        return (home.root / DEVICE_FILE).read_text()
    except OSError:
        return local_device_name(machine or detect_capacity())


def make_recorder(
    database: Database,
    home: Home,
    run: str,
    recipe: Recipe,
    snapshot: Path,
    machine: NodeCapacity,
    policies: Mapping[str, Policy],
    where: Callable[[str], AttemptMachine] | None = None,
    facts: RunFacts | None = None,
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
        where: what an attempt runs on, by its id; None is this machine.
        facts: what was found out of the run.
    """

    def with_task(each: Recorded) -> Measurement:
        tasks, task = recipe.experiments[each.experiment].tasks(recipe.seed), int(each.attempt.split("/")[-2])
        return replace(each.measurement, of_task=numbers_of_task(tasks, task))

    def keep(found: Sequence[Recorded]) -> None:
        try:
            code = _code_of(recipe, snapshot)
        except OSError:  # the snapshot is gone: what was measured is unknown
            return
        device = device_of(home, machine)
        keys = {
            name: fingerprint_of(recipe, recipe.experiments[name], code, device)
            for name in {each.experiment for each in found}
        }
        rows = [
            new_row(each.attempt, keys[each.experiment], each.experiment, run, with_task(each))
            for each in found
        ]
        with suppress(StoreError):  # the run matters more, and says so itself if the database is away
            database.add_measurement(*rows, patient=False)

    def keep_phases(found: Sequence[RecordedPhase]) -> None:
        from trainmaster.service.quotes.phase_records import phase_rows

        with suppress(StoreError):
            database.add_measurement(*phase_rows(run, found), patient=False)

    return Recorder(
        run=run,
        recipe=recipe,
        policies=policies,
        where=where or (lambda _: AttemptMachine("local", machine.cores)),
        attempt_directory=lambda experiment, task, attempt: (
            home.attempt(run, experiment, task, attempt).directory
        ),
        keep=keep,
        keep_phases=keep_phases,
        facts=facts or RunFacts(),
    )


def _code_of(recipe: Recipe, snapshot: Path) -> CodeFingerprint:
    """`code_of`, read once: a snapshot never changes, and a run asks for its history again and again."""
    key = (recipe.source_text, snapshot)
    if key not in _codes:
        _codes.clear()
        _codes[key] = code_of(recipe, snapshot)
    return _codes[key]


def measured_rows(rows: Sequence[RowMapping]) -> Iterator[tuple[RowMapping, Measurement]]:
    """Each row with its measurement; what a newer version wrote is left out: less is known, no more."""
    from trainmaster.advisor.model.measurement import Measurement

    for row in rows:
        try:
            measured = Measurement.from_json(row["data"])
        except (ValueError, TypeError, KeyError):
            continue
        if measured.curve is not None and not row["run_id"]:
            measured = replace(measured, curve=replace(measured.curve, is_run=False))
        yield row, measured
