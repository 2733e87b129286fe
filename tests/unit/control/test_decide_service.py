"""What becomes of the replicas of a service, in a small world that is turned step by step."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.control.decide.service import (
    LEAST_DRAIN_S,
    MOST_FAILURES,
    SLOW_START_S,
    Demand,
    ObservedReplica,
    ServiceState,
    decide_service,
    wanted_count,
)
from trainmaster.db.changes import Note
from trainmaster.db.endpoint_changes import ReplicaState
from trainmaster.spec.serve import Replicas, Scale, Serve
from trainmaster.spec.states import EndReason

READY, STARTING, DRAINING = ReplicaState.READY, ReplicaState.STARTING, ReplicaState.DRAINING


class Body:
    """A task, as the world has it."""

    def __init__(self):
        self.attempt, self.starts_in, self.healthy, self.said = 1, 1, True, ""
        self.in_flight, self.age, self.silent, self.over = 0, 0.0, 0.0, None
        self.stops_in = None


class World:
    """Tasks that begin, work, hang and are lost; and the state that is decided about."""

    def __init__(self, serve, version=None):
        self.serve = serve
        self.state = ServiceState("api", version=version, model_uri=version and f"mem://{version}")
        self.bodies, self.now, self.next, self.notes, self.failed = {}, 1000.0, 0, [], None
        self.sick = set()
        self.ended = []

    def seen(self, number):
        body = self.bodies[number]
        if body.over is not None:
            return ObservedReplica(is_over=True, reason=body.over, message="so")
        runs = body.starts_in <= 0
        return ObservedReplica(
            attempt=body.attempt, running_s=body.age if runs else None,
            is_healthy=body.healthy if runs else None, silent_s=body.silent, said=body.said,
            in_flight=body.in_flight, port=4000 + number if runs else None,
            stops_in_s=body.stops_in,
        )  # fmt: skip

    def turn(self, seconds=1.0, wanted=None, asked=None):
        self.now += seconds
        for number, body in self.bodies.items():
            body.starts_in -= 1
            if body.stops_in is not None:
                body.stops_in -= seconds
            if body.starts_in <= 0:
                body.age += seconds
                if self.state.replicas[number].version in self.sick:
                    body.healthy, body.said = False, "GET /: status 500"
                body.silent = 0.0 if body.healthy else body.silent + seconds
        if wanted is None:
            busy = sum(body.in_flight for body in self.bodies.values())
            wanted = wanted_count(self.serve, self.state, busy, asked, self.now)
        seen = {number: self.seen(number) for number in self.state.replicas}
        decision = decide_service(self.serve, self.state, seen, wanted, self.next, self.now)
        self.notes += [each.message for each in decision.changes if isinstance(each, Note)]
        for number in range(self.next, self.next + decision.begins):
            self.bodies[number] = Body()
        self.next += decision.begins
        for number, (reason, _) in decision.ends.items():
            self.bodies[number].over = reason
            self.ended.append((number, reason))
        if decision.fails:
            self.failed = decision.fails
        for number in set(self.bodies) - set(self.state.replicas):
            del self.bodies[number]
        return decision

    def turns(self, count, **how):
        for _ in range(count):
            if self.failed is None:
                self.turn(**how)

    def those(self, state, version=None):
        return [
            each.number
            for each in self.state.replicas.values()
            if each.state is state and version in (None, each.version)
        ]


def serve(fewest=1, most=None, in_flight=None, down_after_s=300.0, **more):
    scale = None if in_flight is None else Scale(in_flight=in_flight, down_after_s=down_after_s)
    return Serve(replicas=Replicas(fewest=fewest, most=most or fewest), scale=scale, **more)


def test_a_fixed_port_is_free_once_the_replica_before_has_ended():
    world = World(serve(port=8080))
    world.turns(4)
    assert world.those(READY) == [0]
    world.bodies[0].healthy = False
    while not (ended := world.turn()).ends:
        pass
    assert ended.begins == 0, "it listens until it has ended"
    assert world.turn().begins == 1


def test_replicas_begin_and_take_requests_once_they_are_healthy():
    world = World(serve(2))
    world.turn()
    assert world.those(STARTING) == [0, 1]
    world.turns(2)
    assert world.those(READY) == [0, 1]
    assert world.state.replicas[0].port == 4000
    before = len(world.notes)
    world.turns(50)
    assert len(world.notes) == before


def test_a_new_version_takes_over_one_by_one_and_nobody_is_without_an_answer():
    world = World(serve(2, model="d@production"), "d@1")
    world.turns(3)
    world.bodies[0].in_flight = 3
    world.state.version, world.state.model_uri = "d@2", "mem://d@2"
    for _ in range(40):
        world.turn()
        assert len(world.those(READY)) >= 2
        assert len(world.state.replicas) <= 3
    # The least busy went first; the busy one has until its requests are over.
    assert world.those(READY, "d@2") == [2, 3]
    assert world.those(DRAINING, "d@1") == [0]
    assert world.ended == [(1, EndReason.DRAINED)]


def test_a_switch_is_whole_after_a_while():
    world = World(serve(3, model="d@production"), "d@1")
    world.turns(3)
    world.state.version, world.state.model_uri = "d@2", "mem://d@2"
    for _ in range(60):
        world.turn()
        assert len(world.those(READY)) >= 3
    assert len(world.those(READY, "d@2")) == 3
    assert len(world.state.replicas) == 3
    assert {reason for _, reason in world.ended} == {EndReason.DRAINED}


def test_who_drains_ends_when_nothing_is_in_flight_or_its_time_is_over():
    world = World(serve(1, model="d@production", drain_s=20.0), "d@1")
    world.turns(3)
    world.bodies[0].in_flight = 1
    world.state.version = "d@2"
    world.turns(3)
    assert world.those(DRAINING) == [0]
    world.turns(int(LEAST_DRAIN_S) + 3)
    assert world.those(DRAINING) == [0]
    world.turns(20)
    assert (0, EndReason.DRAINED) in world.ended
    assert any("1 request in flight" in note for note in world.notes)


def test_a_version_that_is_never_healthy_does_not_take_over():
    world = World(serve(1, model="d@production", start_s=5.0), "d@1")
    world.turns(3)
    world.sick, world.state.version = {"d@2"}, "d@2"
    world.turns(60)
    assert world.those(READY) == [0]
    assert world.state.refused == "d@2"
    assert not world.those(STARTING)
    assert any("d@2 did not become healthy" in note and "d@1 goes on" in note for note in world.notes)
    world.bodies[0].over = EndReason.USER_ERROR
    world.turns(60)
    assert world.failed is not None or world.state.refused is None
    world = World(serve(1, model="d@production", start_s=5.0), "d@1")
    world.turns(3)
    world.sick, world.state.version = {"d@2"}, "d@2"
    world.turns(60)
    world.state.version, world.state.refused = "d@1", None  # rollback
    world.turns(10)
    assert world.those(READY, "d@1") == [0]


def test_who_hangs_is_replaced_and_ends_as_unhealthy():
    world = World(serve(1, hang_s=10.0))
    world.turns(3)
    world.bodies[0].healthy, world.bodies[0].said = False, "GET /: no answer within 5 s"
    world.turns(20)
    assert world.ended == [(0, EndReason.UNHEALTHY)]
    assert world.those(READY) == [1]
    assert any("no answer within 5 s" in note for note in world.notes)


@pytest.mark.parametrize("reason", [EndReason.SUCCEEDED, EndReason.USER_ERROR])
def test_who_ends_by_itself_is_replaced_later_each_time(reason):
    world = World(serve(1))
    begun = []
    for _ in range(4):
        while not world.those(READY):
            world.turn()
        begun.append(world.now)
        world.bodies[world.those(READY)[0]].over = reason
        world.turn()
        assert not world.those(READY)
    gaps = [after - before for before, after in pairwise(begun)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > gaps[0]
    assert world.failed is None


def test_a_service_that_never_was_healthy_ends_with_what_was_seen():
    world = World(serve(1, start_s=5.0))
    world.sick = {None}
    world.turns(120)
    reason, words = world.failed
    assert reason is EndReason.UNHEALTHY
    assert f"{MOST_FAILURES} replicas in a row" in words
    assert "status 500" in words
    world = World(serve(1))
    while world.failed is None:
        world.turn()
        for body in world.bodies.values():
            body.over = EndReason.USER_ERROR
    assert world.failed[0] is EndReason.USER_ERROR


def test_a_replica_whose_machine_is_lost_gets_no_requests_until_it_is_back():
    world = World(serve(2))
    world.turns(3)
    body = world.bodies[0]
    body.attempt, body.starts_in, body.age = 2, 3, 0.0
    world.turn()
    assert world.those(READY) == [1]
    assert world.those(STARTING) == [0]
    world.turns(4)
    assert world.those(READY) == [0, 1]
    assert world.next == 2


def test_a_replica_whose_machine_is_taken_back_drains_while_another_one_begins():
    world = World(serve(2))
    world.turns(3)
    world.bodies[0].stops_in, world.bodies[0].in_flight = 95.0, 3
    world.turn()
    assert (world.those(DRAINING), world.those(READY), world.those(STARTING)) == ([0], [1], [2])
    world.turns(int(LEAST_DRAIN_S) + 3)
    assert (world.those(DRAINING), world.those(READY)) == ([0], [1, 2])
    world.bodies[0].in_flight = 0
    world.turns(2)
    assert world.ended == [(0, EndReason.DRAINED)]


def test_the_only_replica_goes_on_until_another_one_is_ready_if_its_machine_is_taken_back():
    world = World(serve(1))
    world.turns(3)
    world.bodies[0].stops_in = 95.0
    world.turn()
    assert (world.those(READY), world.those(STARTING)) == ([0], [1]), "another one begins at the notice"
    world.bodies[1].starts_in = 10
    for _ in range(11):
        world.turn()
        assert world.those(READY), "somebody answers"
    world.turns(2)
    assert (world.those(DRAINING), world.those(READY)) == ([0], [1])
    world.turns(int(LEAST_DRAIN_S) + 2)
    assert world.ended == [(0, EndReason.DRAINED)]
    assert [each for each in world.notes if "taken back" in each] == [
        "replica 0 goes on until another one is ready: its machine is taken back",
        "replica 0 drains: its machine is taken back",
    ]


@pytest.mark.parametrize("count", [1, 2])
def test_who_is_taken_back_drains_in_time_also_if_no_other_one_is_ready(count):
    world = World(serve(count, drain_s=20.0))
    world.turns(3)
    for body in world.bodies.values():
        body.stops_in = 95.0
    for _ in range(74):
        world.turn()
        world.bodies[count].starts_in = 5
        assert len(world.those(READY)) == count
    world.turns(3)
    world.bodies[count].starts_in = 5
    assert (len(world.those(DRAINING)), world.those(READY)) == (count, [])


def test_requests_in_flight_say_how_many_there_are():
    world = World(serve(0, 4, in_flight=8))
    world.turns(5)
    assert not world.state.replicas
    world.turn(asked=0.5)
    world.turns(3, asked=3.0)
    assert world.those(READY) == [0]
    world.bodies[0].in_flight = 17
    world.turns(4)
    assert len(world.those(READY)) == 3
    world.bodies[0].in_flight = 0
    world.turns(10, seconds=15)
    assert len(world.those(READY)) == 3
    world.turns(20, seconds=15)
    assert not world.state.replicas


def test_fewer_are_enough_after_as_long_as_the_recipe_says():
    world = World(serve(0, 4, in_flight=8, down_after_s=20.0))
    world.turn(asked=0.5)
    world.turns(3)
    assert world.those(READY) == [0]
    world.turns(15)
    assert world.those(READY) == [0]
    world.turns(20)
    assert not world.state.replicas


def test_a_replica_that_was_asked_for_is_there_once_however_long_its_machine_takes():
    world = World(serve(0, 4, in_flight=8, down_after_s=20.0))
    world.turn(asked=0.5)
    world.bodies[0].starts_in = 300
    world.turns(299)
    assert world.those(STARTING) == [0]
    world.turns(3)
    assert world.those(READY) == [0]
    world.turns(40)
    assert not world.state.replicas


def test_who_takes_over_keeps_what_is_there_until_it_knows_better():
    world = World(serve(1, 4, in_flight=8))
    world.bodies = {}
    world.turn(asked=None)
    world.turns(3)
    world.bodies[0].in_flight = 32
    world.turns(5)
    assert len(world.those(READY)) == 4
    world.bodies[0].in_flight = 0
    world.state.demand = Demand()  # another driver
    world.turns(10)
    assert len(world.those(READY)) == 4


ACTS = st.lists(
    st.sampled_from(
        ["turn", "turn", "turn", "hang", "heal", "die", "end", "lose", "busy", "calm", "new", "back",
         "sick", "well", "away", "leave"]
    ),
    max_size=120,
)  # fmt: skip


@settings(deadline=None)
@given(ACTS, st.integers(1, 3), st.integers(0, 1))
def test_whatever_befalls_it_there_are_never_too_many_and_at_last_enough(acts, most, fewest):
    world = World(serve(min(fewest, most), most, in_flight=4 if fewest != most else None,
                        model="d@production", hang_s=3.0, start_s=10.0, drain_s=10.0), "d@1")  # fmt: skip
    if world.serve.scale is None:
        world.serve = serve(most, model="d@production", hang_s=3.0, start_s=10.0, drain_s=10.0)
    versions = 1
    for act in acts:
        number = max(world.bodies, default=None)
        body = world.bodies.get(number)
        match act:
            case "hang" if body:
                body.healthy, body.said = False, "GET /: no answer"
            case "heal" if body:
                body.healthy = True
            case "die" if body:
                body.over = EndReason.USER_ERROR
            case "end" if body:
                body.over = EndReason.SUCCEEDED
            case "lose" if body:
                body.attempt, body.starts_in, body.age = body.attempt + 1, 2, 0.0
            case "busy" if body:
                body.in_flight = 9
            case "calm" if body:
                body.in_flight = 0
            case "leave" if body:
                body.stops_in = 50.0
            case "new":
                versions += 1
                world.state.version, world.state.refused = f"d@{versions}", None
            case "back":
                world.state.version, world.state.refused = "d@1", None
            case "sick":
                world.sick = {f"d@{versions}"}
            case "well":
                world.sick = set()
            case "away":  # another driver
                world.state.demand = Demand()
        if world.failed:
            break
        world.turn()
        assert len(world.state.replicas) <= most + 1 + len(world.those(ReplicaState.GONE))
        for replica in world.state.replicas.values():
            assert replica.state is not READY or replica.port is not None
            assert (replica.state is DRAINING) <= (replica.draining_since is not None)
    if world.failed:
        return
    world.sick = set()
    for body in world.bodies.values():
        body.healthy, body.in_flight = True, 0
    world.state.refused = None
    world.turns(400, seconds=2.0)
    assert world.failed is None
    assert len(world.those(READY, world.state.version)) == len(world.state.replicas)
    assert len(world.state.replicas) == world.serve.replicas.fewest


def test_a_replica_that_is_long_not_healthy_says_why_and_is_not_told_to_be_replaced_by_none():
    world = World(serve(1, start_s=120.0))
    world.sick = {None}
    world.turns(int(SLOW_START_S))
    assert not [note for note in world.notes if "healthy" in note]
    world.turns(10)
    assert [note for note in world.notes if "healthy" in note] == [
        "replica 0 is not healthy yet: GET /: status 500"
    ]
    assert world.state.replicas[0].said == "GET /: status 500"
    world.turns(600)
    assert world.failed is not None
    assert sum("is replaced" in note for note in world.notes) == MOST_FAILURES - 1, (
        "none comes after the last"
    )
