"""All clusters of a run as one executor, with executors that can be cut off and lost."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from executor_bench import (
    ONE,
    TWO,
    Bench,
    Clock,
    FakeCluster,
    FakeExecutor,
    FakeFailureDetector,
    FakeLoop,
    gang,
    made,
    phases,
    running,
)

from trainmaster.cluster.cluster_executor import ClusterExecutor
from trainmaster.cluster.member_places import MemberPlaces
from trainmaster.cluster.record import ClusterState, Machine, new_record
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.control.decide.budget import Meter
from trainmaster.control.loop.run_state import ExperimentState, RunState
from trainmaster.executors.base import Capacity, GangStatus, MemberStatus, Phase
from trainmaster.spec.errors import LeaseLostError, ProviderError
from trainmaster.spec.facts import Approval
from trainmaster.spec.states import EndReason, State
from trainmaster.testing.waits import until

PRICED = Rental("m4.large", usd_per_hour=3.6, minimum_s=60.0)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return made(Clock(), FakeLoop(), {0: FakeCluster(), 1: FakeCluster()}, tmp_path)


def test_a_gang_waits_for_its_cluster_and_can_be_withdrawn(bench: Bench) -> None:
    bench.cluster_executor.submit([gang(ONE), gang(TWO)])
    assert phases(bench.cluster_executor.observe([ONE])) == {ONE: Phase.QUEUED}
    bench.cluster_executor.stop(TWO, 5.0)
    assert phases(bench.cluster_executor.changes(0.0)) == {TWO: Phase.UNKNOWN}
    bench.loop.form(0)
    bench.until(lambda: bench.asked("submit", ONE))
    assert TWO not in bench.clusters[0].gangs


def test_a_cluster_hears_on_which_machines_a_task_is_to_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a silent one was waited for without a word: `cancel RUN TASK`."""
    running(bench, ONE)
    monkeypatch.setattr(MemberPlaces, "machines", lambda *_: [("worker-0", "i-0"), ("worker-1", "i-1")])
    bench.cluster_executor.stop(ONE, 5.0)
    assert sorted(bench.loop.ends_on_machines) == ["i-0", "i-1"]


def test_a_head_that_does_not_answer_does_not_hold_up_the_run(bench: Bench) -> None:
    slow = bench.clusters[0].is_slow = threading.Event()
    bench.loop.form(0)
    bench.cluster_executor.submit([gang()])
    bench.cluster_executor.changes(0.01)
    assert not slow.is_set(), "it has come back though its head does not answer yet"
    slow.set()
    bench.until(lambda: bench.asked("submit", ONE))


def test_who_was_overtaken_by_another_driver_ends_instead_of_making_the_cluster_anew(bench: Bench) -> None:
    running(bench, ONE)
    bench.clusters[0].is_cut = True
    bench.cluster_executor.changes(0.0)
    bench.clusters[0].is_cut = False
    bench.clusters[0].newest_token = 4
    bench.clock.now += 2
    with pytest.raises(LeaseLostError):
        bench.until(lambda: False)
    assert not bench.loop.told_broken


def test_what_was_asked_while_it_was_out_of_reach_is_not_lost(bench: Bench) -> None:
    running(bench, ONE)
    running(bench, TWO)
    bench.clusters[0].is_cut = True
    bench.cluster_executor.changes(0.0)
    bench.cluster_executor.stop(ONE, 5.0)
    bench.cluster_executor.stop(TWO, 0.0)
    bench.cluster_executor.forget([TWO])
    assert not bench.asked("stop", ONE, 5.0)
    bench.clusters[0].is_cut = False
    bench.clock.now += 2
    bench.until(lambda: bench.asked("forget", TWO))
    assert bench.asked("stop", ONE, 5.0)
    assert bench.asked("stop", TWO, 0.0), "its slots must not be held for ever"
    assert not bench.loop.told_broken


def test_what_ended_while_it_was_out_of_reach_is_told_as_it_was(bench: Bench) -> None:
    running(bench)
    bench.clusters[0].is_cut = True
    bench.cluster_executor.changes(0.0)
    bench.clusters[0].exits(ONE)
    bench.clusters[0].is_cut = False
    (news,) = bench.pass_time(2)
    assert (news.phase, news.members[0].exit_code, news.members[0].lost) == (Phase.EXITED, 0, False)


def test_a_head_that_is_well_but_mute_is_given_up(bench: Bench) -> None:
    running(bench)
    bench.clusters[0].is_cut = True
    bench.pass_time(50)
    assert set(bench.loop.told_broken) == {0}


def test_a_head_that_is_starved_and_answers_late_is_not_given_up(bench: Bench) -> None:
    """The run's loop does not wait for it; what connects to it does, again and again."""
    running(bench)
    bench.clusters[0].answers_in_s = 15.0
    for _ in range(40):
        bench.cluster_executor.observe([ONE])
        bench.pass_time(1)
    assert not bench.loop.told_broken
    assert sum(what[0] == "open" for what in bench.clusters[0].asked) > 5, "each of its answers was too late"
    bench.clusters[0].exits(ONE)
    bench.clusters[0].answers_in_s = 0.0
    bench.pass_time(3)
    assert phases(bench.cluster_executor.observe([ONE])) == {ONE: Phase.EXITED}


def test_one_that_does_not_answer_by_ssh_either_is_left_to_its_cluster(bench: Bench) -> None:
    running(bench)
    bench.loop.head_answers = False
    bench.clusters[0].is_cut = True
    bench.pass_time(50)
    assert not bench.loop.told_broken


def test_a_lost_formation_takes_what_ran_along_but_not_what_had_ended_or_never_began(bench: Bench) -> None:
    other = "run/train/2/1"
    running(bench, ONE)
    running(bench, TWO)
    bench.cluster_executor.submit([gang(other)])
    bench.clusters[0].exits(TWO)
    bench.cluster_executor.changes(0.0)
    bench.loop.formation = None
    news = {status.attempt: status for status in bench.cluster_executor.changes(0.0)}
    assert (news[ONE].phase, news[ONE].members[0].lost) == (Phase.EXITED, True)
    assert news[other].phase is Phase.UNKNOWN
    assert TWO not in news
    bench.loop.form(1)
    bench.cluster_executor.submit([gang(other)])
    bench.until(lambda: bench.asked("submit", other, number=1))
    assert ONE not in bench.clusters[1].gangs, "started once"


def test_one_whose_files_were_still_coming_when_its_head_was_lost_has_ended_as_it_did(bench: Bench) -> None:
    """The gateway says that it runs until the driver has all that it wrote."""
    running(bench, ONE)
    bench.clusters[0].exits(ONE)
    ended = bench.clusters[0].gangs[ONE]
    bench.clusters[0].gangs[ONE] = replace(ended, phase=Phase.RUNNING, ended_at=None)
    bench.cluster_executor.changes(0.0)
    bench.loop.formation = None
    (news,) = bench.cluster_executor.changes(0.0)
    assert (news.phase, news.members, news.ended_at) == (Phase.EXITED, ended.members, ended.ended_at)


def test_lost_members_are_told_and_machines_that_are_gone_have_no_files(bench: Bench) -> None:
    told: list[tuple[str, Sequence[str]]] = []
    bench.cluster_executor.on_lost = lambda attempt, members: told.append((attempt, members))
    bench.rent("i-2", "10.0.0.2")
    running(bench, ONE)
    assert bench.where() == [("worker-0", "i-2")]
    bench.loop.gone = frozenset({"i-2"})
    assert bench.where() == []
    known = bench.clusters[0].gangs[ONE]
    lost = tuple(replace(member, lost=True, ended_at=1005.0) for member in known.members)
    bench.clusters[0].gangs[ONE] = replace(known, phase=Phase.EXITED, members=lost, ended_at=1005.0)
    bench.cluster_executor.changes(0.0)
    assert told == [(ONE, ["worker-0"])]


def test_a_machine_that_gets_the_address_of_a_lost_one_has_nothing_of_its_members(bench: Bench) -> None:
    """An empty directory would be taken for what they have saved, now and by the next driver of the run."""
    bench.rent("i-1", "10.0.0.1")
    bench.rent("i-2", "10.0.0.2")
    running(bench)
    cluster = bench.clusters[0]
    both = (*cluster.gangs[ONE].members, MemberStatus("worker-1", 8, 1001.0))
    addresses = {"worker-0": "10.0.0.2", "worker-1": "10.0.0.1"}
    cluster.gangs[ONE] = replace(cluster.gangs[ONE], members=both, addresses=addresses)
    bench.cluster_executor.changes(0.0)
    assert bench.where() == [("worker-0", "i-2"), ("worker-1", "i-1")]
    bench.loop.gone = frozenset({"i-2"})
    bench.rent("i-3", "10.0.0.2")
    assert bench.where() == [("worker-1", "i-1")]
    cluster.exits(ONE)
    bench.cluster_executor.changes(0.0)
    assert bench.where() == [("worker-1", "i-1")], "though it was told again, with the same addresses"
    del bench.loop.accesses["i-2"]
    assert bench.succeeded().where() == [("worker-1", "i-1")]
    assert json.loads((bench.place / ONE / "places.json").read_text()) == {
        "worker-0": "i-2", "worker-1": "i-1",
    }  # fmt: skip


def test_a_next_driver_knows_where_members_were_though_their_head_is_lost(bench: Bench) -> None:
    """What they have left is on machines that are alive."""
    bench.rent("i-2", "10.0.0.2")
    running(bench)
    assert bench.where() == [("worker-0", "i-2")]
    del bench.clusters[0].gangs[ONE]
    assert bench.succeeded().where() == [("worker-0", "i-2")]


def test_a_gang_that_was_out_of_reach_for_a_while_is_where_it_was(bench: Bench) -> None:
    bench.rent("i-2", "10.0.0.2")
    running(bench)
    cluster = bench.clusters[0]
    known = cluster.gangs.pop(ONE)
    assert phases(bench.cluster_executor.observe([ONE])) == {ONE: Phase.UNKNOWN}
    bench.loop.gone = frozenset({"i-2"})
    bench.rent("i-3", "10.0.0.2")
    cluster.gangs[ONE] = known
    bench.cluster_executor.observe([ONE])
    assert bench.where() == []


def test_a_gang_that_gets_another_place_before_it_starts_is_there(bench: Bench) -> None:
    bench.rent("i-1", "10.0.0.1")
    bench.rent("i-2", "10.0.0.2")
    running(bench)
    cluster = bench.clusters[0]
    granted = replace(cluster.gangs[ONE], phase=Phase.GRANTED, started_at=None)
    cluster.gangs[ONE] = granted
    bench.cluster_executor.forget([ONE])
    bench.cluster_executor.submit([gang()])
    bench.cluster_executor.observe([ONE])
    assert bench.where() == [("worker-0", "i-2")]
    cluster.gangs[ONE] = replace(granted, addresses={"worker-0": "10.0.0.1"})
    bench.cluster_executor.observe([ONE])
    assert bench.where() == [("worker-0", "i-1")], "by another address"
    cluster.gangs[ONE] = GangStatus(ONE, Phase.QUEUED)
    bench.cluster_executor.observe([ONE])
    bench.loop.gone = frozenset({"i-1"})
    bench.rent("i-3", "10.0.0.1")
    cluster.gangs[ONE] = replace(granted, addresses={"worker-0": "10.0.0.1"})
    bench.cluster_executor.observe([ONE])
    assert bench.where() == [("worker-0", "i-3")], "by the same address, after it had none"
    cluster.gangs[ONE] = GangStatus(ONE, Phase.UNKNOWN)
    assert phases(bench.cluster_executor.changes(0.0)) == {ONE: Phase.UNKNOWN}
    bench.cluster_executor.submit([gang()])
    cluster.gangs[ONE] = replace(granted, phase=Phase.RUNNING, addresses={"worker-0": "10.0.0.2"})
    bench.cluster_executor.observe([ONE])
    assert bench.where() == [("worker-0", "i-2")], "submitted anew"


def test_nothing_is_written_and_its_machine_is_not_yet_a_node(bench: Bench) -> None:
    """The driver was killed before it had heard where the gang is; the next one knows what is rented."""
    bench.loop.record.machines = (SimpleNamespace(id="i-2"),)
    bench.clusters[0].runs(ONE)
    bench = bench.succeeded()
    assert bench.where() == []
    bench.rent("i-3", "10.0.0.2")
    assert bench.where() == [], "it was rented later"
    bench.rent("i-2", "10.0.0.2")
    assert bench.where() == [("worker-0", "i-2")]


def test_nothing_is_sent_to_a_cluster_that_is_lost_with_its_head(bench: Bench) -> None:
    running(bench, ONE)
    cluster = bench.clusters[0]
    cluster.is_lost = True
    bench.cluster_executor.changes(0.0)
    assert bench.loop.told_broken == [0]
    cluster.asked.clear()
    bench.cluster_executor.submit([gang(TWO)])
    assert not bench.asked("submit", TWO)


def test_a_machine_that_is_taken_back_is_vacated_and_nothing_is_sent_before_it_is_out(bench: Bench) -> None:
    running(bench, ONE, "10.0.0.2")
    running(bench, TWO, "10.0.0.1")
    bench.loop.leaving = {"10.0.0.2": bench.clock.now + 120}
    bench.cluster_executor.changes(0.0)
    assert bench.asked("stop", ONE, 9.0)
    assert not bench.asked("stop", TWO, 9.0)
    assert bench.loop.told_idle == frozenset()
    third = "run/train/3/1"
    bench.cluster_executor.submit([gang(third)])
    bench.clusters[0].exits(ONE)
    bench.cluster_executor.changes(0.0)
    bench.cluster_executor.changes(0.0)
    assert bench.loop.told_idle == frozenset(), "what it left is still being saved"
    bench.cluster_executor.forget([ONE])
    bench.cluster_executor.changes(0.0)
    assert bench.loop.told_idle == {"10.0.0.2"}
    assert not bench.asked("submit", third)
    del bench.clusters[0].nodes["b"]
    bench.cluster_executor.changes(0.0)
    assert bench.asked("submit", third)


def test_a_head_that_is_taken_back_takes_everything_along(bench: Bench) -> None:
    running(bench, ONE, "10.0.0.2")
    bench.loop.leaving = {"10.0.0.1": bench.clock.now + 10}
    bench.cluster_executor.changes(0.0)
    assert bench.asked("stop", ONE, 5.0), "its grace, as far as there is time"
    assert bench.loop.told_idle == frozenset()
    bench.clusters[0].exits(ONE)
    bench.cluster_executor.changes(0.0)
    bench.cluster_executor.changes(0.0)
    assert bench.loop.told_idle == frozenset()
    bench.cluster_executor.forget([ONE])
    bench.cluster_executor.changes(0.0)
    assert bench.loop.told_idle == {"10.0.0.1"}


def test_a_successor_waits_for_the_cluster_that_may_still_be_found(bench: Bench) -> None:
    bench.loop.is_sought = True
    assert not bench.cluster_executor.find([ONE])
    bench.clusters[0].runs(ONE)
    bench.loop.form(0)
    deadline = time.monotonic() + 5
    while not bench.cluster_executor.find([ONE]):
        assert time.monotonic() < deadline
    assert phases(bench.cluster_executor.observe([ONE, TWO])) == {ONE: Phase.RUNNING, TWO: Phase.UNKNOWN}
    bench.loop.formation, bench.loop.is_sought = None, False
    assert bench.cluster_executor.find([ONE]), "it will not be found any more"


def test_the_cap_counts_what_the_end_will_cost_and_what_is_paid_anyway(bench: Bench) -> None:
    """Machines for 3.6 dollars an hour, billed for a minute at least: ten seconds cost 0.06 dollars."""
    plan = ClusterPlan("train", ("train",), "lab", (RolePlan("worker", 1, (PRICED,)),))
    machine = Machine("worker-0", "worker", "t", PRICED, "i-0", started_at=1000.0)
    bench.loop.record = replace(new_record("run", plan, "home"), machines=(machine,))
    run_state = RunState("run", {"train": ExperimentState("train", (), 1, 1, State.RUNNING)}, State.RUNNING)
    meter = Meter(cap_usd=0.115, releasing_s=15.0)
    bench.cluster_executor.look(run_state, meter, 1010.0)
    assert not meter.must_end(1010.0), "an end that is over at 1085 costs 0.085"
    bench.cluster_executor.look(run_state, meter, 1039.0)
    assert not meter.must_end(1039.0)
    bench.cluster_executor.look(run_state, meter, 1041.0)
    assert meter.must_end(1041.0)


@pytest.mark.parametrize("driver", ["", "here", "next"])
def test_while_a_person_is_asked_machines_are_held_for_as_long_as_they_stay_warm(
    bench: Bench, driver: str
) -> None:
    plan = ClusterPlan("train", ("train",), "lab", (RolePlan("worker", 1, (PRICED,)),))
    machine = Machine("worker-0", "worker", "t", PRICED, "i-0", started_at=1000.0)
    bench.loop.record = replace(new_record("run", plan, "home", 60.0), machines=(machine,))
    bench.cluster_executor.own_cluster = bench.loop.record.id if driver == "here" else ""
    bench.cluster_executor.next_driver = "i-0" if driver == "next" else ""
    asks = ExperimentState("train", (), 1, 1, message="waits", needs_approval=True)
    run_state = RunState("run", {"train": asks}, State.RUNNING)
    bench.loop.want()
    bench.cluster_executor.look(run_state, None, 1000.0)
    bench.cluster_executor.look(run_state, None, 1059.0)
    assert bench.loop.scaling.needed is None, "`--keep 1m` was asked for"
    assert not bench.loop.wanted, "what is lost meanwhile is not replaced"
    bench.cluster_executor.look(run_state, None, 1060.0)
    assert bench.loop.scaling.needed == {"worker": int(bool(driver))}, "only the machine of the driver stays"
    asks.approval = Approval(True, "ada", 1070.0)
    bench.cluster_executor.look(run_state, None, 1071.0)
    assert bench.loop.scaling.needed is None


@pytest.mark.parametrize("driver", ["here", "next"])
@pytest.mark.parametrize("keep_s", [0.0, 60.0])
def test_where_the_driver_is_only_its_machine_stays_when_all_there_is_over(
    bench: Bench, driver: str, keep_s: float
) -> None:
    plan = ClusterPlan("train", ("train",), "lab", (RolePlan("worker", 2, (PRICED,)),))
    machines = tuple(Machine(f"worker-{n}", "worker", "t", PRICED, f"i-{n}", started_at=1.0) for n in (0, 1))
    bench.loop.record = replace(new_record("run", plan, "home", keep_s), machines=machines)
    bench.cluster_executor.own_cluster = bench.loop.record.id if driver == "here" else ""
    bench.cluster_executor.next_driver = "i-0" if driver == "next" else ""
    over = ExperimentState("train", (), 1, 1, State.DONE, EndReason.SUCCEEDED)
    later = ExperimentState("eval", ("train",), 1, 1, State.RUNNING)
    run_state = RunState("run", {"train": over, "eval": later}, State.RUNNING)
    for now in (1000.0, 2000.0):  # also when they have been kept for as long as after the end
        bench.cluster_executor.look(run_state, None, now)
    kept = "the next run takes them all"
    assert bench.loop.scaling.needed == (None if keep_s else {"worker": 1}), kept if keep_s else ""
    assert not bench.loop.ended


def test_a_machine_that_is_rented_and_not_prepared_yet_is_not_taken_for_lost(bench):
    """Its head was lost with the driver: what a member left there is still there."""
    (bench.place / "1").mkdir(parents=True, exist_ok=True)
    directory = bench.cluster_executor._member_places._directory_of(ONE)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "places.json").write_text(json.dumps({"worker-0": "i-7"}))
    bench.loop.record.rented = (SimpleNamespace(id="i-7"),)
    assert bench.where() == []
    assert bench.cluster_executor.is_coming(ONE)
    bench.loop.accesses["i-7"] = SimpleNamespace(id="i-7", address="10.0.0.7")
    assert not bench.cluster_executor.is_coming(ONE), "it is here"
    del bench.loop.accesses["i-7"]
    bench.loop.record.rented = ()
    assert not bench.cluster_executor.is_coming(ONE), "it is gone"


def test_the_machine_that_drives_a_run_or_is_to_stays_however_slow_it_is(bench: Bench) -> None:
    plan = ClusterPlan("train", ("train",), "lab", (RolePlan("worker", 1, (PRICED,)),))
    machine = Machine("worker-0", "worker", "worker-0", PRICED, "i-1", started_at=1000.0)
    bench.loop.record = replace(new_record("run", plan, "home", 60.0), machines=(machine,))
    assert bench.cluster_executor.why_kept(machine) == ""
    bench.cluster_executor.next_driver = machine.id
    assert bench.cluster_executor.why_kept(machine) == "the slow machine drives the run"


class Spread:
    """Tasks are on hosts and on rented machines; the hosts have nodes, and fail."""

    def __init__(self, place: Path) -> None:
        self.hosts, self.rented, self.cluster = FakeLoop(), FakeLoop(), FakeCluster()
        for loop, provider in ((self.hosts, "hosts"), (self.rented, "lab")):
            plan = ClusterPlan("train", ("train",), provider, (RolePlan("worker", 2, (PRICED,)),))
            loop.record = new_record("run", plan, "home")
        self.executor = ClusterExecutor(
            {"train": (cast("Any", self.hosts), cast("Any", self.rented))},
            lambda _, __: cast("Any", FakeExecutor(self.cluster)),
            lambda _: None,
            MemberPlaces(place.joinpath),
            Clock(),
            detector=FakeFailureDetector(),
        )
        self.executor.open("run", Capacity(2), {}, 3)
        self.run_state = RunState(
            "run", {"train": ExperimentState("train", (), 2, 2, State.RUNNING)}, State.RUNNING
        )

    def look(self) -> list[str]:
        """What is told."""
        return [note.message for note in self.executor.look(self.run_state, None, 1000.0)]

    def runs(self) -> None:
        """A gang on the hosts, which have room for one, and another one waits."""
        self.hosts.form(0)
        self.executor.submit([gang(ONE)])
        until(lambda: self.executor.changes(0.0) or ("submit", ONE) in self.cluster.asked, "it is sent")
        self.cluster.runs(ONE)
        assert phases(self.executor.changes(0.0)) == {ONE: Phase.RUNNING}


def test_what_a_place_has_is_given_back_when_others_do_its_work(tmp_path: Path) -> None:
    spread = Spread(tmp_path)
    spread.hosts.wanted = True
    spread.hosts.fatal = ProviderError("2 of 4 after 5 min")
    assert spread.look() == ["train goes on without machines of hosts: 2 of 4 after 5 min"]
    assert (spread.hosts.ended, spread.hosts.wanted, spread.rented.ended) == (True, False, False)
    assert not spread.look()
    own = Spread(tmp_path)
    own.executor.own_cluster = own.hosts.record.id
    own.hosts.fatal = ProviderError("none")
    own.look()
    assert not own.hosts.ended, "this process would end with it"


def test_what_is_said_of_a_place_names_it_where_there_are_several(tmp_path: Path) -> None:
    """Seats of both are called node-1."""
    spread = Spread(tmp_path)
    spread.hosts.said, spread.rented.said = ["2 x host for node-1, node-2"], ["1 x large for node-1"]
    assert spread.look() == ["hosts: 2 x host for node-1, node-2", "lab: 1 x large for node-1"]
    spread.rented.lost = ["node-1 (i-1) is lost: terminated"]
    assert spread.look() == ["lab: node-1 (i-1) is lost: terminated"]
    spread.rented.record = replace(spread.rented.record, provider="hosts")
    spread.rented.said = ["1 x host for node-3"]
    assert spread.look() == ["1 x host for node-3"]


def test_a_place_that_is_left_keeps_its_machines_while_a_gang_is_on_them(tmp_path: Path) -> None:
    spread = Spread(tmp_path)
    spread.runs()
    spread.hosts.fatal = ProviderError("the third machine in a row is broken")
    spread.look()
    assert not spread.hosts.ended
    spread.cluster.exits(ONE)
    spread.executor.changes(0.0)
    spread.look()
    assert not spread.hosts.ended, "what it has left is still being saved"
    spread.executor.forget([ONE])
    spread.look()
    assert spread.hosts.ended


def test_a_place_whose_loop_has_failed_is_given_back_at_once(tmp_path: Path) -> None:
    spread = Spread(tmp_path)
    spread.runs()
    spread.hosts.fatal, spread.hosts.is_running = ProviderError("internal error"), False
    spread.look()
    assert (spread.hosts.ended, spread.hosts.is_running) == (True, True)


def test_who_lost_the_lease_goes_on_in_no_other_place(tmp_path: Path) -> None:
    spread = Spread(tmp_path)
    spread.hosts.fatal = LeaseLostError.of("run")
    with pytest.raises(LeaseLostError):
        spread.look()


def test_idle_machines_are_given_back_when_the_rest_of_a_sweep_runs_elsewhere(tmp_path: Path) -> None:
    """Before its end; not while a task may still be made, nor those that are kept warm."""
    spread = Spread(tmp_path)
    spread.runs()
    experiment = spread.run_state.experiments["train"]
    experiment.live[0] = cast("Any", SimpleNamespace(state=State.RUNNING))
    experiment.created = 1
    assert not spread.look()
    experiment.total = 1
    spread.rented.record = replace(spread.rented.record, keep_s=60.0)
    spread.look()
    assert not spread.rented.ended
    machine = Machine("worker-0", "worker", "worker-0", PRICED, "i-1", started_at=900.0)
    spread.rented.record = replace(
        spread.rented.record, keep_s=0.0, state=ClusterState.ACTIVE, machines=(machine,)
    )
    assert spread.look() == ["train: machines of lab are given back: the rest is elsewhere"]
    assert (spread.rented.ended, spread.hosts.ended) == (True, False)
    assert not spread.look()


@pytest.mark.parametrize(
    ("state", "started_at"),
    [(ClusterState.ACTIVE, None), (ClusterState.ENDING, 900.0), (ClusterState.ENDED, 900.0)],
)
def test_what_was_never_had_or_is_given_back_already_is_not_told(
    tmp_path: Path, state: ClusterState, started_at: float | None
) -> None:
    """A next driver finds the same again."""
    spread = Spread(tmp_path)
    spread.runs()
    experiment = spread.run_state.experiments["train"]
    experiment.live[0] = cast("Any", SimpleNamespace(state=State.RUNNING))
    experiment.created = experiment.total = 1
    machine = Machine("worker-0", "worker", "worker-0", PRICED, "i-1", started_at=started_at)
    spread.rented.record = replace(spread.rented.record, state=state, machines=(machine,))
    assert not spread.look()
    assert spread.rented.ended
