"""How many workers a recipe allows, and the recipe with some of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import exp
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.model.measurement import Measurement, ObservedCurve
from trainmaster.cluster.renting.requirements import Needs
from trainmaster.dataclass import dataclass
from trainmaster.service.quotes.job_numbers import LENGTH
from trainmaster.spec import Experiment, Hardware, Recipe
from trainmaster.spec.objective import Objective

if TYPE_CHECKING:
    from trainmaster.advisor.quote.quote import Quote, Rented
    from trainmaster.service.quotes.earlier_trials import EarlierTrials
    from trainmaster.service.quotes.quote_options import QuoteOptions
    from trainmaster.sweeps.pruner import Pruner

#: How much the share of a sweep that a pruner lets train differs from what is expected (log), where it cannot
#: be played: early values do not quite tell which trials are better. It is told by so many shares.
_PRUNED_SPREAD: Final = 0.35
_DOUBTS: Final = 32
#: Trials side by side, where that is not known yet.
_AT_ONCE: Final = 2


def workload_of(
    experiment: Experiment,
    seed: int,
    max_workers: int | None = None,
    at_once: int = _AT_ONCE,
    curves: Sequence[ObservedCurve] = (),
    earlier_trials: Sequence[EarlierTrials] = (),
) -> Workload:
    """What an experiment has to do, and how much of it its target and its pruner leave to do.

    Args:
        experiment: of the recipe.
        seed: the recipe's.
        max_workers: workers of one task at most, from the command line.
        at_once: tasks that run side by side.
        curves: what was seen of the metric of its target.
        earlier_trials: what each trial of this sweep made in earlier runs; see `trials_of_earlier_runs`.

    Raises:
        UsageError: no number of workers can share the global batch evenly.
    """
    found = Workload.of(experiment, seed, max_workers).aimed(curves)
    steps = next(iter(found.lengths.values())).steps
    if experiment.search is None or experiment.search.pruner is None or not steps or found.tasks < 2:
        return found
    from trainmaster.sweeps import make_pruner

    pruner = make_pruner(experiment.search)
    if pruner is None:
        return found
    sweep = PrunedSweep(pruner, steps, experiment.search.chooses_later, tuple(earlier_trials))
    played = sweep.simulated_shares(found.tasks, at_once)
    is_pruned = any(min(play) < 1 for play in played)
    return replace(found, trained=sweep.trained, simulated_shares=played if is_pruned else ())


@dataclass(frozen=True, slots=True)
class PrunedSweep:
    """What a pruner lets the trials of a sweep make, by how many run side by side.

    Attributes:
        pruner: of the search. steps: of a whole trial. learns: its sampler sees results.
        seen: earlier runs of the very same sweep.
    """

    pruner: Pruner
    steps: int
    learns: bool
    seen: tuple[EarlierTrials, ...] = ()

    def simulated_shares(self, tasks: int, at_once: int) -> tuple[tuple[float, ...], ...]:
        """By play the share of each task; with what was seen of as many at once. See `shares_by_order`."""
        from trainmaster.sweeps.pruner import shares_by_order, with_seen

        played = shares_by_order(self.pruner, tasks, self.steps, at_once, learns=self.learns)
        return with_seen(played, self._seen(tasks, at_once))

    def trained(self, tasks: int, at_once: int) -> tuple[float, ...]:
        """Shares of its steps that a task makes on average, any of them as likely as the others.

        Whether 23 or 24 run side by side does not matter much, and a play takes its time: it is of the power
        of two below. That the slots are free at other times counts in full.
        """
        from trainmaster.sweeps.pruner import trained_by_turns

        at_once = min(at_once, tasks)
        seen = self._seen(tasks, at_once)
        nearly = at_once if seen or at_once == tasks else 1 << (at_once.bit_length() - 1)
        all_shares, later = self.simulated_shares(tasks, nearly), self.pruner.usual_share
        if later is None:
            return tuple(trained_by_turns(play, tasks, at_once) for play in all_shares)
        if not all_shares:  # the first ones have nothing to be compared with
            all_shares = ((1.0,) * at_once + (later,) * (tasks - at_once),)
        spread = _PRUNED_SPREAD / (1 + len(seen))
        doubts = [exp(spread * NormalDist().inv_cdf((i + 0.5) / _DOUBTS)) for i in range(_DOUBTS)]

        def doubted(play: Sequence[float], doubt: float) -> tuple[float, ...]:
            return tuple(share if share == 1 else min(share * doubt, 1.0) for share in play)

        both = product(all_shares, doubts)
        return tuple(trained_by_turns(doubted(play, doubt), tasks, at_once) for play, doubt in both)

    def _seen(self, tasks: int, at_once: int) -> list[tuple[float, ...]]:
        """With fewer side by side more of them are compared with others."""
        return [e.shares for e in self.seen if len(e.shares) == tasks and e.at_once == min(at_once, tasks)]


def begun_at(experiment: Experiment, measured: Iterable[Measurement]) -> int:
    """Steps that the checkpoint which an experiment begins with has done, as its attempts counted on; else 0.

    A target may be reached at any step: then it is 0, too. So it is where ``steps`` are not more than it has
    done: the script may make as many again.

    Args:
        experiment: of the recipe.
        measured: attempts at it; one that went on from a later checkpoint of its own says nothing.
    """
    if experiment.beginning is None or experiment.ends_at is not None:
        return 0
    done = min((each.begun_at for each in measured if each.point is not None), default=0)
    return done if done < Workload.of(experiment, 0).fewest_steps else 0


def with_length(experiment: Experiment, measured: Iterable[Measurement]) -> Experiment:
    """The experiment with the steps that its own script says it makes, where the recipe has no length.

    It counts as ``steps`` of the recipe would, unless attempts did not agree, one with that number of workers
    has ended before, or its parameters change how long tasks are. Where none had that number of workers, two
    others tell whether each worker makes all steps, or they share them.

    Args:
        experiment: of the recipe.
        measured: attempts at the very same.
    """
    from trainmaster.spec.length_options import has_open_length

    shaped = experiment.distributed
    if (shaped is not None and shaped.is_flexible) or experiment.serve is not None:
        return experiment
    if experiment.builtin_values().get("steps"):
        return experiment
    if any(map(LENGTH.fullmatch, experiment.parameters)) or has_open_length(experiment.command):
        return experiment
    mine = [m for m in measured if m.point is not None and m.said_steps]
    if shaped is not None and isinstance(shaped.workers, int):
        same = [m for m in mine if m.point is not None and m.point.workers == shaped.workers]
        if not same:
            steps = None if any(m.ended_early for m in mine) else _said_with(shaped.workers, mine)
            return experiment if steps is None else experiment.model_copy(update={"steps": steps})
        mine = same
    said = {m.said_steps for m in mine}
    if len(said) != 1 or any(m.ended_early for m in mine):
        return experiment
    return experiment.model_copy(update={"steps": said.pop()})


def _said_with(workers: int, measured: Iterable[Measurement]) -> int | None:
    """How many steps it says with so many workers, by what it said with others; None if that is not told."""
    said = {(m.point.workers, m.said_steps) for m in measured if m.point is not None}
    if len({count for count, _ in said}) < 2:
        return None
    lengths = {steps for _, steps in said}
    if len(lengths) == 1:
        return lengths.pop()
    # Shared out, a part of a step is one more: the whole is between what is full and what has a rest.
    least = max(count * (steps - 1) + 1 for count, steps in said)
    most = min(count * steps for count, steps in said)
    return -(-most // workers) if least <= most else None


def with_lengths(recipe: Recipe, measured: Mapping[str, Iterable[Measurement]]) -> Recipe:
    """The recipe with the steps that scripts say they make, see `with_length`; itself if none says more.

    Args:
        recipe: any.
        measured: attempts at the very same, by experiment.
    """
    found = {name: with_length(recipe.experiments[name], seen) for name, seen in measured.items()}
    if all(each is recipe.experiments[name] for name, each in found.items()):
        return recipe
    return recipe.model_copy(update={"experiments": {**recipe.experiments, **found}})


def quoted_workload(
    recipe: Recipe,
    experiment: Experiment,
    options: QuoteOptions,
    curves: Sequence[ObservedCurve] = (),
    earlier_trials: Sequence[EarlierTrials] = (),
) -> Workload:
    """The same, as quotes are made for it: of one of several places, with the latency of its machines.

    Args:
        recipe: of the run.
        experiment: one of it.
        options: of the quote.
        curves: see `workload_of`.
        earlier_trials: see `workload_of`.

    Raises:
        UsageError: see `workload_of`.
    """
    found = workload_of(
        experiment, recipe.seed, options.max_workers, curves=curves, earlier_trials=earlier_trials
    )
    if (share := options.shares.get(experiment.name)) is not None:
        tasks = found.tasks if share.tasks is None else share.tasks
        played = found.simulated_shares if tasks == found.tasks else ()
        found = replace(found, machines=share.machines, tasks=tasks, simulated_shares=played)
    found = replace(found, stays=options.keep_s > 0)
    return found if options.latency_ms is None else replace(found, latency_ms=options.latency_ms)


def allowed_workers(experiment: Experiment) -> list[int]:
    """Numbers of workers that the recipe allows and that share the batch evenly, the fewest first."""
    return sorted(Workload.of(experiment, 0).lengths)


def with_workers(recipe: Recipe, counts: Mapping[str, int]) -> Recipe:
    """The recipe with these numbers of workers.

    Args:
        recipe: any.
        counts: of experiments with ``distributed``, by name.
    """
    experiments = dict(recipe.experiments)
    for name, count in counts.items():
        shaped = experiments[name].distributed
        assert shaped is not None
        fixed = shaped.sized(count, shaped.parameter_servers)
        experiments[name] = experiments[name].model_copy(update={"distributed": fixed})
    return recipe.model_copy(update={"experiments": experiments})


def with_clusters(recipe: Recipe, quote: Quote) -> Recipe:
    """The recipe with the clusters of a quote: whatever chooses machines later can only take those.

    Args:
        recipe: that was quoted.
        quote: of some of its experiments.
    """
    experiments = dict(recipe.experiments)
    for name, one in quote.experiments.items():
        each, cluster = experiments[name], one.cluster
        if (shaped := each.distributed) is not None:
            sized = shaped.sized(cluster.workers, shaped.parameter_servers)
            each = each.model_copy(update={"distributed": sized})
        experiments[name] = on_machines(each, cluster.worker, cluster.server)
    return recipe.model_copy(update={"experiments": experiments, "objective": Objective()})


def on_machines(experiment: Experiment, worker: Rented, server: Rented | None) -> Experiment:
    """The experiment that can only take machines of these kinds.

    Args:
        experiment: any.
        worker: of its workers.
        server: of parameter servers that have machines of their own.
    """
    region = worker.region or experiment.hardware.region
    changes = {"instance": (worker.instance,), "spot": worker.spot, "region": region}
    distributed = experiment.distributed
    if distributed is not None:
        roles = {role: hardware for role, hardware in distributed.hardware.items() if role != "ps"}
        if server is not None:
            own = distributed.hardware.get("ps") or Hardware()
            roles["ps"] = own.model_copy(update={"instance": (server.instance,), "spot": server.spot})
        distributed = distributed.model_copy(update={"hardware": roles})
    hardware = experiment.hardware.model_copy(update=changes)
    return experiment.model_copy(update={"hardware": hardware, "distributed": distributed})


def filling_machines(experiment: Experiment, machines: int, gpus: int) -> Experiment | None:
    """The experiment with what it allows of numbers of workers that fill just so many machines; None if none.

    Args:
        experiment: any; itself, if it does not leave that open.
        machines: of its workers.
        gpus: of each.
    """
    shaped = experiment.distributed
    if shaped is None or not shaped.is_flexible:
        return experiment

    def sized(workers: int) -> Experiment:
        fixed = shaped.sized(workers, shaped.parameter_servers)
        return experiment.model_copy(update={"distributed": fixed})

    good = [n for n in allowed_workers(experiment) if Needs.of(sized(n), 0).gang_nodes(gpus) == machines]
    if not good:
        return None
    narrowed = shaped.model_copy(update={"workers": f"{good[0]}..{good[-1]}"})
    return experiment.model_copy(update={"distributed": narrowed})


def with_fewest(recipe: Recipe) -> Recipe:
    """The recipe with the fewest workers where it leaves their number open; itself if it does not."""
    fewest = {
        name: allowed_workers(experiment)[0]
        for name, experiment in recipe.experiments.items()
        if experiment.distributed and experiment.distributed.is_flexible
    }
    return with_workers(recipe, fewest) if fewest else recipe
