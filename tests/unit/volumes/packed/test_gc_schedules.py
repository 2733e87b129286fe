"""Garbage collection, pushes and removals, halted anywhere: a version once made stays readable.

The real code runs over a store in memory, halted at operations on it for hours and let go on in other orders.
Each measure that keeps versions whole is taken back once: then some order loses something.
"""

import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from functools import cache, partial

import pyarrow.parquet
import pytest

from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import PublishError
from trainmaster.testing.stepped_store import SteppedStore
from trainmaster.volumes.packed import garbage, leases, releasing
from trainmaster.volumes.packed.deletions import Deletions
from trainmaster.volumes.packed.garbage import collect_garbage
from trainmaster.volumes.packed.head import head_numbers, remove_version
from trainmaster.volumes.packed.leases import Clocks, leased, living
from trainmaster.volumes.packed.pushing import push

pytestmark = pytest.mark.simulation

URL = "memory://v"
LIMIT = 10_000
HOUR_S = 3600.0


class World:
    """A volume with one version of `a`, removed, and one of `b`; and what works on it.

    Attributes:
        made: versions that a push has reported.
        removed: versions that were removed on purpose.
    """

    def __init__(self, stage: SteppedStore, folder) -> None:
        self.stage = stage
        self.folder = folder
        self.made: list[int] = []
        self.removed = {1}
        # An actor that waits for another one waits until that looks dead.
        self.clocks = Clocks(stage.clock.boot_s, stage.clock.wall_s, lambda _: stage.sleep(2 * HOUR_S))

    def push(self, tree="a", cache="cache"):
        report = push(
            self.folder / tree,
            URL,
            cache=self.folder / cache,
            chunk_limit_bytes=LIMIT,
            jobs=1,
            clocks=self.clocks,
        )
        self.made.append(report.version)
        return report

    def collect(self, times=1, **options):
        for _ in range(times):
            collect_garbage(ObjectStore(URL), 0.0, clocks=self.clocks, **options)

    def collect_without_lists(self):
        """As earlier Trainmasters do."""
        store = ObjectStore(URL)
        with leased(store, "collections", self.clocks) as lease:
            now_s = lease.renew()
            if len(living(store, "collections", now_s)) > 1 or living(store, "pushes", now_s):
                return
            named = garbage._Named(store)
            named.refresh()
            keys = [info.key for folder in ("chunks", "manifests") for info in store.list(folder)]
            store.delete(key for key in keys if key not in named.keys)

    def remove(self, version):
        remove_version(ObjectStore(URL), version)
        self.removed.add(version)

    def check(self):
        """Raises AssertionError if a version has lost something."""
        store = ObjectStore(URL)
        for version in head_numbers(store)[0]:
            head = json.loads(store.get(f"heads/{version:06d}.json"))
            if head["format"] != "fence":
                for key in named(store, head):
                    assert store.info(key) is not None, f"version {version} has lost {key}"

    def check_made(self):
        """Raises AssertionError if a version that a push has reported is not there."""
        assert len(set(self.made)) == len(self.made), "two pushes have reported one version"
        for version in self.made:
            is_there = version in head_numbers(ObjectStore(URL))[0]
            assert is_there or version in self.removed, f"the version {version} is not there"


def named(store, head):
    """The keys that a version needs, told by its documents alone."""
    keys = []
    for table in (head["files"], head["chunks"]):
        suffix = f".{table['generation']}" if table.get("generation") else ""
        keys.append(f"manifests/{table['sha256']}{suffix}.parquet")
    generations = [0] * head["chunk_count"]
    for first, count, generation in head.get("generations", ()):
        generations[first : first + count] = [generation] * count
    table = store.get(keys[1])
    assert table is not None, f"version {head['version']} has lost {keys[1]}"
    for digest, generation in zip(digests(table), generations, strict=True):
        keys.append(f"chunks/{digest[:2]}/{digest}{f'.{generation}' if generation else ''}")
    return keys


@cache
def digests(table):
    return [one.as_py().hex() for one in pyarrow.parquet.read_table(pyarrow.BufferReader(table))["hash"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("trees")
    for name in "ab":
        (root / name).mkdir()
        (root / name / "own").write_bytes(name.encode() * 9_000)
    return root


@pytest.fixture(scope="module")
def objects(folder):
    """What the store has at the beginning."""
    with SteppedStore() as stage:
        world = World(stage, folder)
        for tree in "ab":
            world.push(tree)
        remove_version(ObjectStore(URL), 1)
        stage.clock.sleep(30 * HOUR_S)
        return dict(stage.objects), stage.clock.now_s


@pytest.fixture
def stages(objects, folder):
    """Gives a new world each time."""

    def make():
        stage = SteppedStore()
        stage.objects.update(objects[0])
        stage.clock.now_s = objects[1]
        return stage, World(stage, folder)

    return make


Work = Callable[[World], object]
TO_ITS_END = 10_000


def played(stages, works: list[Work], order: list[tuple[int, int]], sleep_s=0.0) -> list[list[str]]:
    """Plays one order of events to its end; looks at all versions whenever one could be hurt.

    Args:
        stages: makes a world.
        works: what each actor does.
        order: which actor does how many operations. Those not over by then end in turn.
        sleep_s: how long all the world sleeps behind each part of the order.

    Returns:
        What each actor did.
    """
    stage, world = stages()
    done: list[list[str]] = [[] for _ in works]
    with stage:
        actors = [stage.start(str(number), partial(work, world)) for number, work in enumerate(works)]
        for number, count in [*order, *((number, TO_ITS_END) for number in range(len(works)))]:
            for _ in range(count):
                if (operation := actors[number].next) is None:
                    break
                done[number].append(f"{operation.name} {operation.key}")
                stage.step(actors[number])
                if operation.name in ("delete", "put_if_absent"):
                    world.check()
            stage.clock.sleep(sleep_s)
        for actor in actors:
            if actor.error is not None and not isinstance(actor.error, PublishError):
                raise actor.error
        world.check_made()
    return done


def stops(operations: list[str]) -> list[int]:
    """Where it matters that somebody is halted: before what others see, or what looks at others."""
    own = re.compile(r"\w+ (pushes/.*|collections/\w+\.json)|(get|get_range|info) (manifests|chunks).*")
    return [number for number, one in enumerate(operations) if not own.fullmatch(one)] + [len(operations)]


def pairs(stages, works: list[Work]) -> Iterator[list[tuple[int, int]]]:
    """All orders in which two are halted once each: the first first, or the second. A third comes between."""
    # What one does differs with what the other has done before.
    plays = [played(stages, works[:2], order) for order in ([], [(1, TO_ITS_END)])]
    first, second = (sorted({*stops(one), *stops(two)}) for one, two in zip(*plays, strict=True))
    between = [(number, TO_ITS_END) for number in range(2, len(works))]
    for one, two in itertools.product(first, second):
        yield [(0, one), *between, (1, two)]
        yield [(1, two), *between, (0, one), (1, TO_ITS_END)]


def chances(seed: int, works: list[Work]) -> Iterator[list[tuple[int, int]]]:
    """Orders of up to eight stretches, drawn."""
    rng = random.Random(seed)
    while True:
        yield [(rng.randrange(len(works)), rng.randrange(40)) for _ in range(rng.randrange(1, 9))]


def collection(world):
    world.collect(now=True)


def two_collections(world):
    world.collect(2)


def other_push(world):
    world.push(cache="cache2")


def other_tree(world):
    world.push("b", cache="cache2")


def removal(world):
    world.remove(2)


def a_version_that_is_removed_again(world):
    world.remove(world.push("b", cache="cache2").version)


@pytest.fixture
def no_marks(monkeypatch):
    """Nobody sees that others are at work: what holds now rests on no clock."""
    monkeypatch.setattr(leases, "_living", lambda *_: [])
    monkeypatch.setattr(leases.OperationLease, "confirm", leases.OperationLease.renew)


@pytest.mark.parametrize(
    ("works", "each"), [([collection, World.push], 11), ([two_collections, World.push, other_tree], 31)]
)
def test_nothing_is_lost_wherever_two_are_halted(stages, no_marks, works, each):
    for order in itertools.islice(pairs(stages, works), 0, None, each):
        played(stages, works, order)


CROWD: list[Work] = [collection, two_collections, World.push, other_push, removal, collection]


def test_nothing_is_lost_in_a_crowd(stages, no_marks):
    for order in itertools.islice(chances(0, CROWD), 30):
        played(stages, CROWD, order)


@pytest.mark.parametrize("sleep_s", [0.0, 2 * HOUR_S])
def test_nothing_is_lost_in_a_crowd_with_marks(stages, sleep_s):
    for order in itertools.islice(chances(1, CROWD), 30):
        played(stages, CROWD, order, sleep_s)


# --- each measure is needed ----------------------------------------------------------------------


def no_look_before_the_head(patch):
    patch.setattr(releasing.VersionRelease, "_check_names", lambda *_: None)


def content_is_sent_again_under_its_old_name(patch):
    patch.setattr(Deletions, "generation", lambda *_: 0)
    no_look_before_the_head(patch)


def no_number_is_taken(patch):
    patch.setattr(garbage, "take_number", lambda *_: None)


def versions_are_read_before_the_number_is_taken(patch):
    original = garbage._Named.refresh

    def refresh(self):
        if not self._versions:
            original(self)

    patch.setattr(garbage._Named, "refresh", refresh)


def the_newest_number_is_looked_up_before_the_list_is_written(patch):
    original = garbage.write_list

    def write_list(store, names, newest):
        number = newest()
        original(store, names, lambda: number)

    patch.setattr(garbage, "write_list", write_list)


def the_number_is_chosen_after_the_look(patch):
    original = releasing.create_head

    def create_head(store, head, expect, confirm):
        confirm()
        return original(store, head, expect)

    patch.setattr(releasing, "create_head", create_head)


def numbers_that_were_given_up_count(patch):
    patch.setattr(ObjectStore, "exists", lambda *_: False)


def what_versions_name_is_not_looked_at(patch):
    patch.setattr(garbage._Named, "refresh", lambda *_: None)


MEASURES = {
    no_look_before_the_head: [collection, World.push],
    content_is_sent_again_under_its_old_name: [collection, World.push],
    no_number_is_taken: [collection, World.push],
    versions_are_read_before_the_number_is_taken: [collection, World.push],
    the_newest_number_is_looked_up_before_the_list_is_written: [collection, World.push, other_tree],
    the_number_is_chosen_after_the_look: [collection, World.push],
    numbers_that_were_given_up_count: [a_version_that_is_removed_again, World.push],
    what_versions_name_is_not_looked_at: [collection, World.push],
}


@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.__name__)
def test_each_measure_is_needed(stages, no_marks, monkeypatch, measure):
    works = MEASURES[measure]
    tried = list(pairs(stages, works))
    random.Random(0).shuffle(tried)
    measure(monkeypatch)
    with pytest.raises(AssertionError, match="version"):  # noqa: PT012 - the first order that loses something
        for order in tried:
            played(stages, works, order)


# --- beside Trainmasters that know no lists ------------------------------------------------------


class NoDeletions(Deletions):
    """What a push knows that was written before there were lists."""

    def refresh(self, _=None):
        return False


def is_delete(operation):
    return operation.name == "delete" and operation.key.startswith(("chunks/", "manifests/"))


def test_a_collection_that_sleeps_at_its_delete(stages):
    stage, world = stages()
    with stage:
        collector = stage.start("gc", lambda: world.collect(now=True))
        assert stage.run(collector, until=is_delete) is not None
        stage.clock.sleep(2 * HOUR_S)
        report = stage.finish(stage.start("push", world.push))
        assert report.head.generations == ((0, 1, 1),)
        stage.run(collector, until=lambda _: False)
        world.check()
        world.check_made()


def before_its_last_look(operation):
    return operation.name == "put_if_absent" and operation.key.startswith("heads/")


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_collection_that_slept_deletes_nothing(stages, monkeypatch, is_confirmed):
    """A push that knows no lists held it for dead, and made a version meanwhile."""
    monkeypatch.setattr(releasing, "Deletions", NoDeletions)
    if not is_confirmed:
        monkeypatch.setattr(leases.OperationLease, "confirm", leases.OperationLease.renew)
    stage, world = stages()
    with stage:
        collector = stage.start("gc", lambda: world.collect(now=True))
        for _ in range(2):  # behind its look at the versions
            stage.run(collector, until=lambda step: step == ("list", "heads"))
            stage.step(collector)
        stage.run(collector, until=before_its_last_look)
        stage.run(collector, until=lambda step: step.name == "info")
        stage.clock.sleep(2 * HOUR_S)
        stage.finish(stage.start("push", world.push))
        stage.run(collector, until=lambda _: False)
        if is_confirmed:
            assert "not renewed in time" in str(collector.error)
            world.check()
        else:
            with pytest.raises(AssertionError, match="has lost"):
                world.check()


@pytest.mark.parametrize("looks_again", [True, False])
def test_a_push_that_slept_looks_again_when_its_head_is_there(stages, monkeypatch, looks_again):
    """A collection that knows no lists held it for dead, and freed what it counts on."""
    if not looks_again:
        monkeypatch.setattr(releasing.VersionRelease, "_confirm_once_more", lambda *_: None)
    stage, world = stages()
    with stage:
        push = stage.start("push", world.push)
        stage.run(push, until=before_its_last_look)
        stage.clock.sleep(2 * HOUR_S)
        stage.finish(stage.start("gc", world.collect_without_lists))
        stage.run(push, until=lambda _: False)
        if looks_again:
            assert "withdrawn" in str(push.error)
            world.check()
            assert stage.finish(stage.start("again", world.push)).version == 4
            world.check()
        else:
            with pytest.raises(AssertionError, match="has lost"):
                world.check()


def test_one_call_never_frees_what_it_marks(stages):
    """However coarse the store's clock is, and however short the grace."""
    stage, world = stages()
    with stage:
        store = ObjectStore(URL)
        done = collect_garbage(store, 0.0, clocks=world.clocks)
        assert (done.deleted_chunks, done.marked_chunks, done.free_at_s) == (0, 1, stage.clock.now_s)
        assert collect_garbage(store, 0.0, clocks=world.clocks).deleted_chunks == 1


def test_a_push_that_comes_between_two_deletes_stops_them(stages, monkeypatch):
    monkeypatch.setattr(garbage, "_DELETED_AT_ONCE", 1)
    stage, world = stages()
    with stage:
        collector = stage.start(
            "gc", lambda: collect_garbage(ObjectStore(URL), 0.0, now=True, clocks=world.clocks)
        )
        stage.run(collector, until=is_delete)
        stage.step(collector)
        leases.OperationLease(ObjectStore(URL), "pushes", world.clocks)
        done = stage.finish(collector)
        assert (done.deleted_chunks + done.deleted_tables, done.under_way) == (1, 1)
        assert done.marked_chunks + done.marked_tables == 2


def test_a_collection_without_its_mark_deletes_nothing(stages):
    stage, world = stages()
    with stage:
        collector = stage.start("gc", lambda: world.collect(now=True))
        stage.run(collector, until=lambda step: step == ("put", "heads/000003.removed"))
        store = ObjectStore(URL)
        before = [*store.list("chunks"), *store.list("manifests")]
        store.delete([info.key for info in store.list("collections") if info.key.endswith(".json")])
        stage.run(collector, until=lambda _: False)
        assert "not renewed in time" in str(collector.error)
        assert [*store.list("chunks"), *store.list("manifests")] == before


@pytest.mark.parametrize("boot_s", [0.0, 1800.0])
def test_a_mark_that_was_away_says_so_whichever_clock_saw_it(boot_s):
    """The machine's own clock stands still where it was paused from outside; the store's may be coarse."""
    with SteppedStore() as stage:
        now_s = [0.0]
        lease = leases.OperationLease(stage.store("v"), "collections", Clocks(boot_s=lambda: now_s[0]))
        lease.renew()
        lease.confirm()
        now_s[0] += boot_s
        stage.clock.sleep(0.0 if boot_s else 1800.0)
        with pytest.raises(PublishError, match="not renewed"):
            lease.confirm()
        with pytest.raises(PublishError, match="not renewed"):
            lease.confirm()
