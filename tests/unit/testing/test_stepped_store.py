import pytest

from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import PublishError
from trainmaster.testing.stepped_store import ActorKilled, Operation, SteppedStore


@pytest.fixture
def stage():
    with SteppedStore() as stage:
        yield stage


def twice():
    store = ObjectStore("memory://v/sub")
    store.put("a", b"1")
    store.put("a", store.get("a") + b"2")
    return "done"


def test_an_actor_stands_still_before_each_operation(stage):
    actor = stage.start("one", twice)
    assert actor.next == Operation("put", "a")
    assert stage.objects == {}
    stage.step(actor)
    assert stage.store("v").get("sub/a") == b"1"
    assert stage.run(actor, lambda operation: operation.name == "put") == Operation("put", "a")
    assert stage.finish(actor) == "done"
    assert actor.is_over
    assert stage.store("v/sub").get("a") == b"12"


def test_two_interleave_as_told(stage):
    first, second = stage.start("first", twice), stage.start("second", twice)
    stage.run(first, lambda operation: operation.name == "get")
    stage.finish(second)
    stage.finish(first)
    assert stage.store("v/sub").get("a") == b"122"


def test_a_kill_leaves_no_trace(stage):
    def careful():
        store = ObjectStore("memory://v")
        store.put("mark", b"")
        try:
            store.put("work", b"")
        finally:
            store.delete(["mark"])

    actor = stage.start("one", careful)
    stage.step(actor)
    actor.kill()
    assert actor.is_over
    assert isinstance(actor.error, ActorKilled)
    assert [info.key for info in stage.store("v").list()] == ["mark"]


@pytest.mark.parametrize(
    ("how", "at_once", "later"), [({}, 0, 0), ({"is_done": True}, 1, 1), ({"is_late": True}, 0, 1)]
)
def test_what_fails_may_have_been_done(stage, how, at_once, later):
    actor = stage.start("one", twice)
    stage.fail(actor, **how)
    assert isinstance(actor.error, PublishError)
    assert len(stage.objects) == at_once
    stage.deliver()
    assert len(stage.objects) == later


def test_objects_bear_the_time_of_the_store(stage):
    store = stage.store("v")
    store.put("a", b"")
    stage.clock.sleep(100)
    store.put("b", b"")
    ages = [stage.clock.now_s - detail.modified_s for detail in store.details()]
    assert ages == [100, 0]
    boot_s = stage.clock.boot_s()
    actor = stage.start("one", lambda: stage.sleep(50))
    stage.finish(actor)
    assert stage.clock.boot_s() - boot_s == 50


def test_stores_outside_the_stage_are_as_they_were(stage, tmp_path):
    store = ObjectStore(f"file://{tmp_path}/x")
    store.put("a", b"1")
    assert store.get("a") == b"1"
    assert stage.objects == {}
