"""One simulation of everything that acts on time, with all that may go wrong: docs/development/simulation.md.

A seed draws a recipe, machines that it rents, and a schedule of troubles. The real code that decides drives
it in simulated time: controller, clusters' loops, provider, meter. Whatever an invariant forbids is a
failure; the seed then replays it line by line::

    python -m trainmaster.testing.failures --seed 17 --verbose
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from trainmaster.artifacts import CheckpointSeries, read_manifest
from trainmaster.artifacts.owner import Owner, claim
from trainmaster.cluster import cluster_connection, provider_outage
from trainmaster.cluster.record import ClusterRecord, ClusterState, new_record
from trainmaster.control.loop import controller
from trainmaster.executors.base import GangRequest
from trainmaster.spec import processes
from trainmaster.spec.states import EndReason, State
from trainmaster.testing.simulated_cloud import SKEW_S, Instance, ProviderMemory, SimulatedCloud, provider_of
from trainmaster.testing.simulated_driver import SimulatedDatabase, SimulatedDriver, sleeping
from trainmaster.testing.simulated_hazards import SLOTS, WEIGHTS, Hazard, Hazards
from trainmaster.testing.simulated_host import SimulatedHost, SimulatedProcess, simulated_clocks
from trainmaster.testing.simulated_judge import Judge
from trainmaster.testing.simulated_node import Ending
from trainmaster.testing.simulated_provisioner import SimulatedProvisioner
from trainmaster.testing.simulated_ray import RayNode, SimulatedRay, instant_calls
from trainmaster.testing.simulated_saving import (
    STORE,
    Objects,
    SavingActions,
    home_in,
    new_directory,
    publish_text,
    remove,
)
from trainmaster.testing.simulated_store import SimulatedStore
from trainmaster.testing.simulated_volumes import Volumes
from trainmaster.testing.simulated_world import ViolationError, World
from trainmaster.testing.simulation import SimulationReport, replayed, report_of

if TYPE_CHECKING:
    pass

_RUN: Final = "sim-0000"
_COMMITTED: Final = re.compile(r"/(models|checkpoints)/[^/]+/train/(\d+)(/\w+)?/manifest\.json$")
#: An attempt that another driver makes; no schedule has as many.
_LATER: Final = 100
_MOST_S: Final = 400_000.0
#: A driver asks a provider that was away, and tells it what it could not tell, within so long.
_TOLD_S: Final = 120.0


class Failures:
    """One schedule.

    Args:
        seed: of the schedule.
        verbose: print it.
        weights: how often which hazard is drawn.
    """

    home = "home-1"

    def __init__(self, seed: int, *, verbose: bool = False, weights: Mapping[Hazard, int] = WEIGHTS) -> None:
        self.world = World(seed, verbose=verbose, most_s=_MOST_S)
        self.run = _RUN
        self.plan = Hazards.draw(self.world.rng, self.run, weights)
        self.cloud = SimulatedCloud(self.world, self._ended)
        self.cloud.most_skew_s = SKEW_S if self.plan.checks_clocks else math.inf
        self.host = SimulatedHost(self.world, "laptop", self.plan.skew_s)
        self.memory = ProviderMemory()
        self.places = Places()
        self.rays: dict[str, SimulatedRay] = {}
        self.started: set[str] = set()
        self.memories: dict[str, dict[str, Any]] = {}
        self.database = SimulatedDatabase()
        experiments = self.plan.work.experiments
        self.store = SimulatedStore(
            self.run,
            {name: one.shape for name, one in experiments.items()},
            {name: one.total for name, one in experiments.items()},
            {name: one.policy.retries for name, one in experiments.items()},
        )
        self.database.runs[self.run] = self.store
        record = new_record(self.run, self.plan.cluster, self.home, self.plan.keep_s)
        self.database.add(self.run, record)
        self.driver = SimulatedDriver(self, 0, self.host)
        self.driver.process.is_alive = False
        self.objects = Objects(self)
        self.directory = home_in(new_directory(self))
        self.owner = Owner(self.run, self.home, self.world.now)
        self.judge = Judge(self)
        self.published: dict[tuple[str, int], list[int]] = {}
        self.later: dict[str, str] = {}
        self._disk_is_full = False
        self._is_reaped_by_copy = False
        self._drivers = 0

    # --- what drivers need ---------------------------------------------------------------------------

    def provider(self, process: SimulatedProcess) -> Any:  # noqa: ANN401 - an `AwsProvider`
        """The home's provider in a process."""
        return provider_of(self.cloud, process, self.home, self.memory)

    def provisioner(self) -> SimulatedProvisioner:
        """What makes nodes of machines."""
        return SimulatedProvisioner(self.cloud, self.rays, self._ray, self.plan.lease_s, self.memories)

    @property
    def recipe(self) -> Any:  # noqa: ANN401 - a `Recipe`, as far as it is needed
        """With its budget."""
        cap_usd = self.plan.cap_usd
        return SimpleNamespace(budget=None if cap_usd is None else SimpleNamespace(total_usd=cap_usd))

    def make_bench(self, driver: SimulatedDriver) -> Any:  # noqa: ANN401 - a bench
        """What performs decisions."""
        return SavingActions(self, driver)

    def take_disk(self) -> bool:
        """Whether the disk is full now; the user frees some."""
        full, self._disk_is_full = self._disk_is_full, False
        return full

    # --- the schedule ----------------------------------------------------------------------------------

    def go(self) -> Counter[str]:
        """Run the schedule to its end; what was reached.

        Raises:
            ViolationError: an invariant does not hold.
        """
        if self.world.verbose:
            self.world.note(str(self.plan))
        processes._space_of.cache_clear()  # a process of the schedule before may have had the same number
        for at_s, hazard, for_s in self.plan.befalls:
            self.world.after(at_s, lambda hazard=hazard, for_s=for_s: self.befall(hazard, for_s))  # type: ignore[misc]
        with ExitStack() as stack:
            stack.enter_context(simulated_clocks(self.world, sleeping(self)))
            stack.enter_context(instant_calls(cluster_connection._Call))
            stack.enter_context(self.objects.served())
            stack.callback(remove, self.directory.root)
            # Steps are longer here than those of a process that runs, and are no sleep.
            stack.enter_context(patch.object(provider_outage, "ASLEEP_S", 2.5 * self.plan.pause_s))
            stack.enter_context(patch.object(controller, "FIND_S", 10.0 * self.plan.pause_s))
            with self.objects.judged():
                claim(STORE, self.owner, {})
            self._drive_all()
            self._settle()
        return self.store.seen

    def _drive_all(self) -> None:
        self._drive(resumes=False)
        while True:
            self.world.require()
            if self.store.run["state"] is State.DONE:
                good = self.store.run["reason"] is EndReason.SUCCEEDED
                if good or not self.plan.resumes:
                    return
                self.plan.resumes -= 1
            self.world.pass_time(self.world.now + self.world.rng.choice((1.0, 30.0, self.plan.lease_s)))
            self._drive(resumes=True)

    def _drive(self, *, resumes: bool) -> None:
        """One driver from its start to its end."""
        self._drivers += 1
        self.world.pass_time(max(self.world.now, self.host.asleep_until))
        self.driver = driver = SimulatedDriver(self, self._drivers, self.host)
        lease = self.database.acquire(self.run, driver.process)
        if lease is None:
            raise ViolationError("nobody drives the run, and nobody may")
        self.world.note(f"{driver.process.name} begins")
        if resumes and self.store.run["state"] is State.DONE:
            self.store.requeue(lease, self.host.wall())
        driver.drive(lease)
        self.world.require()

    def _settle(self) -> None:
        """It is not driven any more: what is left ends by itself, and is judged."""
        rest_s = max(self.plan.lease_s, self.plan.keep_s) + 300.0
        self.world.pass_time(max(self.world.now, self.host.asleep_until) + rest_s)
        self.world.require()
        for one in self.cloud.live():
            raise ViolationError(f"{one.id} is never given back")
        self.judge.models()
        self.judge.faults()
        self.world.require()
        cap_usd = self.plan.cap_usd
        bill_usd = self.cloud.bill_usd()
        if cap_usd is not None and bill_usd > cap_usd + self.judge.unknown_usd() + 1e-6:
            raise ViolationError(f"${bill_usd:.4f} are billed, the cap is ${cap_usd:.4f}")
        if self.store.run["state"] is not State.DONE:
            raise ViolationError(f"the run is {self.store.run['state']} at the end")

    # --- what befalls it -------------------------------------------------------------------------------

    def befall(self, hazard: Hazard, for_s: float) -> None:
        """Let something go wrong."""
        world, cloud = self.world, self.cloud
        until = world.now + for_s
        world.note(f"{hazard} ({for_s:.0f} s)")
        live = list(cloud.live())
        one = world.rng.choice(live) if live else None
        match hazard:
            case Hazard.KILL:
                self.driver.process.is_alive = False
            case Hazard.SUSPEND:
                self.host.suspend(for_s)
            case Hazard.CLOCK_BACK | Hazard.CLOCK_FORWARD:
                self._set_clock(4 * for_s if hazard is Hazard.CLOCK_FORWARD else -4 * for_s, for_s)
            case Hazard.API_AWAY:
                cloud.away_until = max(until, cloud.away_until)
            case Hazard.API_THROTTLED:
                cloud.throttled_until = max(until, cloud.throttled_until)
            case Hazard.KEYS_EXPIRED:
                cloud.keys_expired_until = max(until, cloud.keys_expired_until)
            case Hazard.NO_CAPACITY:
                zones = {role.zone for role in self.plan.cluster.roles[0].rentals}
                for zone in sorted(zones) if world.chance(0.5) else sorted(zones)[:1]:
                    cloud.empty_until[zone] = until
            case Hazard.LOSE_MACHINE if one is not None:
                cloud.end(one, "Server.InternalError")
            case Hazard.PREEMPT if one is not None and one.spot:
                cloud.take_back(one)
            case Hazard.MARKET:
                cloud.move_market(world.rng.uniform(0.7, 2.5))
            case Hazard.CUT_OFF if one is not None:
                one.cut_until = until
            case Hazard.CANCEL if self.store.run["state"] is not State.DONE:
                self.store.want_stop(EndReason.CANCELLED)
            case Hazard.INTERRUPT if self.driver.process.is_alive and self.driver.controller is not None:
                self.driver.controller.interrupt()
            case Hazard.SECOND_HOME:
                self._run_elsewhere()
            case Hazard.COLLECTION:
                with SimulatedProcess(self.host, "volumes").at_work():
                    Volumes(self).go()
            case Hazard.STORE_AWAY:
                self.objects.away_until = max(until, self.objects.away_until)
            case Hazard.FULL_DISK:
                self._disk_is_full = True
            case Hazard.COPIED_HOME:
                self._reap_copied()
            case Hazard.SECOND_DRIVER:
                self._drive_too()
            case _:
                pass

    def pause(self, driver: SimulatedDriver, where: str) -> None:
        """A driver stands still at a step, for a while."""
        for_s = self.plan.lease_s * self.world.rng.choice((0.1, 0.5, 2.0))
        self.world.note(f"{driver.process.name} stands still {where} for {for_s:.0f} s")
        driver.process.paused_until = self.world.now + for_s
        self.world.pass_time(driver.process.paused_until)

    def _set_clock(self, by_s: float, for_s: float) -> None:
        """The driver's wall clock is set, and set right some time later."""
        self.host.ahead_s += by_s

        def set_right() -> None:
            self.world.note(f"the clock of {self.host.name} is set right")
            self.host.ahead_s -= by_s

        self.world.after(for_s * self.world.rng.choice((0.5, 2.0, 6.0)), set_right)

    def _reap_copied(self) -> None:
        """Somebody begins a run in a copy of the home, whose database knows nothing of ours."""
        memory = ProviderMemory(zones=dict(self.memory.zones), known=list(self.memory.known))
        process = SimulatedProcess(SimulatedHost(self.world, "backup"), "copied home")
        with process.at_work():
            self._is_reaped_by_copy = True
            try:
                ended = provider_of(self.cloud, process, self.home, memory).reap([])
            except Exception as error:  # noqa: BLE001 - the API is away, say
                self.world.note(f"a copied home: {error}")
                return
            finally:
                self._is_reaped_by_copy = False
        # What could not tell the provider that its machines are leased tells it as soon as it answers.
        answers_since = max(self.cloud.away_until, self.cloud.throttled_until, self.cloud.keys_expired_until)
        if self.world.now - answers_since < _TOLD_S or abs(self.host.ahead_s) > self.cloud.most_skew_s:
            return
        living = [name for name in ended if self._is_driven(self.cloud.instances[name])]
        if living:
            self.world.fail(f"a copied home has ended {', '.join(living)}, which somebody drives")

    def _run_elsewhere(self) -> None:
        """Another home on the same store has drawn the same id for a run of its own."""
        owner = Owner(self.run, "home-2", self.world.now + 1.0)
        with self.objects.judged():
            if claim(STORE, owner, {}):
                uri = self.directory.model_uri(self.run, "train", 0, 1)
                if read_manifest(uri) is None:
                    publish_text(uri, "model of home-2", 1, owner)

    def before_commit(self, name: str) -> None:
        """A manifest is about to be created: what took over from its publisher does something."""
        found = _COMMITTED.search(name)
        if found is None:
            return
        what, task = found[1], int(found[2])
        if what == "checkpoints" and Hazard.LATE_COMMIT in self.plan.late:
            self.plan.late.remove(Hazard.LATE_COMMIT)
            self.world.note(f"what is unfinished is cleared before {name}")
            series = CheckpointSeries(self.directory.checkpoints_uri(self.run, "train", task), self.owner)
            series.clear_unfinished()
        if what == "models" and Hazard.LATE_SAVE in self.plan.late:
            self.plan.late.remove(Hazard.LATE_SAVE)
            number = self.store.tasks["train", task]["attempt"] + _LATER
            uri, text = (
                self.directory.model_uri(self.run, "train", task, number),
                f"model of attempt {number}",
            )
            self.world.note(f"a later attempt's model is published before {name}")
            publish_text(uri, text, number, self.owner)
            self.later[uri] = text

    def _drive_too(self) -> None:
        """Another process, in a container on the same machine, wants to drive the run."""
        process = SimulatedProcess(self.host, "second driver", self.world.rng.choice(("ns-1", "ns-2")))
        holder = self.driver.process
        if holder.is_awake and self.driver.controller is not None:
            with holder.at_work():
                self.driver.controller._keep_lease()  # steps of this simulation are longer than its own
        lease = self.database.acquire(self.run, process)
        process.is_alive = False
        if lease is None:
            return
        if holder.is_awake and self.store.run["state"] is not State.DONE:
            self.world.fail(f"a second driver runs beside {holder.name}, which is well")
        self.store.release(lease, self.host.wall())

    # --- what members leave -----------------------------------------------------------------------------

    def left(self, directory: str) -> str:
        """What lies in a directory of the nodes: ``ATTEMPT/output`` or ``ATTEMPT/checkpoint``."""
        attempt, _, what = directory.rpartition("/")
        if what == "output":
            return f"model of {attempt}" if self.has_won(attempt) else ""
        for ray in self.rays.values():
            gang = ray.gangs.get(attempt)
            if gang is not None and gang.started_at is not None:
                long_s = (gang.ended_at or self.world.now) - gang.started_at
                return f"checkpoint {int(long_s / self.plan.lease_s * 8)} of {attempt}"
        return f"checkpoint of {attempt}"

    def has_won(self, attempt: str) -> bool:
        """Whether its members all ended well."""
        return any(ray.won.get(attempt) for ray in self.rays.values())

    # --- invariants ----------------------------------------------------------------------------------------

    def _ended(self, one: Instance) -> None:
        for ray in self.rays.values():
            if any(node.machine == one.id for node in ray.nodes):
                ray.machine_ended(one.id)
        # A copied home knows of no model; what it ends has no lease any more and would end itself.
        if one.why == "Client.UserInitiatedShutdown" and not self._is_reaped_by_copy:
            self.judge.given_back(one)
        if one.why == "Client.InstanceInitiatedShutdown" and self._is_driven(one):
            self.world.fail(f"{one.id} has ended itself though {self.driver.process.name} is well")

    def _is_driven(self, one: Instance) -> bool:
        """Whether a living driver wants a machine that it has been able to reach for a whole lease."""
        process, long_ago = self.driver.process, self.world.now - self.plan.lease_s - 30.0
        if not process.is_awake or max(process.awake_since, one.cut_until, one.ready_at) > long_ago:
            return False
        for loop in self.driver.loops:
            machine = loop.record.machine(one.id)
            if machine is not None and loop.is_running:
                return loop.record.state is ClusterState.ACTIVE and not machine.is_over
        return False

    def _ray(self, nodes: Sequence[RayNode]) -> SimulatedRay:
        return SimulatedRay(self.cloud, SLOTS, nodes, self._behave, self._starts)

    def _behave(self, request: GangRequest) -> list[Ending]:
        rng, lease_s = self.world.rng, self.plan.lease_s
        long_s = lease_s * rng.choice((0.1, 0.3, 1.0, 2.0))
        fails = rng.random() < self.plan.work.failures
        return [Ending(long_s * rng.uniform(0.9, 1.0), 1 if fails else 0) for _ in request.members]

    def _starts(self, attempt: str) -> None:
        """The members of an attempt start: nothing runs twice at once."""
        self.started.add(attempt)
        task = attempt.rpartition("/")[0]
        for ray in self.rays.values():
            for other, gang in ray.gangs.items():
                same = other != attempt and other.rpartition("/")[0] == task
                if same and gang.phase.value == "RUNNING" and not ray.is_lost:
                    self.world.fail(f"{attempt} starts, but {other} still runs")

    def records(self) -> list[ClusterRecord]:
        """Clusters as they are written."""
        return [ClusterRecord.of_row(row) for row in self.database.clusters.values()]


class Places:
    """On which machine each member is; see `MemberPlaces`."""

    def __init__(self) -> None:
        self._known: dict[str, list[tuple[str, str]]] = {}

    def hear(
        self,
        attempt: str,
        places: Sequence[tuple[str, str]],
        nodes: Mapping[str, Any],
        *_: object,
        **__: object,
    ) -> None:
        """See `MemberPlaces.hear`."""
        ids = {node.address: machine for machine, node in nodes.items()}
        found = [(name, ids[address]) for name, address in places if address in ids]
        if len(found) == len(places):
            self._known[attempt] = found

    def machines(self, attempt: str, nodes: Mapping[str, Any]) -> list[tuple[str, str]]:
        """See `MemberPlaces.machines`."""
        return self._known.get(attempt, [])

    def leave(self, attempt: str) -> None:
        """See `MemberPlaces.leave`."""
        self._known.pop(attempt, None)

    def forget(self, attempt: str) -> None:
        """See `MemberPlaces.forget`."""


def simulate(seeds: Iterable[int], weights: Mapping[Hazard, int] = WEIGHTS) -> SimulationReport:
    """Run many schedules.

    >>> simulate(range(3)).schedules
    3
    """
    return report_of(seeds, partial(_run, weights=weights))


def _run(seed: int, *, weights: Mapping[Hazard, int] = WEIGHTS, verbose: bool = False) -> Counter[str]:
    return Failures(seed, weights=weights, verbose=verbose).go()


if __name__ == "__main__":
    sys.exit(replayed(_run, "failures"))
