"""One process that drives a run on rented machines, with the real `Controller` and `ClusterExecutor`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from trainmaster.cluster.cluster_executor import ClusterExecutor
from trainmaster.cluster.decision import WaitLimits
from trainmaster.cluster.record import ClusterRecord
from trainmaster.control.decide.budget import Meter, SavingMoney
from trainmaster.control.loop.controller import Controller
from trainmaster.db import leases
from trainmaster.db.leases import LEASE_S, Lease
from trainmaster.executors.base import Capacity
from trainmaster.service.driving.execution_backend import meter_of
from trainmaster.service.driving.run_clusters import GIVING_BACK_S, RunClusters, _ProviderAccess
from trainmaster.spec.errors import InterruptedByUser, LeaseLostError, StoreError, TrainmasterError
from trainmaster.spec.facts import Approval
from trainmaster.spec.states import EndReason, State
from trainmaster.testing.simulated_host import SimulatedHost, SimulatedProcess
from trainmaster.testing.simulated_provisioner import SimulatedProvisioner
from trainmaster.testing.simulated_ray import RayClient
from trainmaster.testing.simulated_store import SimulatedStore
from trainmaster.testing.simulated_watcher import SimulatedWatcher
from trainmaster.testing.simulated_world import Killed, ViolationError
from trainmaster.testing.stepped_loop import SteppedLoop

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainmaster.cluster.node_access import NodeAccess
    from trainmaster.cluster.observed import Formation
    from trainmaster.db.changes import Change
    from trainmaster.db.cluster_rows import ClusterRow
    from trainmaster.testing.failures import Failures
    from trainmaster.testing.simulated_cloud import SimulatedCloud

PROVIDER: Final = "aws"


class SimulatedDatabase:
    """Rows of one home's runs, and of their clusters; see `trainmaster.db.Database`."""

    def __init__(self) -> None:
        self.runs: dict[str, SimulatedStore] = {}
        self.clusters: dict[str, dict[str, Any]] = {}
        self.costs: dict[str, float] = {}

    def acquire(self, run: str, process: SimulatedProcess) -> Lease | None:
        """Take the lease of a run, as `run_rows.take_lease` does; None if its holder may live."""
        store = self.runs[run]
        row = store.run
        with process.at_work():
            now = self.clock_s()
            owner = leases.this_process()
            if row["lease_owner"] != owner and leases.is_alive(
                row["lease_owner"], row["lease_expires_at"], now
            ):
                return None
        return store.acquire(owner, now, dead=True)

    def clock_s(self) -> float:
        """See `Database.clock_s`: of a database that is a file, the machine's own."""
        return time.time()

    def add(self, run: str, record: ClusterRecord) -> None:
        """A cluster that a run is to have."""
        self.clusters[record.id] = _Row(run, record)

    def clusters_of(self, run: str) -> list[dict[str, Any]]:
        """See `Database.clusters_of`."""
        return [row for row in self.clusters.values() if row["run_id"] == run]

    def living_clusters(self, provider: str | None, home_id: str) -> list[dict[str, Any]]:
        """See `Database.living_clusters`."""
        found = []
        for row in self.clusters.values():
            if row["home_id"] == home_id and row["state"] != "ENDED":
                run = self.runs[row["run_id"]].run
                held = {name: run[name] for name in ("lease_owner", "lease_expires_at")}
                found.append({**row, "run_state": run["state"], **held})
        return found

    def put_record(self, lease: Lease, record: ClusterRecord) -> None:
        """See `Database.put_cluster`; what is written is only made text when somebody reads it."""
        self._prove(lease)
        there = self.clusters.get(record.id)
        if there is not None and there["run_id"] != lease.run:
            raise LeaseLostError("it was kept, and another run has taken it")
        self.clusters[record.id] = _Row(lease.run, record)

    def take_kept_cluster(self, lease: Lease, row: ClusterRow, now: float) -> bool:
        """See `Database.take_kept_cluster`."""
        self._prove(lease)
        there = self.clusters[row.id]
        if there["state"] == "KEPT" and there["kept_until"] > now:
            self.clusters[row.id] = _Row(lease.run, ClusterRecord.of_row(asdict(row)))
            return True
        return bool(there["run_id"] == lease.run)

    def put_cost(self, lease: Lease, cost_usd: float, now: float) -> None:
        """See `Database.put_cost`."""
        self._prove(lease)
        self.costs[lease.run] = cost_usd

    def run_row(self, run: str) -> Mapping[str, Any]:
        """See `Database.run_row`."""
        return self.runs[run].run

    def _prove(self, lease: Lease) -> None:
        if self.runs[lease.run].run["lease_token"] != lease.token:
            raise LeaseLostError("stale")


class _Row(dict[str, Any]):
    """A row of a cluster, whose JSON is made when it is read."""

    def __init__(self, run: str, record: ClusterRecord) -> None:
        super().__init__(run_id=run)
        self._record = record

    def __missing__(self, name: str) -> object:
        if name == "data":
            self.update(asdict(self._record.as_row()))
            return self[name]
        return getattr(self._record, name)

    def keys(self) -> Any:  # noqa: ANN401 - for unpacking
        """All columns."""
        self["data"]
        return super().keys()


class SimulatedRecords:
    """The rows of a run as one driver sees them: at each of its writes it may be killed."""

    def __init__(self, failures: Failures, driver: SimulatedDriver, store: SimulatedStore) -> None:
        self._failures = failures
        self._driver = driver
        self._store = store

    def commit(self, lease: Lease, changes: Sequence[Change], now: float) -> None:
        """See `Database.commit`."""
        self._driver.step("before commit")
        if self._failures.take_disk():
            raise StoreError("the disk is full")
        self._store.commit(lease, changes, self._driver.process.steady())
        self._store.run["lease_expires_at"] = now + LEASE_S
        self._driver.watcher.written(changes)
        world = self._failures.world
        if world.verbose:
            for change in changes:
                world.note(f"{self._driver.process.name}: {change}")
        self._driver.step("after commit")

    def renew(self, lease: Lease, now: float) -> EndReason | None:
        """See `Database.renew`."""
        self._driver.step("before renew")
        return self._store.renew(lease, now)

    def stop_wanted(self, run: str) -> EndReason | None:
        """See `Database.stop_wanted`."""
        return self._store.stop_wanted(run)

    def approvals(self, run: str) -> dict[str, Approval]:
        """See `Database.approvals`: no experiment needs any."""
        return {}

    def cancelled_tasks(self, run: str) -> dict[str, str]:
        """See `Database.cancelled_tasks`: there are none."""
        return {}

    def want_stop(self, run: str, reason: EndReason) -> None:
        """See `Database.want_stop`."""
        self._driver.step("before a wish")
        self._failures.judge.wish(self._driver, reason)
        self._store.want_stop(reason)


class SimulatedFailureDetector:
    """A process that asks machines whether they are there; see `NodeFailureDetector`."""

    def __init__(self, cloud: SimulatedCloud, process: SimulatedProcess) -> None:
        self._cloud = cloud
        self._process = process
        self._answers: dict[tuple[str, str], bool | None] = {}

    def suspect(self, attempt: str, nodes: Iterable[NodeAccess]) -> None:
        """See `NodeFailureDetector.suspect`."""
        for node in nodes:
            key = attempt, node.id
            if key not in self._answers:
                self._answers[key] = None
                world = self._process.world
                self._process.after(1.0 + world.rng.uniform(0.0, 1.5), partial(self._answer, key))

    def answers(self, attempt: str, node: str) -> bool | None:
        """See `NodeFailureDetector.answers`."""
        return self._answers.get((attempt, node))

    def forget(self, attempt: str) -> None:
        """See `NodeFailureDetector.forget`."""
        self._answers = {key: answer for key, answer in self._answers.items() if key[0] != attempt}

    def _answer(self, key: tuple[str, str]) -> None:
        one = self._cloud.instances[key[1]]
        if key in self._answers:
            self._answers[key] = one.ended_at is None and one.cut_until <= self._cloud.world.now


class SimulatedClusters(RunClusters):
    """`RunClusters` with a simulated provisioner: which clusters it has, takes over and reaps is real."""

    def __init__(self, failures: Failures, driver: SimulatedDriver, lease: Lease) -> None:
        self._failures = failures
        self._driver = driver
        self._database = cast("Any", failures.database)
        self._lease = lease
        self._tell = lambda text: failures.world.note(f"{driver.process.name}: {text}")
        self._provider = cast("Any", failures.provider(driver.process))
        self._provisioner = cast("Any", failures.provisioner())
        renter = _ProviderAccess(*cast("Any", (None, self._provider, None, self._provisioner)))
        self._renters = {self._provider.name: renter}
        self._earlier_usd = (0.0, 0.0)
        self.lease_s = failures.plan.lease_s
        self.taken = set()
        self._contents_of = lambda _: ()
        self._reaping = None

    def begin(self) -> None:
        """What `RunClusters.__init__` does."""
        driver = self._driver
        patience = WaitLimits(lost_s=1.5 * self._failures.plan.pause_s, cool_down_s=120.0)
        loops: dict[str, SteppedLoop] = {}
        for record in self._records():
            loop = SteppedLoop(
                record,
                self._provider,
                cast("SimulatedProvisioner", self._provisioner),
                self._write,
                patience,
                process=driver.process,
                step=driver.step,
                pause_s=driver.pause_s,
                wake=driver.wake,
            )
            driver.loops.append(loop)
            if record.id in self.taken:
                loop.recall()
            loops.update(dict.fromkeys(record.plan.experiments, loop))
        self.executor = ClusterExecutor(
            loops,
            cast("Any", self._open),
            self._write_cost,
            cast("Any", self._failures.places),
            **driver.process.clocks_of(ClusterExecutor),
            earlier_usd=self._earlier_usd,
            detector=SimulatedFailureDetector(self._failures.cloud, driver.process),
        )
        self.executor._wake = cast("Any", driver)
        self._reap(self._failures.home)

    @property
    def present_lease_s(self) -> float:
        """Of machines, as it is renewed now."""
        return float(self._provisioner.lease_s)

    def finish(self, *, succeeded: bool, hurried: Callable[[], bool] = lambda: False) -> None:
        """See `RunClusters.finish`."""
        self.executor.finish(self._tell, keep=succeeded, patience_s=GIVING_BACK_S, hurried=hurried)

    def close(self) -> None:
        """See `RunClusters.close`."""
        self.executor.close()

    def _open(self, loop: object, formation: Formation) -> Any:  # noqa: ANN401 - an executor
        ray = cast("Any", formation.cluster)
        return RayClient(ray, self._driver.step, self._failures.plan.work.slow, self._driver.wait_for_news)

    def _of_other_databases(self) -> list[str]:
        return []

    def _mark(self, record: ClusterRecord) -> None:
        pass

    def _write(self, record: ClusterRecord) -> None:
        self._driver.step("before writing a cluster")
        self._failures.database.put_record(self._lease, record)
        self._failures.world.note(f"{self._driver.process.name}: {record.id} is {record.state}")
        self._driver.step("after writing a cluster")

    def _write_cost(self, cost_usd: float) -> None:
        self._driver.step("before writing the cost")
        super()._write_cost(cost_usd)


class SimulatedDriver:
    """A process that drives the run; it may be killed, paused and suspended at each step.

    Args:
        failures: the simulation.
        number: of the driver.
        host, namespace: where it runs.
    """

    def __init__(self, failures: Failures, number: int, host: SimulatedHost, namespace: str = "ns-1") -> None:
        self.process = SimulatedProcess(host, f"driver {number}", namespace)
        self.failures = failures
        self.controller: Controller | None = None
        self.machines: SimulatedClusters | None = None
        self.loops: list[SteppedLoop] = []
        self.meter: Meter | None = None
        self.watcher = SimulatedWatcher()
        self.began_at = failures.world.now
        self._is_woken = False
        plan = failures.plan
        self._kill_after = plan.kill_after.pop() if plan.kill_after else None
        self._pause_after = plan.pause_after.pop() if plan.pause_after else None

    def step(self, where: str) -> None:
        """Between two steps: it may die here, or stand still for a while."""
        self.process.check()
        if self._kill_after is not None:
            self._kill_after -= 1
            if self._kill_after <= 0:
                self.failures.world.note(f"{self.process.name} is killed {where}")
                self.process.is_alive = False
                raise Killed(where)
        if self._pause_after is not None:
            self._pause_after -= 1
            if self._pause_after <= 0:
                self._pause_after = None
                self.failures.pause(self, where)
                self.process.check()

    def pause_s(self) -> float:
        """How long it waits at most when nothing happens; near the cap seconds count."""
        pause_s, meter = self.failures.plan.pause_s, self.meter
        if meter is None or meter.cap_usd == math.inf or self.machines is None:
            return pause_s
        pause_s = min(pause_s, self.machines.present_lease_s / 7)
        soon = self.process.steady() + meter.reserved_s + 2 * pause_s
        return min(pause_s, 2.0) if meter.bill(soon) > meter.cap_usd else pause_s

    # --- waiting -------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something has happened that the run's loop looks at."""
        self._is_woken = True

    set = wake

    def clear(self) -> None:
        """As of an event."""

    def wait(self, _: float = 0.0) -> bool:
        """Let time pass until something of ours has happened, but not for long."""
        world = self.failures.world
        until = world.now + self.pause_s() * world.rng.uniform(0.3, 1.0)
        self._is_woken = False
        while True:
            limit = max(until, self.process.still_until)
            due = world.next_at()
            world.pass_time(limit if due is None else min(due, limit))
            world.require()
            self.process.check()
            if self.process.is_awake and (self._is_woken or world.now >= until):
                return True

    def wait_for_news(self, client: RayClient) -> None:
        """The same, for news of an executor."""
        if not client.has_news:
            self.wait()

    # --- driving -----------------------------------------------------------------------------------------

    def drive(self, lease: Lease) -> None:
        """See `trainmaster.service.driving.driving.Driving`."""
        failures, store = self.failures, self.failures.store
        try:
            with self.process.at_work():
                self._drive(lease)
        except Killed:
            failures.world.note(f"{self.process.name} is dead")
        except InterruptedByUser:
            if store.run["state"] is not State.DONE:
                raise ViolationError("interrupted, but the run is not DONE") from None
        except (LeaseLostError, StoreError) as error:
            failures.world.note(f"{self.process.name}: {error}")
        finally:
            if self.process.is_alive:
                self.process.is_alive = False
                store.release(lease, self.process.host.wall())
            for loop in self.loops:
                loop.close()

    def _drive(self, lease: Lease) -> None:
        failures = self.failures
        machines = self.machines = SimulatedClusters(failures, self, lease)
        try:
            machines.begin()
        except TrainmasterError as error:  # told to the user, who tries again
            failures.world.note(f"{self.process.name} cannot begin: {error}")
            return
        policies = {name: one.policy for name, one in failures.plan.work.experiments.items()}
        meter = self.meter = meter_of(failures.recipe, policies, machines.lease_s)
        machines.executor.costs.pay_by(meter, self.process.clocks_of(Controller)["clock"]())
        machines.executor.open(failures.run, Capacity(machines.executor.slots), {}, lease.token)
        bench = failures.make_bench(self)
        controller = self.controller = Controller(
            database=SimulatedRecords(failures, self, failures.store),
            lease=lease,
            run_state=failures.store.run_state(),
            actions=bench,
            executor=machines.executor,
            policies=policies,
            watcher=self.watcher,
            meter=meter,
            machines=machines.executor,
            saving=SavingMoney(),
            **self.process.clocks_of(Controller),
        )
        try:
            controller.run()
            self.watcher.require()
        finally:
            if self.process.is_alive and controller.is_over:
                machines.finish(succeeded=controller.run_state.reason is EndReason.SUCCEEDED)
            if self.process.is_alive:
                machines.close()


def sleeping(failures: Failures) -> Callable[[float], None]:
    """`time.sleep` of whichever driver is at work."""

    def sleep(seconds: float) -> None:
        if failures.objects.is_judged:
            failures.objects.later_s += seconds
        else:
            failures.driver.wait()

    return sleep
