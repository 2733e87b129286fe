"""What an experiment has to do, in numbers: the demand side of a quote."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainmaster.advisor.market.phases import PhaseHistory
from trainmaster.advisor.model.task_numbers import numbers_of_task
from trainmaster.dataclass import dataclass, field
from trainmaster.spec import Experiment, Strategy
from trainmaster.spec.errors import UsageError
from trainmaster.spec.hardware import Hardware
from trainmaster.spec.processor_limit import check_processor_limit

if TYPE_CHECKING:
    from trainmaster.advisor.model.measurement import ObservedCurve
    from trainmaster.advisor.model.shapes import Floats
    from trainmaster.advisor.model.target_steps import TargetBelief
    from trainmaster.spec.task_space import TaskSpace
    from trainmaster.spec.until import Until

#: Most workers that are considered where the recipe sets no limit.
MOST_WORKERS = 64
#: How often checkpoints are taken where the recipe says nothing.
CHECKPOINT_EVERY_S: Final = 60.0
#: Of more tasks so many stand for all.
_MOST_SIZES: Final = 256


@dataclass(frozen=True, slots=True)
class Length:
    """How much one task trains with a given number of workers.

    Attributes:
        steps: in all; None where the recipe does not say.
        epochs: 1 where the recipe does not say.
        local_batch: examples per worker and step; None where the recipe does not say.
    """

    steps: int | None
    epochs: int
    local_batch: int | None

    def after(self, steps: int) -> Length:
        """What is left after so many.

        >>> Length(300, 3, 32).after(200)
        Length(steps=100, epochs=1, local_batch=32)
        """
        every = self.steps or steps + 1
        left = max(every - steps, 1)
        return Length(left, max(round(self.epochs * left / every), 1), self.local_batch)


@dataclass(frozen=True)
class Workload:
    """One experiment as a quote sees it.

    Attributes:
        name: of the experiment.
        after: experiments that must have ended before it starts.
        sync: how its workers agree; all-reduce for a single process.
        tasks: how many.
        spread: most nodes its tasks may spread over (``workers`` in the recipe); None is no limit.
        machines: just so many are taken for its workers; None is as many as are best.
        lengths: by number of workers; numbers that cannot share the batch evenly are missing.
        servers: parameter servers of a task.
        chief: 1 if a coordinating process comes with them.
        per_node: workers on a node as the recipe says; None is one per GPU, else one.
        hardware: of the workers. server_hardware: of the parameter servers.
        checkpoint_every_s: as the recipe says; None leaves the choice to us.
        is_bounded: the recipe says how many workers there may be at most. most_workers: so many.
        latency_ms: between the machines, one way, as the recipe says; None is as it was measured.
        own_servers: the recipe says what machines its parameter servers are to have.
        once: phases that are no training, in their order.
        trained: what share of its steps a pruner lets so many tasks make, of which so many run side by side,
            as shares that are equally likely; None: all of them.
        simulated_shares: by play of that pruner, the share of each task in the order in which they begin,
            with as many side by side as there are, or usually are; see `shares_by_order`. Empty where it ends
            none, or cannot be played.
        prepared_in: provider and region of images from which machines start with ``setup`` and ``container``.
        is_warm: its machines are there, an earlier run has kept them. stays: they are kept afterwards.
        adapts: another machine may take the place of one that becomes slow.
        sizes: `task_numbers` of its tasks; empty where they are alike, or not known before.
        generation: so many tasks begin when all before them are over; None: tasks wait for no others.
        until: what ends its tasks early. target: what is believed of when; None where nothing is known.
    """

    name: str
    sync: Strategy
    tasks: int
    lengths: dict[int, Length]
    after: tuple[str, ...] = ()
    spread: int | None = None
    servers: int = 0
    chief: int = 0
    per_node: int | None = None
    hardware: Hardware = field(default_factory=Hardware)
    server_hardware: Hardware = field(default_factory=Hardware)
    checkpoint_every_s: float | None = None
    is_bounded: bool = True
    most_workers: int = 1
    own_servers: bool = False
    latency_ms: float | None = None
    once: tuple[PhaseHistory, ...] = ()
    trained: Callable[[int, int], Sequence[float]] | None = None
    simulated_shares: tuple[tuple[float, ...], ...] = ()
    prepared_in: frozenset[tuple[str, str]] = frozenset()
    is_warm: bool = False
    stays: bool = False
    adapts: bool = False
    until: Until | None = None
    target: TargetBelief | None = None
    machines: int | None = None
    sizes: tuple[Mapping[str, float], ...] = ()
    generation: int | None = None

    @classmethod
    def of(cls, experiment: Experiment, seed: int, max_workers: int | None = None) -> Workload:
        """Read it off a recipe's experiment.

        Args:
            experiment: of the recipe.
            seed: the recipe's.
            max_workers: workers of one task at most, from the command line.

        Raises:
            UsageError: no number of workers can share the global batch evenly.
            TooMuchWorkError: see `processor_limit`.
        """
        check_processor_limit()
        lengths = dict(_lengths(experiment, max_workers))
        if not lengths:
            raise UsageError(
                f"experiments.{experiment.name}.batch: no allowed number of workers shares it evenly",
                "Change the global batch, distributed.workers or the most workers (max_workers).",
            )
        distributed = experiment.distributed
        roles = {role.name: role for role in experiment.members(min(lengths))}
        server = roles.get("ps")
        return cls(
            name=experiment.name,
            after=experiment.depends_on,
            sync=distributed.strategy if distributed else Strategy.ALLREDUCE,
            tasks=len(experiment.tasks(seed)),
            spread=experiment.workers,
            lengths=lengths,
            servers=server.count if server else 0,
            chief=roles["chief"].count if "chief" in roles else 0,
            per_node=distributed.per_node if distributed else None,
            hardware=roles["worker"].hardware if "worker" in roles else experiment.hardware,
            server_hardware=server.hardware if server else Hardware(),
            checkpoint_every_s=experiment.checkpoint.every_s if experiment.checkpoint else None,
            is_bounded=distributed is None or distributed.worker_bounds[1] is not None,
            own_servers=distributed is not None and "ps" in distributed.hardware,
            latency_ms=distributed.latency_ms if distributed else None,
            most_workers=(distributed.worker_bounds[1] if distributed else 1) or MOST_WORKERS,
            adapts=experiment.adapt,
            until=experiment.ends_at,
            sizes=tuple(_sizes(experiment.tasks(seed))),
            generation=experiment.generation,
        )

    def aimed(self, curves: Sequence[ObservedCurve]) -> Workload:
        """The same with when its target is reached, by what was seen of its metric."""
        if self.until is None or not curves or not self.has_length:
            return self
        from trainmaster.advisor.model.target_steps import target_belief

        workers, length = min(self.lengths.items())
        belief = target_belief(
            curves,
            self.until.metric,
            self.until.value,
            more_is_better=self.until.more_is_better,
            batch=self.global_batch(workers, length),
            most=length.steps,
        )
        return replace(self, target=belief)

    def saves_every_s(self, seen_s: float | None) -> float:
        """Seconds from one checkpoint to the next; infinite without any.

        Args:
            seen_s: see `Measurement.saves_every_s`.
        """
        return math.inf if seen_s == 0 else max(self.checkpoint_every_s or CHECKPOINT_EVERY_S, seen_s or 0.0)

    @property
    def fewest_steps(self) -> int:
        """Of all numbers of workers; 0 if the recipe does not say."""
        return min((length.steps or 0 for length in self.lengths.values()), default=0)

    def begun(self, steps: int) -> Workload:
        """The same without steps that a checkpoint has done; one at least is left."""
        if not steps or not self.has_length:
            return self
        return replace(self, lengths={n: each.after(steps) for n, each in self.lengths.items()})

    def global_batch(self, workers: int, length: Length) -> float | None:
        """Examples of a step of all workers; where each goes its own way, of one."""
        each = length.local_batch
        return each if each is None or self.sync is Strategy.PS_ASYNC else float(each * workers)

    @property
    def side_by_side(self) -> int:
        """How many tasks could run at the same time."""
        return min(self.tasks, self.generation or self.tasks)

    def waves(self, at_once: Floats | float) -> Floats:
        """How many tasks each place is given, one after the other, where so many run at the same time."""
        import numpy as np

        whole = np.ceil(self.side_by_side / np.asarray(at_once, dtype=float))
        return np.asarray(np.ceil(self.tasks / self.side_by_side) * whole)

    @property
    def members_on_node(self) -> int:
        """Workers that share what ``hardware`` says of a machine."""
        return self.per_node or (self.hardware.gpu_count if max(self.lengths, default=1) > 1 else 1) or 1

    @property
    def slots_per_member(self) -> int:
        """Slots of the user's own machine that one process takes: its share of what a machine must have."""
        return max(1, (self.hardware.cpus or 1) // self.members_on_node)

    @property
    def has_length(self) -> bool:
        """True if the recipe says how many steps there are."""
        return all(length.steps is not None for length in self.lengths.values())


def _sizes(tasks: TaskSpace) -> Iterator[dict[str, float]]:
    """Of at most so many tasks, evenly from all."""
    for task in range(0, len(tasks) if len(tasks) > 1 else 0, -(-len(tasks) // _MOST_SIZES)):
        numbers = numbers_of_task(tasks, task)
        if numbers is None:
            return
        yield numbers


def _lengths(experiment: Experiment, max_workers: int | None) -> Iterator[tuple[int, Length]]:
    low, high = experiment.distributed.worker_bounds if experiment.distributed else (1, 1)
    if max_workers is not None and low > max_workers:
        raise UsageError(
            f"experiments.{experiment.name}.distributed.workers: at least {low}, "
            f"but at most {max_workers} are asked for (max_workers)",
            "Raise the most workers, or lower distributed.workers.",
        )
    most = max(low, MOST_WORKERS, max_workers or 0) if high is None else high
    for workers in range(low, min(most, max_workers or most) + 1):
        try:
            values = experiment.builtin_values(workers)
        except UsageError:  # it cannot share the batch evenly
            continue
        yield (
            workers,
            Length(values.get("steps"), values.get("epochs", 1), values.get("batch_per_worker")),
        )
