"""`Profiler`: runs one task of an experiment on this machine, for a minute at most, and measures its speed.

The task runs as in a run: the same snapshot of the code, environment, setup, data, gang and launcher. But in
a directory of its own that is gone afterwards; no model and no checkpoint of it is published.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trainmaster import library
from trainmaster.advisor.model.measurement import Measurement, brief_doubt
from trainmaster.advisor.model.task_numbers import numbers_of_task
from trainmaster.artifacts import Snapshot, materialise, take_snapshot
from trainmaster.control.attempt.local_site import LocalSite
from trainmaster.control.checks.preflight import check_directories, check_machine, check_parts
from trainmaster.control.loop.attempt_actions import AttemptActions
from trainmaster.control.loop.recording import RecordedPhase
from trainmaster.control.measure.profile_attempt import NoStepsError, ProfileAttempt, Window
from trainmaster.control.measure.profile_place import ProfilePlace, clear_leftovers
from trainmaster.control.measure.profile_progress import ProfileProgress
from trainmaster.control.task.environment import base_environment
from trainmaster.control.task.gangs import slots_of, slots_per_member, workers_per_node
from trainmaster.control.task.layout import Home
from trainmaster.db import queries
from trainmaster.executors.base import Capacity
from trainmaster.executors.capacity import NodeCapacity, detect_capacity
from trainmaster.executors.local.executor import LocalExecutor
from trainmaster.launchers import get_launcher
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.quotes.fingerprint import Fingerprint, code_of, fingerprint_of, local_device_name
from trainmaster.service.quotes.history import new_row
from trainmaster.service.quotes.home_load import HomeLoad
from trainmaster.service.quotes.phase_records import phase_rows
from trainmaster.service.quotes.worker_counts import allowed_workers
from trainmaster.service.service import Service
from trainmaster.spec import Experiment, Hardware, Recipe
from trainmaster.spec.errors import InterruptedByUser, UsageError
from trainmaster.spec.plain_json import kept
from trainmaster.spec.private_files import write_private
from trainmaster.spec.sections import ProfilePlan
from trainmaster.sweeps import first_parameters

#: Numbers of workers that are measured where the recipe leaves it open.
MOST_SHAPES = 3
#: Jobs whose interrupted measurements are remembered.
_MOST_UNMEASURED = 100

OnProgress = Callable[[ProfileProgress], None]
FindModels = Callable[[str, str | None], list[tuple[int, str]]]


class Profiler:
    """Measures experiments of a recipe; what it finds is stored too.

    Args:
        service: of the home that members run in.

    Attributes:
        not_measured: of the last call, experiment -> why it could not be measured.
        notes: of the last call, what the user may want to know.
    """

    def __init__(self, service: Service) -> None:
        self.not_measured: dict[str, str] = {}
        self.notes: list[str] = []
        self._service = service
        self._interrupts = 0

    def interrupt(self) -> None:
        """Ctrl-C: the first asks the members to stop, the second does not wait for them. Signal-safe."""
        self._interrupts += 1

    def measure(
        self,
        recipe: Recipe,
        environ: Mapping[str, str],
        experiments: Sequence[str] | None = None,
        on_progress: OnProgress | None = None,
        only: Mapping[str, Sequence[int]] | None = None,
    ) -> dict[str, list[Measurement]]:
        """Measure experiments, one shape after the other.

        Args:
            recipe: of any provider; it is measured here.
            environ: the caller's environment.
            experiments: names; None for all. One that needs what another leaves can only be measured if a run
                of that one has left it: else `not_measured` says so, as it does of one that shows no steps.
            on_progress: called a few times a second.
            only: numbers of workers to measure of an experiment; without it all that there are to be.

        Raises:
            UsageError: a task fails, or cannot be set up.
            InterruptedByUser: only what had been measured is left; `Unmeasured` knows the rest.
            TrainmasterError: the node or the database cannot be used.
        """
        self.not_measured, self.notes = {}, []
        self._interrupts = 0
        names = self._chosen(recipe, experiments)
        home, machine = self._service.home, detect_capacity()
        clear_leftovers(home.root)
        snapshot = take_snapshot(
            recipe.code,
            recipe.directory,
            home.snapshots,
            exclude=(home.root, home.cache, *recipe.secret_files),
            include=recipe.include,
        )
        variables = self._service.secrets_of(recipe, environ)
        session = _Session(self, recipe, snapshot, machine, environ, variables, on_progress or _say_nothing)
        try:
            return {
                name: found
                for name in recipe.order()
                if name in names and (found := session.measure(name, (only or {}).get(name)))
            }
        except (KeyboardInterrupt, InterruptedByUser):
            kept = "1 measurement is" if session.kept == 1 else f"{session.kept} measurements are"
            left = (
                f"{kept} kept; the next quote measures the rest."
                if session.kept
                else "Nothing of it is left."
            )
            raise InterruptedByUser("the measurement was interrupted", left) from None

    def _chosen(self, recipe: Recipe, experiments: Sequence[str] | None) -> set[str]:
        unknown = [name for name in experiments or () if name not in recipe.experiments]
        if unknown:
            raise UsageError(
                f"there is no experiment {unknown[0]!r}", f"There are: {', '.join(recipe.experiments)}."
            )
        return set(recipe.experiments if experiments is None else experiments)

    @property
    def service(self) -> Service:
        """Of the home that members run in."""
        return self._service

    @property
    def interrupts(self) -> int:
        """How often the user has pressed Ctrl-C."""
        return self._interrupts


class _Session:
    """One call of `Profiler.measure`."""

    def __init__(
        self,
        profiler: Profiler,
        recipe: Recipe,
        snapshot: Snapshot,
        machine: NodeCapacity,
        environ: Mapping[str, str],
        variables: Mapping[str, Mapping[str, str]],
        tell: OnProgress,
    ) -> None:
        self._profiler = profiler
        self._service = profiler.service
        self._recipe = recipe
        self._snapshot = snapshot
        self._machine = machine
        self._base = base_environment(environ)
        self._variables = variables
        self._tell = tell
        self.kept = 0
        self._device = local_device_name(machine)
        self._code = code_of(recipe, snapshot.path)

    def measure(self, name: str, only: Sequence[int] | None) -> list[Measurement]:
        """All shapes of one experiment, or only some; none if it cannot be measured here."""
        experiment = self._recipe.experiments[name]
        try:
            find_models = self._find_models(experiment)
            shapes = only or self._shapes(experiment)
            variants = [self._variant(experiment, workers) for workers in shapes]
        except _NotHere as reason:
            self._profiler.not_measured[name] = str(reason)
            return []
        found, unmeasured = [], Unmeasured(self._service.home)
        key = self._fingerprint(experiment).exact
        unmeasured.put(stepless_key(key, experiment))
        with ProfilePlace(self._service.home, f"{self._recipe.name}-profile-{secrets.token_hex(4)}") as place:
            for number, variant in enumerate(variants):
                try:
                    found.append(self._attempt(place, number, variant, find_models))
                except NoStepsError as reason:  # the others of the recipe can be quoted, and when it starts
                    self._profiler.not_measured[name] = why = f"{reason.args[0]}. {reason.hint}"
                    unmeasured.put(key)
                    unmeasured.put(stepless_key(key, experiment), why)
                    return found
                self.kept += 1
                unmeasured.put(key, shapes[number + 1 :])
        return found

    def _attempt(
        self, place: ProfilePlace, number: int, variant: Recipe, find_models: FindModels
    ) -> Measurement:
        (experiment,) = variant.experiments.values()
        run = f"{place.path.name}-{number}"
        slots = max(self._machine.cores, slots_of(experiment))
        base = dict(self._base)
        counted = get_launcher(experiment.launcher).counted if self._leaves(experiment.name) else {}
        if not any(name.startswith(tuple(counted)) for name in (*base, *experiment.env)):
            base |= counted
        if experiment.ends_at is not None:  # how the batch changes its steps is to be known
            paths = str(Path(library.__file__).parent / "noise"), base.get("PYTHONPATH")
            base["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        materialise(self._snapshot.path, place.home.code_directory(run))
        actions = AttemptActions(
            home=place.home,
            run=run,
            recipe=variant,
            secrets=self._variables,
            find_models=find_models,
            site=LocalSite(base),
        )
        executor = LocalExecutor(self._service.home.root)
        attempt = ProfileAttempt(
            actions=actions,
            executor=executor,
            run=run,
            experiment=experiment,
            parameters=first_parameters(experiment, self._recipe.seed),
            window=Window(_plan(experiment).duration_s),
            cores=self._machine.cores,
            interrupts=lambda: self._profiler.interrupts,
            tell=self._tell,
        )
        load, began = HomeLoad.now().load, time.monotonic()  # without what it adds itself
        try:
            found = attempt.measure(Capacity(slots=slots, gpus=self._machine.gpus), base)
        finally:
            executor.close()
        name, key = f"{run}/{experiment.name}", self._fingerprint(experiment)
        phases = [
            RecordedPhase(name, experiment.name, took, found.offer, found.measured_at)
            for took in attempt.took
        ]
        doubt = brief_doubt(time.monotonic() - began, load, self._machine.cores)
        found = replace(found, step_spread=math.hypot(found.step_spread, doubt))
        found = replace(found, load=load, of_task=numbers_of_task(experiment.tasks(self._recipe.seed), 0))
        rows = [new_row(name, key, experiment.name, None, found), *phase_rows(None, phases)]
        self._service.database.add_measurement(*rows)
        return found

    def _leaves(self, name: str) -> bool:
        """Whether workers of an experiment are to be on several machines."""
        experiment = self._recipe.experiments[name]
        if capabilities_of(self._recipe.provider).is_here or experiment.distributed is None:
            return False
        return allowed_workers(experiment)[-1] > workers_per_node(experiment)

    def _fingerprint(self, experiment: Experiment) -> Fingerprint:
        return fingerprint_of(self._recipe, experiment, self._code, self._device)

    # --- what is measured ------------------------------------------------------------------------

    def _shapes(self, experiment: Experiment) -> Sequence[int]:
        """Numbers of workers."""
        if experiment.distributed is None:
            return [1]
        experiment = self._at_home(experiment)
        plan = _plan(experiment)
        if plan.shapes:
            return plan.shapes
        most = self._most_workers(experiment)
        found = shapes_of(experiment, most, elsewhere=not capabilities_of(self._recipe.provider).is_here)
        if not found:
            raise _NotHere(f"this machine has room for {most} workers only, and that is not allowed")
        return found

    def _most_workers(self, experiment: Experiment) -> int:
        """As many as have the cores and GPUs that they need; two share a core if they ask for none."""
        hardware = experiment.hardware
        cores, shared = self._machine.cores, max(1, workers_per_node(experiment))
        most = cores // slots_per_member(experiment) if hardware.cpus else max(2, cores)
        if each := (hardware.gpus or 0) // shared:
            most = min(most, len(self._machine.gpus) // each)
        return most

    def _variant(self, experiment: Experiment, workers: int) -> Recipe:
        """A recipe for this machine with that experiment only, and so many workers.

        Raises:
            _NotHere: this machine cannot run it, and the recipe does not say that it must.
            UsageError: it cannot, though the recipe says so.
        """
        experiment = self._at_home(experiment)
        if experiment.distributed is not None:
            shaped = experiment.distributed.model_copy(update={"workers": workers})
            experiment = experiment.model_copy(update={"distributed": shaped})
            experiment.builtin_values()  # the batch must be shared evenly
        variant = self._recipe.model_copy(
            update={"provider": "local", "experiments": {experiment.name: experiment}}
        )
        try:
            check_parts(variant)
            check_directories(variant)
            self._profiler.notes += check_machine(variant, self._machine)
        except UsageError as error:
            if capabilities_of(self._recipe.provider).is_here:
                raise
            raise _NotHere(str(error)) from None
        return variant

    def _at_home(self, experiment: Experiment) -> Experiment:
        """What rented nodes must have is no need of the measurement here, but for the GPUs."""
        if capabilities_of(self._recipe.provider).is_here:
            return experiment
        needs = Hardware(gpus=experiment.hardware.gpu_count or None)
        return experiment.model_copy(update={"hardware": needs})

    def _find_models(self, experiment: Experiment) -> FindModels:
        """Where the models of other experiments are that this one needs.

        Raises:
            _NotHere: of one of them nothing is left.
        """
        sources = {source.experiment for source in experiment.data.values() if source.experiment}
        runs: dict[str, str] = {}
        for name in experiment.depends_on:
            if name not in sources:  # what it leaves, and where, only the scripts know
                raise _NotHere(
                    f"it comes after {name!r}, whose work it may need; that is only there in a run"
                )
            run = self._run_with_models(name)
            if run is None:
                raise _NotHere(f"it needs the models of {name!r}, which has not run yet")
            runs[name] = run
        return lambda name, best: self._service.find_models(runs[name], name, best)

    def _run_with_models(self, name: str) -> str | None:
        """The newest run in which the very same experiment has left models."""
        database = self._service.database
        key = self._fingerprint(self._recipe.experiments[name])
        runs = dict.fromkeys(row["run_id"] for row in database.measurements(key.exact) if row["run_id"])
        return next((run for run in runs if queries.models(database, run, name)), None)


class Unmeasured:
    """What measurements have left out, by fingerprint: of the same code nothing is measured in vain again.

    Of one that was interrupted the shapes that are left: the next one begins there. Of a script that showed
    no steps that, until ``--fresh``.

    Args:
        home: where a file of them is.
    """

    def __init__(self, home: Home) -> None:
        self._path = home.root / "unmeasured.json"

    def shapes(self, fingerprint: str) -> tuple[int, ...]:
        """Numbers of workers; none if nothing was interrupted."""
        found = self._all().get(fingerprint, ())
        return () if isinstance(found, str) else found

    def why(self, key: str) -> str:
        """Why an experiment with that `stepless_key` cannot be measured; empty if that is not known."""
        found = self._all().get(key, "")
        return found if isinstance(found, str) else ""

    def put(self, key: str, left: Sequence[int] | str = ()) -> None:
        """Write down which shapes of a fingerprint are left to be measured, or why nothing can be."""
        known = self._all()
        if known.get(key, ()) == (left if isinstance(left, str) else tuple(left)):
            return
        known.pop(key, None)
        if left:
            known[key] = left if isinstance(left, str) else tuple(left)
        with contextlib.suppress(OSError):  # a full disk: the next quote does with what was measured
            write_private(self._path, json.dumps(dict(list(known.items())[-_MOST_UNMEASURED:])).encode())

    def _all(self) -> dict[str, tuple[int, ...] | str]:
        return kept(dict[str, tuple[int, ...] | str], self._path) or {}


def stepless_key(fingerprint: str, experiment: Experiment) -> str:
    """Of what shows no steps: beside what it is, how steps are found, for how long, with how many workers."""
    how = experiment.model_dump_json(include={"metrics", "profile", "distributed"})
    return f"{fingerprint}-{hashlib.sha256(how.encode()).hexdigest()[:16]}"


class _NotHere(Exception):  # noqa: N818 - it is no error, but an answer
    """An experiment cannot be measured here and now; the text says why."""


def shapes_of(experiment: Experiment, most: int, *, elsewhere: bool = False) -> list[int]:
    """Numbers of workers to be measured where ``profile.shapes`` names none.

    A number that the recipe fixes, if it will run here or there is room; else one, two, and the most that
    there is room for in powers of two.

    Args:
        experiment: with ``distributed``.
        most: workers that there is room for here.
        elsewhere: it will not run on this machine.
    """
    distributed = experiment.distributed
    assert distributed is not None
    fewest, limit = distributed.worker_bounds
    if fewest == limit and (not elsewhere or fewest <= most):
        return [fewest]
    if fewest == limit:  # any number tells something of it
        fewest = 1
    powers = [1 << k for k in range(most.bit_length())]
    allowed = [n for n in powers if fewest <= n <= (limit or n) and _shares(experiment, n)]
    if not allowed and not elsewhere:
        allowed = [n for n in range(fewest, (limit or fewest) + 1) if _shares(experiment, n)][:1]
    return allowed if len(allowed) <= MOST_SHAPES else [*allowed[: MOST_SHAPES - 1], allowed[-1]]


def _shares(experiment: Experiment, workers: int) -> bool:
    """True if so many workers share the batch evenly."""
    if experiment.batch is None:
        return True
    try:
        experiment.batch.sizes(workers)
    except ValueError:
        return False
    return True


def _plan(experiment: Experiment) -> ProfilePlan:
    return experiment.profile or ProfilePlan()


def _say_nothing(_: ProfileProgress) -> None:
    return
