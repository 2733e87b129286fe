"""What is known of a run while it goes on: `MeasuredNow`, `TaskLengths` by it; `RunPlace`, its machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainmaster.control.loop.recording import AttemptMachine
from trainmaster.dataclass import dataclass, field
from trainmaster.executors.capacity import detect_capacity
from trainmaster.spec import Experiment, Recipe

if TYPE_CHECKING:
    from trainmaster.advisor.model.devices import Device
    from trainmaster.advisor.model.measurement import Measurement, ObservedCurve
    from trainmaster.control.loop.run_state import RunState
    from trainmaster.control.measure.progress import TaskProgress
    from trainmaster.service.cluster_costs import ClusterCosts
    from trainmaster.service.quotes.earlier_trials import EarlierTrials
    from trainmaster.service.quotes.history import History

#: Of so many attempts of tasks that run at once the newest say all that there is to say.
_MOST_LIVE: Final = 100


@dataclass(slots=True)
class MeasuredNow:
    """What was measured, by experiment: earlier, and in this run until now.

    Attributes:
        same, similar, earlier_trials: see `History`. live: of this run, by task. curves: of earlier runs.
        lines: of the code of this run. lent: experiments whose length is that of another version.
        saves_none: experiments whose code does not know where to write checkpoints.
    """

    same: dict[str, list[Measurement]] = field(default_factory=dict)
    similar: dict[str, list[Measurement]] = field(default_factory=dict)
    live: dict[str, dict[int, Measurement]] = field(default_factory=dict)
    curves: dict[str, tuple[ObservedCurve, ...]] = field(default_factory=dict)
    earlier_trials: dict[str, tuple[EarlierTrials, ...]] = field(default_factory=dict)
    lines: dict[str, tuple[int, ...]] = field(default_factory=dict)
    lent: set[str] = field(default_factory=set)
    saves_none: set[str] = field(default_factory=set)

    def read(self, name: str, history: History, *offers: str) -> None:
        """Take in what was measured before on such machines; curves are the same on all of them."""
        self.same[name] = [each for each in history.same if each.offer in offers]
        self.similar[name] = [each for each in history.similar if each.offer in offers]
        from trainmaster.advisor.model.knowledge import curves_of

        self.curves[name] = curves_of(history.same, history.similar)
        self.earlier_trials[name] = history.earlier_trials
        self.lines[name] = history.fingerprint.lines
        self.lent |= {name} if history.has_lent_length else set()
        self.saves_none |= set() if history.fingerprint.may_save else {name}

    def held_words(self, name: str) -> str:
        """What others hold of the processors of an experiment's tasks; empty if little."""
        from trainmaster.advisor.model.measurement import held_words

        most = max((m.held or 0.0 for m in self.live.get(name, {}).values()), default=0.0)
        return held_words(most, "holds")

    def sources(self) -> str:
        """Of what runs an estimate is, in words."""
        borrowed = [
            each.code_lines == self.lines.get(name)
            for name, similar in self.similar.items()
            if name in self.lent or not self.of(name)[0]
            for each in similar
        ]
        if not borrowed:
            return "earlier runs"
        return "this code with other parameters or data" if all(borrowed) else "earlier versions of this code"

    def most_steps(self, name: str, unit: str) -> int:
        """That a task made to its end, as long as this run's numbers make it; 0 if unknown.

        Args:
            name: of its experiment.
            unit: that these are, see `Measurement`.
        """
        seen = [each for each in self.same.get(name) or self.similar.get(name, []) if each.unit == unit]
        return max((each.steps_done for each in seen if each.duration_s is not None), default=0)

    def says_length(self, experiment: Experiment) -> bool:
        """Whether earlier runs of the very same have said how long it is, where its recipe does not."""
        seen = self.same.get(experiment.name, [])
        if not any(each.said_steps for each in seen):
            return False
        from trainmaster.service.quotes.worker_counts import with_length

        return with_length(experiment, seen) is not experiment

    def ends_early(self, name: str) -> bool:
        """Whether a run of the very same has ended well before the steps that its script said it makes."""
        return any(each.ended_early for each in self.same.get(name, []))

    def of_all_sizes(self, name: str) -> list[Measurement]:
        """What was measured now, and earlier with other numbers of workers or servers."""
        live = list(self.live.get(name, {}).values())
        now = {_size(each) for each in live}
        return live + [each for each in self.same.get(name, []) if _size(each) not in now][:_MOST_LIVE]

    def of(self, name: str) -> tuple[list[Measurement], list[Measurement]]:
        """Those of this run if there are any; what they do not tell is taken from earlier ones.

        Of machines that this run has shown nothing of, as its tasks spread over several kinds, earlier ones
        count.
        """
        live = list(self.live.get(name, {}).values())[-_MOST_LIVE:]
        earlier, similar = self.same.get(name, []), self.similar.get(name, [])
        if not live:
            return earlier, similar
        seen = {each.offer for each in live}
        others = [each for each in earlier if each.offer not in seen]
        seen |= {each.offer for each in others}
        kin = [each for each in similar if each.offer not in seen]
        return [_completed(each, earlier) for each in live] + others, kin


def _completed(live: Measurement, earlier: Sequence[Measurement]) -> Measurement:
    """With what earlier runs tell, first those on the same kind of machine."""
    known = sorted(earlier, key=lambda each: each.offer != live.offer)
    tail = next((m.tail_s for m in known if m.tail_s is not None), None)
    pause = next((m.pause_s for m in known if m.pause_s is not None), None)
    return replace(
        live,
        tail_s=tail if live.tail_s is None else live.tail_s,
        pause_s=pause if live.pause_s is None else live.pause_s,
    )


def _size(measured: Measurement) -> tuple[int, int | None]:
    at = measured.point
    return (0, None) if at is None else (at.workers, at.parameter_servers)


class TaskLengths:
    """The recipe says it, earlier runs have said it, or a script says it while it runs.

    Args:
        recipe: of the run.
        known: what was measured of it.

    Attributes:
        services: experiments that serve, and do not train.
        endless: they end when somebody ends them.
        unknown: how long their tasks take is all that can be known of them.
        stepless: these and `endless`: their steps are not to be counted; as lengths are said it has fewer.
    """

    def __init__(self, recipe: Recipe, known: MeasuredNow) -> None:
        self._recipe, self._known = recipe, known
        self.services = {name for name, each in recipe.experiments.items() if each.serve is not None}
        self.endless = {*recipe.experiments} if recipe.is_notebook else self.services
        self.unknown = {
            name for name, each in recipe.experiments.items() if not each.builtin_values().get("steps")
        }
        self.stepless = self.unknown | self.endless

    def read(self, name: str) -> bool:
        """Whether earlier runs have said how long an experiment is, and that was not known."""
        return self._known.says_length(self._recipe.experiments[name]) and self._learn(name)

    def said(self, progress: Mapping[tuple[str, int], TaskProgress]) -> list[str]:
        """Experiments whose scripts say it now; such runs that ended earlier are believed more.

        Args:
            progress: of running tasks.
        """
        said = (name for (name, _), found in progress.items() if found.said_steps)
        return [name for name in said if not self._known.ends_early(name) and self._learn(name)]

    def is_known(self, name: str) -> bool:
        """True if there is something to quote an experiment by; what has no end is not quoted."""
        if name in self.endless:
            return False
        same, similar = self._known.of(name)
        if name in self.unknown:
            return any(each.duration_s is not None for each in same or similar)
        return bool(same or similar)

    def is_one_of_many(self, name: str) -> bool:
        """Whether tasks differ by their parameters, and only one kind of them was seen."""
        from trainmaster.advisor.market.workload import Workload

        sizes = Workload.of(self._recipe.experiments[name], self._recipe.seed).sizes
        seen = (m.of_task for m in self._known.of(name)[0] if m.of_task is not None)
        return _kinds(sizes) > 1 and _kinds(seen) == 1

    def outlived(
        self, run_state: RunState, progress: Mapping[tuple[str, int], TaskProgress]
    ) -> Iterable[tuple[str, TaskProgress, int]]:
        """Experiments whose length is that of earlier runs, with how far they are, and the steps of those.

        Of many tasks each may have a length of its own, and a target ends one at any step.

        Args:
            run_state: which tasks there are.
            progress: of running ones.
        """
        for (name, _), found in progress.items():
            is_one = run_state.experiments[name].total == 1 and self._recipe.experiments[name].ends_at is None
            if is_one and found.trace is not None and name in self.unknown - self.endless:
                most = self._known.most_steps(name, found.trace.unit)
                if most:
                    yield name, found, most

    def _learn(self, name: str) -> bool:
        is_new = name in self.unknown
        self.unknown.discard(name)
        self.stepless.discard(name)
        return is_new


def _kinds(tasks: Iterable[Mapping[str, float]]) -> int:
    """How many of them differ."""
    return len({frozenset(each.items()) for each in tasks})


class RunPlace:
    """What the attempts of a run run on, this machine or what was rented for it.

    Args:
        costs: of the machines that were rented for it; None if it runs on this one.
    """

    def __init__(self, costs: ClusterCosts | None) -> None:
        self._costs = costs
        self._cores: int | None = None

    def where(self, experiment: str) -> AttemptMachine:
        """What its attempts run on; where they spread over several places, in the first one."""
        if self._costs is None:
            if self._cores is None:
                self._cores = detect_capacity().cores  # they stay, and this is asked each few seconds
            return AttemptMachine("local", self._cores)
        from trainmaster.service.cluster_costs import where_in

        return where_in(self._costs, experiment)

    def offers(self, experiment: str) -> tuple[str, ...]:
        """What its attempts run on, as measurements call it: of each place that they spread over."""
        its = [] if self._costs is None else self._costs.clusters()
        found = dict.fromkeys(each.machine for each in its if experiment in each.experiments)
        return tuple(found) or (self.where(experiment).offer,)

    def device(self, experiment: Experiment) -> Device:
        """What a worker of an experiment computes on."""
        from trainmaster.advisor.model.devices import Device
        from trainmaster.service.quotes.knowledge_builder import local_device

        if self._costs is None:
            return local_device(experiment)
        from trainmaster.service.cluster_costs import clusters_left

        if its := clusters_left(self._costs.clusters(), experiment.name):
            slots = sum(each.slots for each in its)
            return Device(experiment.hardware.device, float(slots), its[0].machine)
        from trainmaster.providers.capabilities import HOST

        return Device("", 1.0, HOST)

    def has_machines(self, experiment: str) -> bool:
        """Whether what it runs on is there."""
        if self._costs is None:
            return True
        return any(each.is_there for each in self._costs.clusters() if experiment in each.experiments)
