"""`forecast_inputs`: what a run will take and cost to its end, by what was measured and how far it is."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from trainmaster.advisor.market.phases import ClusterWait, machines_belief
from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.model.devices import Device, speed_ratio
from trainmaster.advisor.model.measurement import Measurement, ObservedCurve
from trainmaster.cluster.renting.requirements import Needs
from trainmaster.control.task.gangs import slots_of, tasks_here, tasks_on_nodes
from trainmaster.dataclass import dataclass, field
from trainmaster.service.quotes.steadiness import share_done
from trainmaster.service.quotes.worker_counts import begun_at, with_length, workload_of
from trainmaster.spec import Experiment, Recipe
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from trainmaster.advisor.model.knowledge import Knowledge
    from trainmaster.advisor.model.shapes import Floats
    from trainmaster.advisor.model.target_steps import TargetBelief
    from trainmaster.advisor.quote.forecast import ExperimentProgress, Overhead, PlaceNow
    from trainmaster.advisor.quote.interval import Interval
    from trainmaster.control.decide.resizing import SizeForecast
    from trainmaster.control.loop.recording import AttemptMachine
    from trainmaster.control.loop.run_state import ExperimentState, Task
    from trainmaster.control.measure.progress import TaskProgress
    from trainmaster.control.measure.run_phases import Span
    from trainmaster.executors.base import Capacity
    from trainmaster.providers import Catalogue
    from trainmaster.service.cluster_costs import ClusterFacts
    from trainmaster.service.quotes.earlier_trials import EarlierTrials

#: On rented machines there is room for as many processes as are asked for.
_MANY: Final = 1 << 20
#: Of all runs that a process drives one thinks at a time, and then rests for so many times as long: the maths
#: would keep the others from what they have to do at once.
_REST: Final = 9.0
_one_thinks = threading.Lock()

#: By experiment: of the very same job, and of similar ones.
Measured = Mapping[str, tuple[Sequence["Measurement"], Sequence["Measurement"]]]


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of a run, as things stand.

    Attributes:
        time_s, cost_usd: of the whole run.
        measurements: how many that rests on.
        training: by experiment that has not ended, p5, p50 and p95 of its phases from the first member on.
        left_s: of each such experiment, until its members have ended: p5, p50 and p95.
        sizes: of experiments whose gangs may become larger or smaller, what that would mean.
    """

    time_s: Interval
    cost_usd: Interval
    measurements: int
    training: Mapping[str, Mapping[str, Span]]
    left_s: Mapping[str, Span]
    sizes: Mapping[str, tuple[SizeForecast, ...]] = field(default_factory=dict)


class NotKnown(Exception):  # noqa: N818 - it is no error
    """Of an experiment nothing was measured, or its length is unknown."""


def in_background(work: Callable[[], Any]) -> Future[Any]:
    """Have a thread work something out: the loop of a run does not wait for the maths."""
    found: Future[Any] = Future()

    def think() -> None:
        with _one_thinks:
            begun_s = time.thread_time()
            try:
                found.set_result(work())
            except Exception as error:  # noqa: BLE001 - told where it is collected
                found.set_exception(error)
            time.sleep(_REST * (time.thread_time() - begun_s))

    threading.Thread(target=think, name="forecast", daemon=True).start()
    return found


@dataclass(frozen=True, slots=True)
class RentedNow:
    """What is rented for a run.

    Attributes:
        provider: whose. spent_usd: until now. clusters: all of the run. waited: for earlier ones.
        gave_back_s: what giving these back took, by provider.
    """

    provider: str
    spent_usd: float
    clusters: Sequence[ClusterFacts]
    waited: Sequence[ClusterWait] = ()
    gave_back_s: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def slots(self, experiment: str) -> int:
        """Processes that an experiment's clusters take at once."""
        return sum(each.slots for each in self._left(experiment)) or 1

    def at_once(self, experiment: Experiment) -> int:
        """How many tasks of an experiment its clusters run at the same time."""
        return tasks_in(experiment, self._left(experiment.name))

    def nodes(self, experiment: Experiment) -> int:
        """Machines that the workers of one of its tasks sit on."""
        one = self.cluster(experiment.name)
        return 1 if one is None else gang_nodes(experiment, one.nodes, one.gpus)

    def places(self, experiment: str) -> dict[str, list[ClusterFacts]]:
        """What the tasks of an experiment spread over, by what its machines are called in measurements."""
        found: dict[str, list[ClusterFacts]] = {}
        for each in self._left(experiment):
            found.setdefault(each.machine, []).append(each)
        return found

    def were_several(self, experiment: str) -> bool:
        """Whether its tasks run, or have run, on several kinds of machines: each has a speed of its own."""
        return len({each.machine for each in self.clusters if experiment in each.experiments}) > 1

    def cluster(self, experiment: str) -> ClusterFacts | None:
        """That of an experiment; the first of several."""
        return next(iter(self._left(experiment)), None)

    def losses(self, experiment: str) -> Floats:
        """(3, k) of each kind of an experiment's machines: losses of one per hour, their spread, how many."""
        import numpy as np

        from trainmaster.advisor.quote.beliefs import losses_per_hour

        found = []
        for each in self._left(experiment):
            for spot, count in Counter(rental.spot for rental, _ in each.billed).items():
                provider = each.provider or self.provider
                belief = losses_per_hour(self.waited, provider, spot=spot)
                found.append((belief.median, belief.spread, float(count)))
        return np.array(found).reshape(-1, 3).T

    def anew_s(self, experiment: str, seed: int) -> Floats:
        """(DRAWS, 1) seconds until a machine in the place of one that was taken back can work."""
        import numpy as np

        from trainmaster.advisor.quote.timing import DRAWS
        from trainmaster.providers.capabilities import capabilities_of

        one = next(each for each in self._left(experiment) if each.billed)
        provider = one.provider or self.provider
        beliefs = [
            machines_belief(capabilities_of(provider).provisioning_s, self.waited, provider, one.machine)
        ]
        if experiment in one.phases:
            new = one.phases[experiment].beside(provider, one.region, one.instance)
            beliefs += [belief for _, belief in new.before]
        normal = np.random.default_rng((11, seed)).standard_normal((len(beliefs), DRAWS, 1))
        drawn = (b.median * np.exp(b.spread * each) for b, each in zip(beliefs, normal, strict=True))
        return np.asarray(sum(drawn, np.zeros((DRAWS, 1))))

    def _left(self, experiment: str) -> list[ClusterFacts]:
        from trainmaster.service.cluster_costs import clusters_left

        return clusters_left(self.clusters, experiment)


def tasks_in(experiment: Experiment, clusters: Sequence[ClusterFacts]) -> int:
    """How many tasks of an experiment some clusters run at the same time."""
    nodes = [(each.slots // each.machines, each.gpus) for each in clusters for _ in range(each.machines)]
    return tasks_on_nodes(experiment, nodes)


def gang_nodes(experiment: Experiment, there: int, gpus: int) -> int:
    """Machines that the workers of one task sit on.

    Args:
        experiment: with a fixed number of workers.
        there: how many machines its cluster has for them.
        gpus: that each of these has.
    """
    return min(machines_of_workers(experiment, gpus), there)


def machines_of_workers(experiment: Experiment, gpus: int) -> int:
    """Machines that the workers of one task are to have, each with so many GPUs.

    Args:
        experiment: with a fixed number of workers; of ``gpus: 1..8`` the machines decide.
        gpus: that a machine has.
    """
    return Needs.of(experiment, 0).gang_nodes(gpus)


def doing_of(
    experiment: ExperimentState,
    progress: Mapping[tuple[str, int], TaskProgress],
    now: float,
    where: Callable[[Task], AttemptMachine] | None = None,
    *,
    has_length: bool = True,
) -> ExperimentProgress:
    """How far an experiment is, and on what its tasks run; steps tell that only if their number is known."""
    from trainmaster.advisor.quote.forecast import ExperimentProgress, RunningTask

    running = []
    for task in experiment.live.values():
        if task.started_at is None or task.state is State.WAITING:
            continue
        found = progress.get(task.key)
        share = share_done(found, now) if found is not None and has_length else None
        aimed = None if found is None else found.aimed
        reports = ((), ()) if aimed is None else (tuple(aimed.steps), tuple(aimed.values))
        machine = "" if where is None else where(task).offer
        elapsed_s = max(now - task.started_at, 0.0)
        running.append(RunningTask(elapsed_s, share, reports, number=task.key[1], machine=machine))
    return ExperimentProgress(sum(experiment.ended.values()), tuple(running))


def _with_ends(
    experiment: Experiment, how_far: ExperimentProgress, known: TargetBelief | None
) -> ExperimentProgress:
    """The same with where its tasks may end as their target is reached, by their curves and earlier ones."""
    until, most = experiment.ends_at, experiment.builtin_values().get("steps")
    if until is None or not most:
        return how_far
    from trainmaster.advisor.model.learning_curve import forecast_curve

    running = []
    for task in how_far.running:
        steps, values = task.reports
        found, is_more = None, until.more_is_better
        if steps and steps[-1] <= most:  # it counts as the recipe does
            found = forecast_curve(steps, values, until.value, more_is_better=is_more, most=most)
        steps_of = () if found is None else found.steps if known is None else known.weighed(found.steps)
        running.append(replace(task, ends=tuple(min(float(step) / most, 1.0) for step in steps_of)))
    return replace(how_far, running=tuple(running))


def forecast_inputs(
    recipe: Recipe,
    now: float,
    elapsed_s: float,
    doing: Mapping[str, tuple[bool, ExperimentProgress]],
    measured: Measured,
    devices: Mapping[str, Device],
    capacity: Capacity,
    rented: RentedNow | None = None,
    beside: Mapping[str, Overhead] | None = None,
    curves: Mapping[str, Sequence[ObservedCurve]] | None = None,
    all_sizes: Mapping[str, Sequence[Measurement]] | None = None,
    earlier_trials: Mapping[str, Sequence[EarlierTrials]] | None = None,
) -> Forecast:
    """What a whole run will take and cost.

    Args:
        recipe: of the run.
        now: Unix seconds.
        elapsed_s: since its start.
        doing: by experiment: whether it is over, and how far it is.
        measured: on the machines that they run on.
        devices: what a worker of each experiment computes on.
        capacity: what it may use of this machine, if nothing is rented.
        rented: what is; None if it runs on this machine.
        beside: what is no training, by experiment.
        curves: what earlier runs have reported of the metrics of targets, by experiment.
        all_sizes: of experiments whose gangs may change, what was measured with any number of workers.
        earlier_trials: of sweeps, what each trial made in earlier runs of the very same one.

    Raises:
        NotKnown: too little was measured.
    """
    from trainmaster.advisor.quote.forecast import (
        RentedPart,
        forecast,
        forecast_rented,
        remaining_in_places_s,
        remaining_s,
    )
    from trainmaster.advisor.quote.quantiles import interval
    from trainmaster.advisor.quote.supply import own_cluster, own_load, own_timing
    from trainmaster.providers import load_catalogue

    here = load_catalogue("local", today=datetime.fromtimestamp(now, UTC).date())

    def span(drawn: Floats) -> Span:
        found = interval(drawn)
        return found.p5, found.p50, found.p95

    left, load, left_s = {}, {}, {}
    training: dict[str, dict[str, Span]] = {}
    sizes: dict[str, tuple[SizeForecast, ...]] = {}
    points, spread_out = 0, set[str]()
    for number, (name, (is_over, how_far)) in enumerate(doing.items()):
        if is_over:
            continue
        experiment, device = with_length(recipe.experiments[name], measured[name][0]), devices[name]
        room = capacity.slots if rented is None else rented.slots(name)
        at_once = tasks_here(experiment, capacity) if rented is None else rented.at_once(experiment)
        seen = (curves or {}).get(name, ())
        ends = (earlier_trials or {}).get(name, ())
        workload = workload_of(experiment, recipe.seed, at_once=at_once, curves=seen, earlier_trials=ends)
        how_far = _with_ends(experiment, how_far, workload.target)
        if done := begun_at(experiment, measured[name][0] or measured[name][1]):
            steps = workload.lengths[min(workload.lengths)].steps
            how_far = how_far.begun(done / steps) if steps else how_far
            workload = workload.begun(done)
        if rented is not None and rented.were_several(name):
            spread_out.add(name)
            several = _in_places(
                experiment, workload, here, measured[name], rented, how_far, number, recipe.seed
            )
            points += sum(len(some) for some in measured[name])
            timing, one = several[0].timing, several[0].one
            left[name] = remaining_in_places_s(several, how_far.ended)
        else:
            learnt = _learnt(workload, *measured[name], device, recipe.seed)
            if learnt is None:
                raise NotKnown(name)
            points += learnt.points
            timing = own_timing(workload, learnt, here, room, 100 * number)
            at_once = min(at_once, workload.side_by_side)
            nodes = 1 if rented is None else rented.nodes(experiment)
            one = own_cluster(timing, room, min(workload.lengths), at_once, nodes)
            left[name] = remaining_s(timing, one, how_far)
        if rented is not None:
            left[name] = left[name] + timing.change_s()
        left_s[name] = span(left[name])
        training[name] = {phase: span(drawn) for phase, drawn in timing.phases_s(one).items()}
        if rented is not None and (losses := rented.losses(name))[0].any():
            rate = timing.loss_rate(*losses).sum(1, keepdims=True)
            lost_s = timing.interrupted_s(left[name][:, None], rate, rented.anew_s(name, number), one)[:, 0]
            training[name]["interruptions"] = span(lost_s)
            left[name] = left[name] + lost_s
        if beside is not None and name in beside:
            left[name] = left[name] + beside[name].left_s(number)
        load[name] = float(own_load(workload, one, room)[0])
        if seen_sizes := (all_sizes or {}).get(name):
            from trainmaster.service.quotes.sizes import outlooks

            most = capacity.slots if rented is None else _MANY
            has = None if rented is None else rented.cluster(name)
            on = (lambda _: 1) if has is None else partial(machines_of_workers, gpus=has.gpus)
            sizes[name] = outlooks(experiment, recipe.seed, seen_sizes, device, here, most, on)
    after = {name: recipe.experiments[name].depends_on for name in left}
    if rented is None:
        both = forecast(elapsed_s, left, after, 0.0, load)
        return Forecast(*both, points, training, left_s, sizes)
    parts = [
        RentedPart(
            each.experiments,
            each.usd_per_hour,
            each.is_there,
            each.machine,
            each.machines,
            each.paid_s(now),
            each.quantum_s,
            each.provider,
            each.stays,
            0.0 if each.asked_at is None else max(now - each.asked_at, 0.0),
            each.is_billed,
            each.driver_usd_per_hour,
        )
        for each in rented.clusters
        if not each.is_over
    ]
    time_s, cost_usd = forecast_rented(
        elapsed_s,
        rented.spent_usd,
        left,
        after,
        parts,
        rented.provider,
        rented.waited,
        rented.gave_back_s,
        spread_out,
        load,
    )
    return Forecast(time_s, cost_usd, points, training, left_s, sizes)


def _learnt(
    workload: Workload,
    same: Sequence[Measurement],
    similar: Sequence[Measurement],
    device: Device,
    seed: int,
) -> Knowledge | None:
    """What was measured on one kind of machine; None if that says nothing of how long tasks take."""
    from trainmaster.advisor.model.knowledge import Knowledge

    found = Knowledge.of(same, similar, {device.offer: device}, {}, seed)
    if found is not None and found.model is not None and not workload.has_length:
        return found.as_whole_tasks()
    return found


def _in_places(
    experiment: Experiment,
    workload: Workload,
    here: Catalogue,
    measured: tuple[Sequence[Measurement], Sequence[Measurement]],
    rented: RentedNow,
    how_far: ExperimentProgress,
    number: int,
    seed: int,
) -> list[PlaceNow]:
    """Places of a sweep, each by what was measured there; else by the best known one and published figures.

    Raises:
        NotKnown: nothing was measured in any of them.
    """
    import numpy as np

    from trainmaster.advisor.quote.forecast import PlaceNow
    from trainmaster.advisor.quote.supply import own_cluster, own_timing
    from trainmaster.advisor.quote.timing import DRAWS
    from trainmaster.providers.capabilities import capabilities_of

    places = rented.places(experiment.name)
    known: dict[str, Knowledge] = {}
    for machine, clusters in places.items():
        same, similar = ([each for each in some if each.offer == machine] for some in measured)
        device = Device(experiment.hardware.device, float(sum(c.slots for c in clusters)), machine)
        if (learnt := _learnt(workload, same, similar, device, seed)) is not None:
            known[machine] = learnt
    if not known:
        raise NotKnown(experiment.name)
    best = max(known, key=lambda machine: known[machine].points)

    def normal(stream: int) -> Floats:
        return np.random.default_rng((9, number, stream)).standard_normal(DRAWS)

    def one_of(machine: str) -> Device:
        """What one worker has of a machine there, as far as it makes use of that."""
        first, used = places[machine][0], known[best].cores_per_worker
        cores = first.slots / max(first.nodes, 1)
        cores = cores if used is None else min(cores, max(used, 1.0))
        return Device(experiment.hardware.device, cores, machine)

    found = []
    for i, (machine, clusters) in enumerate(places.items()):
        learnt, slower, come_s = known.get(machine, known[best]), np.ones(DRAWS), np.zeros(DRAWS)
        if machine not in known:
            ratio, share = speed_ratio(one_of(machine), one_of(best)), learnt.computes
            slower = 1 - share + share * np.exp(-ratio.log + ratio.spread * normal(2 * i))
        if not any(each.is_there for each in clusters):
            first = clusters[0]
            provider = first.provider or rented.provider
            can = capabilities_of(provider)
            wait = machines_belief(
                can.provisioning_s, rented.waited, provider, machine, machines=first.machines
            )
            come_s = wait.median * np.exp(wait.spread * normal(2 * i + 1))
        room = max(sum(each.slots for each in clusters), slots_of(experiment))
        timing = own_timing(workload, learnt, here, room, 100 * number + i)
        at_once = min(tasks_in(experiment, clusters), workload.side_by_side)
        nodes = gang_nodes(experiment, clusters[0].nodes, clusters[0].gpus)
        one = own_cluster(timing, room, min(workload.lengths), at_once, nodes)
        # What is nowhere that is known counts with the first one.
        mine = {machine} if i else {machine} | ({each.machine for each in how_far.running} - places.keys())
        running = [each for each in how_far.running if each.machine in mine]
        found.append(PlaceNow(timing, one, replace(how_far, running=tuple(running)), come_s, slower))
    return found
