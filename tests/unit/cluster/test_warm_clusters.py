"""Which run a warm cluster is for, and what it is then."""

from __future__ import annotations

from dataclasses import replace

from trainmaster.cluster.record import ClusterState, Machine, fits, new_record, taken_over
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan

A = Rental("m4.large", "us", "us-a", usd_per_hour=0.36)
B = Rental("m4.large", "us", "us-b", usd_per_hour=0.72)


def plan(*roles: RolePlan) -> ClusterPlan:
    return ClusterPlan("train", ("train",), "lab", roles)


#: Two machines, without a wish for their disks.
KEPT = replace(
    new_record("run", plan(RolePlan("worker", 2, (A,))), "home"),
    state=ClusterState.KEPT,
    machines=tuple(Machine(f"worker-{n}", "worker", "t", A, f"i-{n}", started_at=1.0) for n in (0, 1)),
)


def test_a_warm_cluster_fits_what_asks_for_the_same() -> None:
    assert fits(KEPT, plan(RolePlan("worker", 2, (B,)))), "another zone is as good"
    assert not fits(KEPT, plan(RolePlan("worker", 3, (A,))))
    assert not fits(KEPT, plan(RolePlan("worker", 2, (replace(A, instance_type="p2.xlarge"),))))
    assert not fits(KEPT, plan(RolePlan("worker", 2, (A,)), RolePlan("ps", 1, (A,))))
    assert not fits(KEPT, replace(plan(RolePlan("worker", 2, (A,))), provider="aws"))


def test_a_warm_cluster_whose_disks_may_be_smaller_does_not_fit() -> None:
    large = plan(RolePlan("worker", 2, (A,), disk_bytes=200))
    assert not fits(KEPT, large)
    assert fits(replace(KEPT, plan=large), plan(RolePlan("worker", 2, (A,), disk_bytes=100)))


def test_a_warm_cluster_takes_as_many_processes_as_its_new_run_has_planned() -> None:
    planned = new_record("other", plan(RolePlan("worker", 2, (replace(B, slots=9),))), "home", keep_s=60.0)
    found = taken_over(KEPT, planned, 5.0)
    assert (found.id, found.state, found.keep_s, found.paid_from) == (KEPT.id, ClusterState.ACTIVE, 60.0, 5.0)
    assert [machine.rental.slots for machine in found.machines] == [9, 9]
    assert found.plan.roles[0].rentals[0].slots == 9
