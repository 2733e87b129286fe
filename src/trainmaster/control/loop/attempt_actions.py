"""`AttemptActions`: turns decisions about tasks into requests, environments and background jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.control.attempt.local_site import LocalSite
from trainmaster.control.decide.effects import Effect, EffectKind, Job
from trainmaster.control.loop.jobs import Jobs
from trainmaster.control.loop.run_state import ExperimentState, Task
from trainmaster.control.task.attempt_end import saved_metrics
from trainmaster.control.task.environment import SERVED_MODEL, gang_environments
from trainmaster.control.task.gangs import (
    gang_of,
    member_names,
    node_labels,
    sized,
    slots_of,
)
from trainmaster.control.task.job_context import Site, TaskContext
from trainmaster.control.task.layout import Home, attempt_id
from trainmaster.dataclass import dataclass, field
from trainmaster.executors.base import GangRequest, GangStatus, MemberRequest
from trainmaster.launchers import Launcher, get_launcher
from trainmaster.spec import DataSource, Experiment, ParameterValue, Recipe, TaskSpace
from trainmaster.spec.errors import UsageError, one_line
from trainmaster.spec.facts import RunFacts

if TYPE_CHECKING:
    from trainmaster.artifacts import Listing
    from trainmaster.artifacts.owner import Owner
    from trainmaster.control.loop.searching import Searcher
    from trainmaster.control.measure.progress import TaskProgress
    from trainmaster.sweeps import Curve

LOOPBACK = "127.0.0.1"

#: Models of an experiment: (experiment, metric or None) -> [(task, uri)]; the best one only with a metric.
FindModels = Callable[[str, str | None], list[tuple[int, str]]]


@dataclass(kw_only=True)
class AttemptActions:
    """Performs what the loop decided for one run.

    Args:
        home: where things lie.
        run: its id.
        recipe: what the user wants.
        secrets: per experiment, names and values; they go nowhere but into members' environments.
        find_models: looks up what another experiment left.
        site: where its attempts run.
        owner: what its artifacts say of whose they are; without one they say nothing.
        is_foreign: others have sent its recipe: this machine fetches no URL for it.
        served: version and place of the model that a replica has, by experiment and number.
        facts: what was found out of the run.
    """

    home: Home
    run: str
    recipe: Recipe
    secrets: Mapping[str, Mapping[str, str]]
    find_models: FindModels
    site: Site = field(default_factory=LocalSite)
    owner: Owner | None = None
    is_foreign: bool = False
    served: Callable[[str, int], tuple[str | None, str | None]] = lambda *_: (None, None)
    facts: RunFacts = field(default_factory=RunFacts)
    jobs: Jobs = field(init=False)
    _spaces: dict[str, TaskSpace] = field(default_factory=dict, init=False)
    _launchers: dict[str, Launcher] = field(default_factory=dict, init=False)
    _searchers: dict[str, Searcher] = field(default_factory=dict, init=False)
    _listings: dict[Path, Listing] = field(default_factory=dict, init=False)
    _unstable: dict[Path, int] = field(default_factory=dict, init=False)
    _environments_of_setups: dict[str, Path] = field(default_factory=dict, init=False)
    _adopted: set[tuple[str, int, int]] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        """Prepare for jobs; none is begun."""
        self.jobs = Jobs(self.site.most_staged)

    def columns(self, experiment: ExperimentState, number: int) -> Mapping[str, object] | None:
        """The columns of a task that gets its row now: its parameters; None if it has to wait for others."""
        searcher = self._searcher(experiment.name)
        if searcher is not None and searcher.chooses:
            return searcher.columns(experiment, number)
        return {"parameters": self.parameters(experiment.name, number)}

    def judge(self, experiment: ExperimentState, running: Mapping[int, TaskProgress]) -> Mapping[int, str]:
        """Which of the running tasks are to be pruned, and why."""
        searcher = self._searcher(experiment.name)
        return {} if searcher is None else searcher.judge(experiment, running)

    def curve(self, task: Task) -> Curve:
        """The search's metric by step, over all attempts of a task, read from what they left."""
        from trainmaster.control.measure.progress import read_curve

        return read_curve(
            self.recipe.experiments[task.experiment],
            (
                self.home.attempt(self.run, task.experiment, task.number, attempt)
                for attempt in range(1, task.attempt + 1)
            ),
        )

    def parameters(self, experiment: str, number: int) -> dict[str, ParameterValue]:
        """A task's parameters; none where a sampler chooses them, and of replicas."""
        if self.recipe.experiments[experiment].serve is not None:
            return {}
        if experiment not in self._spaces:
            self._spaces[experiment] = self.recipe.experiments[experiment].tasks(self.recipe.seed)
        return dict(self._spaces[experiment].parameters(number) or {})

    def context(self, task: Task) -> TaskContext:
        """What the jobs of a task's present attempt need to know."""
        return self._context(task.experiment, task.number, task.attempt, task.bad_checkpoints, task)

    def request(self, task: Task) -> GangRequest:
        """What the executor is to start. A gang that needs ports or staging waits for `launch`."""
        context, site = self.context(task), self.site
        experiment = context.experiment
        hold = self._needs_hold(context)
        if not hold:
            try:
                context.place.make_directories(context.members)
            except OSError:  # a full disk, ...: the STAGE job of a held gang tries again and tells
                hold = True
        script = experiment.script(context.parameters)
        gang, launcher = gang_of(experiment, LOOPBACK, {}), context.launcher
        environments = {} if hold else self._environments(context, {})
        container = site.container(context)
        if container is not None and (shm_bytes := context.experiment.hardware.shm_bytes):
            container = replace(container, shm_bytes=shm_bytes)
        members = tuple(
            MemberRequest(
                name=member.name,
                script=launcher.script(gang, member, script),
                cwd=site.path(self.home.code_directory(self.run)),
                env=environments.get(member.name, {}),
                ports=launcher.ports_per_member(member.role) + int(_chooses_port(experiment)),
                essential=launcher.is_essential(gang, member),
                dispensable=launcher.is_dispensable(gang, member),
                gpus=site.gpus(experiment, member.role),
                container=container,
                node_labels=node_labels(experiment, member.role),
                secrets=tuple(experiment.secrets),
                serves=experiment.serve is not None,
            )
            for member in gang.members
        )
        request = GangRequest(
            attempt=attempt_id(self.run, experiment.name, task.number, task.attempt),
            directory=site.path(context.place.directory),
            members=members,
            slots=slots_of(experiment),
            group=f"{self.run}/{experiment.name}",
            group_slots=site.group_slots(experiment),
            hold=hold,
            grace_s=experiment.grace_s,
            share_gpus=launcher.shares_gpus,
        )
        return site.completed(request, context)

    def launch_environment(self, task: Task, gang: GangStatus) -> dict[str, dict[str, str]]:
        """The members' variables, now that their ports are known."""
        return self._environments(self.context(task), gang.ports, gang.addresses)

    def begin(self, kind: EffectKind, task: Task) -> None:
        """Start a background job of a task's present attempt; quick ones are over at once."""
        # Imported here: not needed until the first member has started, and most of it never.
        context = self.context(task)
        quick = self.site.is_quick(kind, context)
        if kind in (EffectKind.SAVE, EffectKind.RECOVER):
            self.site.began(context)  # it may have ended before anybody has seen it run
        match kind:
            case EffectKind.STAGE:
                from trainmaster.control.attempt import staging

                models: dict[str, list[tuple[int, str]]] = {}
                work = partial(staging.stage, context, models)
                try:
                    for name, source in context.experiment.data.items():
                        if source.experiment is not None:
                            models[name] = self.find_models(source.experiment, source.best)
                        elif source.model_uri is not None:
                            models[name] = [(0, source.model_uri)]
                except UsageError as error:
                    work, quick = partial(Job, done=True, error=one_line(error), users_fault=True), True
            case EffectKind.SAVE:
                if quick:
                    work = partial(saved_metrics, context)
                else:
                    from trainmaster.control.attempt import saving

                    work = partial(saving.save, context)
            case EffectKind.RECOVER:
                from trainmaster.control.attempt import saving

                work = partial(saving.recover, context)
            case EffectKind.KEEP:
                from trainmaster.control.attempt import unpublished

                # The model of one that is recovered was lost.
                has_won = EffectKind.RECOVER not in self.jobs.of(task.experiment, task.number, task.attempt)
                work = partial(unpublished.keep, context, has_won=has_won)
            case EffectKind.CHECKPOINT:
                from trainmaster.control.attempt import saving

                work = partial(saving.checkpoint, context)
            case _:
                raise AssertionError(f"{kind} is no job")
        self.jobs.begin((task.experiment, task.number, task.attempt, kind), work, quick=quick)

    def adopt(self, task: Task) -> None:
        """An attempt that an earlier driver began goes on: what that did for it all the time is done here."""
        self._adopted.add((task.experiment, task.number, task.attempt))
        self.site.adopt(self.context(task))

    def follow(self, task: Task, known: TaskProgress | None) -> TaskProgress:
        """What a task's present attempt tells: ``known`` if it is the same attempt's, else from the start."""
        from trainmaster.control.measure.progress import TaskProgress

        place = self.home.attempt(self.run, task.experiment, task.number, task.attempt)
        if known is not None and known.directory == place.directory:
            return known
        context = self.context(task)
        self.site.began(context)
        searcher, curve = self._searcher(task.experiment), None
        if searcher is not None and searcher.prunes:
            curve = self.curve(replace(task, attempt=task.attempt - 1))
        is_behind = (task.experiment, task.number, task.attempt) in self._adopted
        begun_with = (task.restored, task.kept_checkpoint, context.beginning)
        has_checkpoint = any(each is not None for each in begun_with)
        return TaskProgress.of(
            context, curve, earlier=task.metrics, is_behind=is_behind, has_checkpoint=has_checkpoint
        )

    def clean_up(self, effect: Effect) -> None:
        """Remove the working directories of an attempt whose end is recorded."""
        context = self._context(effect.experiment, effect.task, effect.attempt, ())
        jobs = self.jobs.of(effect.experiment, effect.task, effect.attempt)
        save, recover = jobs.get(EffectKind.SAVE), jobs.get(EffectKind.RECOVER)
        last = jobs.get(EffectKind.KEEP) or recover or save
        recovered = last is not None and last.done and not last.error
        is_published = save is not None and save.done and "model_uri" in save.fields
        saved = save is not None and recover is None and (recovered or is_published)
        is_left = last is not None and not saved and (last.unsaved or not last.done)
        self.site.clean_up(context, is_saved=not is_left)
        context.place.clean_up(keep_output=not saved, keep_checkpoint=not (saved or recovered))

    def _searcher(self, experiment: str) -> Searcher | None:
        found = self.recipe.experiments[experiment]
        if found.search is None:
            return None
        if experiment not in self._searchers:
            from trainmaster.control.loop.searching import Searcher

            self._searchers[experiment] = Searcher(
                found, self.recipe.seed, self.curve, self.facts.trials(experiment)
            )
        return self._searchers[experiment]

    def _context(
        self, experiment: str, number: int, attempt: int, bad: tuple[int, ...], task: Task | None = None
    ) -> TaskContext:
        found = sized(self._served(self.recipe.experiments[experiment], number), self.facts, attempt)
        goes_on = task is not None and (task.restored is not None or task.kept_checkpoint is not None)
        return TaskContext(
            home=self.home,
            run=self.run,
            recipe=self.recipe,
            experiment=found,
            launcher=self._launcher(found),
            task=number,
            attempt=attempt,
            place=self.home.attempt(self.run, experiment, number, attempt),
            members=tuple(f"{role}-{index}" for role, index in member_names(found)),
            bad_checkpoints=bad,
            parameters=self.parameters(experiment, number) or dict(task.parameters if task else {}),
            parent=task.parent if task else None,
            reported=task.metrics if task and goes_on else {},
            end_reason=task.end_reason if task else None,
            kept_model=task.kept_model if task else None,
            kept_checkpoint=task.kept_checkpoint if task else None,
            variables={**found.env, **self.secrets.get(experiment, {})},
            environments=self._environments_of_setups,
            listings=self._listings,
            unstable=self._unstable,
            site=self.site,
            owner=self.owner,
            is_foreign=self.is_foreign,
            facts=self.facts,
            doing=_unheard if task is None else partial(setattr, task, "doing"),
        )

    def _served(self, experiment: Experiment, number: int) -> Experiment:
        """With the model that a replica has as data."""
        version, uri = self.served(experiment.name, number)
        if version is None or uri is None:
            return experiment
        model = DataSource(model=version, model_uri=uri)
        return experiment.model_copy(update={"data": {**experiment.data, SERVED_MODEL: model}})

    def _launcher(self, experiment: Experiment) -> Launcher:
        if experiment.name not in self._launchers:
            self._launchers[experiment.name] = get_launcher(experiment.launcher)
        return self._launchers[experiment.name]

    def _needs_hold(self, context: TaskContext) -> bool:
        ports = any(context.launcher.ports_per_member(name.rpartition("-")[0]) for name in context.members)
        experiment = context.experiment
        prepares = experiment.setup is not None or experiment.container is not None or bool(experiment.data)
        ports = ports or _chooses_port(experiment)
        return ports or context.goes_on or prepares or self.site.needs_hold(context)

    def _environments(
        self,
        context: TaskContext,
        ports: Mapping[str, tuple[int, ...]],
        addresses: Mapping[str, str] | None = None,
    ) -> dict[str, dict[str, str]]:
        gang = gang_of(context.experiment, LOOPBACK, ports, addresses)
        return gang_environments(context, gang)


def _unheard(_: str) -> None:
    """Of what an ended attempt does, nothing is told."""


def _chooses_port(experiment: Experiment) -> bool:
    """Whether a replica is told where to listen."""
    return experiment.serve is not None and experiment.serve.port is None
