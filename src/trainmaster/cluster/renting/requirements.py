"""`Needs`: what an experiment asks of the machines it runs on, and which experiments can share some. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainmaster.control.task.gangs import slots_per_machine
from trainmaster.dataclass import dataclass
from trainmaster.spec import Experiment, Hardware, Recipe

WORKER = "worker"
SERVER = "ps"


@dataclass(frozen=True, slots=True)
class QuotedChoice:
    """What a quote took for an experiment, where the recipe leaves a choice.

    Attributes:
        instance, region, spot: of the workers' machines. nodes: how many of them, for all tasks at a time.
        server: type of the machines that only parameter servers are on, where the recipe gives them such.
        servers: how many of those.
    """

    instance: str
    region: str = ""
    spot: bool = False
    nodes: int = 1
    server: str = ""
    servers: int = 0


@dataclass(frozen=True, slots=True)
class Needs:
    """Of one experiment whose number of workers is settled.

    Attributes:
        name: of the experiment.
        hardware: of the nodes that its workers, or its tasks, are on.
        server_hardware: of the nodes that only parameter servers are on; None if these sit with the workers.
        workers: training processes of one task. servers: nodes of its own that one task's servers need.
        helpers: members of a task that sit on workers' nodes without being workers.
        tasks: how many could run at a time. spread: most nodes that the recipe lets them spread over; None if
            it is silent.
        node_slots: slots that the members of one task have on a node together, or that a task takes.
        fixed_per_node: workers on a node as the recipe says; None if it is silent.
        is_gang: its tasks are more than one process.
        pick: of a quote.
        notes: wishes that mean nothing.
    """

    name: str
    hardware: Hardware
    server_hardware: Hardware | None
    workers: int
    servers: int
    helpers: int
    tasks: int
    spread: int | None
    node_slots: int
    fixed_per_node: int | None
    is_gang: bool
    pick: QuotedChoice | None = None
    notes: tuple[str, ...] = ()
    retries: int = 0

    @classmethod
    def of(cls, experiment: Experiment, seed: int, pick: QuotedChoice | None = None) -> Needs:
        """Read them off an experiment.

        Args:
            experiment: with a fixed number of workers.
            seed: the recipe's.
            pick: what a quote took.
        """
        distributed = experiment.distributed
        roles = {role.name: role for role in experiment.members()}
        overrides = distributed.hardware if distributed else {}
        server, own = roles.get(SERVER), overrides.get(SERVER)
        notes = []
        if "chief" in overrides and "chief" in roles:
            notes.append(f"{experiment.name}: the chief sits on a worker's machine, whatever hardware it has")
        helpers = sum(role.count for name, role in roles.items() if name not in (WORKER, SERVER))
        return cls(
            name=experiment.name,
            hardware=roles[WORKER].hardware,
            server_hardware=_of_servers(server.hardware, own) if server and own else None,
            workers=roles[WORKER].count,
            servers=server.count if server and own else 0,
            helpers=helpers + (server.count if server and not own else 0),
            tasks=experiment.side_by_side(seed),
            spread=experiment.workers or (experiment.serve.most_at_once if experiment.serve else None),
            node_slots=slots_per_machine(experiment),
            fixed_per_node=distributed.per_node if distributed else None,
            is_gang=sum(role.count for role in roles.values()) > 1,
            pick=pick,
            notes=tuple(notes),
            retries=experiment.retries,
        )

    @property
    def key(self) -> tuple[object, ...]:
        """Experiments with the same key can share machines."""
        choice = self.pick and (self.pick.instance, self.pick.region, self.pick.spot, self.pick.server)
        return *self.asked, choice

    @property
    def asked(self) -> tuple[object, ...]:
        """What the recipe asks for: where it is the same, any machine that a quote took will do."""
        return _normal(self.hardware), self.server_hardware and _normal(self.server_hardware)

    def per_node(self, gpus: float) -> int:
        """Workers of one task on a node: as the recipe says, else one per GPU, else one.

        Args:
            gpus: that the node has.
        """
        if self.fixed_per_node is not None:
            return self.fixed_per_node
        if not self.hardware.gpu_count or not self.is_gang:
            return 1
        fixed = self.hardware.fixed_gpus
        return max(1, int(fixed if fixed is not None else gpus))

    def gang_nodes(self, gpus: float) -> int:
        """Nodes that one task's workers fill."""
        return math.ceil(self.workers / self.per_node(gpus))

    def at_once(self, gang_nodes: int, room: int | None = None) -> int:
        """Tasks at a time that nodes are wanted for.

        Args:
            gang_nodes: that one of them fills.
            room: nodes that are there anyway; None if each is to be rented: then one task's will do, unless
                the recipe says more.
        """
        most = self.spread if room is None else min(self.spread or room, room)
        return max(1, min(self.tasks, (most or gang_nodes) // gang_nodes))

    def nodes(self, gpus: float) -> int:
        """Nodes to rent for its workers, or its tasks."""
        if self.pick is not None:
            return max(self.pick.nodes, self.gang_nodes(gpus))
        gang_nodes = self.gang_nodes(gpus)
        return gang_nodes * self.at_once(gang_nodes)

    def server_nodes(self, gpus: float) -> int:
        """Nodes to rent for its parameter servers alone."""
        if self.pick is not None and self.pick.servers:
            return self.pick.servers
        return self.servers * self.at_once(self.gang_nodes(gpus))

    def slots_on(self, per_node: int) -> int:
        """Slots that a node must have so that a gang's share of it fits, whichever of its nodes it is.

        Each member gets its share of ``hardware.cpus``, as in `slots_of`.
        """
        return (min(per_node, self.workers) + self.helpers) * max(1, self.node_slots // per_node)


def grouped(recipe: Recipe, picks: dict[str, QuotedChoice]) -> list[Sequence[Needs]]:
    """Experiments that share a cluster, in the order of the recipe."""
    every = [Needs.of(each, recipe.seed, picks.get(name)) for name, each in recipe.experiments.items()]
    taken: dict[tuple[object, ...], tuple[object, ...]] = {}
    for needs in every:
        if needs.pick is not None:
            taken.setdefault(needs.asked, needs.key)
    groups: dict[tuple[object, ...], list[Needs]] = {}
    for needs in every:
        # One without a quote, as nothing is known of it, needs no machines beside those of one that has.
        key = needs.key if needs.pick is not None else taken.get(needs.asked, needs.key)
        groups.setdefault(key, []).append(needs)
    return list(groups.values())


def _of_servers(hardware: Hardware, own: Hardware) -> Hardware:
    """Servers have the workers' needs, but GPUs only if they themselves ask for some."""
    return hardware.model_copy(update={"gpu": own.gpu, "gpus": own.gpus, "most": own.most})


def _normal(hardware: Hardware) -> str:
    return hardware.model_copy(update={"spot": bool(hardware.spot)}).model_dump_json()
