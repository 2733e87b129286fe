"""An object store in memory whose every operation is a step: processes on it halt, die and race as told.

Each :class:`Actor` runs real code in a thread of its own, and stands still before each operation on a
store until :meth:`SteppedStore.step` lets it do that one. What it halts at may be refused, get through with
its answer lost, or arrive at the store only later, when its sender is long dead::

    with SteppedStore() as stage:
        store = stage.store("v")               # for the test itself: no steps
        gc = stage.start("gc", lambda: collect_garbage(ObjectStore("memory://v")))
        stage.run(gc, until=lambda op: op.name == "delete")
        stage.clock.sleep(7200)                # gc is suspended for two hours
        stage.finish(stage.start("push", lambda: push(source, "memory://v", jobs=1)))
        stage.finish(gc)

Inside ``with`` every `ObjectStore("memory://...")` of this process is one of the stage's; what an actor
makes of it is stepped, also by threads that the actor starts. Schedules repeat as long as an actor uses
its stores from one thread at a time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

from trainmaster.objects import plugins
from trainmaster.objects.backend import Backend, ObjectDetail
from trainmaster.objects.errors import ObjectChangedError, UnreachableStoreError
from trainmaster.objects.object_store import ObjectStore

_PATIENCE_S = 60.0
_OUTSIDE = threading.local()


class Operation(NamedTuple):
    """What an actor is about to do.

    Attributes:
        name: of the method of `ObjectStore`, or `sleep`.
        key: of the object, or the prefix, or the first of several keys; for `sleep` the seconds.
    """

    name: str
    key: str


class StageClock:
    """Seconds that pass only when they are told to.

    Attributes:
        now_s: by the store's clock, in Unix seconds.
        offsets_s: by how much the wall clock of an actor is ahead of the store's, by the actor's name.
    """

    def __init__(self) -> None:
        self.now_s = 1_700_000_000.0
        self.offsets_s: dict[str, float] = {}

    def sleep(self, seconds: float) -> None:
        """Lets time pass."""
        self.now_s += seconds

    def boot_s(self) -> float:
        """What `trainmaster.spec.clocks.boot_s` would say, of every machine."""
        return self.now_s - 1_699_000_000.0

    def wall_s(self) -> float:
        """What `time.time` would say to the actor that asks."""
        actor = getattr(_OUTSIDE, "actor", None)
        return self.now_s + self.offsets_s.get(actor.name if actor else "", 0.0)


class ActorKilled(BaseException):
    """Raised in an actor that was killed, at each operation that it tries."""


class Actor:
    """A process: code in a thread, halted before each operation on a store.

    Attributes:
        name: for messages, and for its wall clock.
        is_over: whether it has ended.
        result: what it returned.
        error: what it raised, if it did.
    """

    def __init__(self, name: str, work: Callable[[], Any]) -> None:
        self.name = name
        self.is_over = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Operation, list[_Grant]]] = deque()
        self._is_killed = False
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True, name=f"actor-{name}")
        self._thread.start()
        self.settle()

    def __repr__(self) -> str:
        state = "over" if self.is_over else f"before {self.next}"
        return f"<Actor {self.name} {state}>"

    @property
    def next(self) -> Operation | None:
        """What it does when it is let; None if it is over."""
        with self._changed:
            return self._waiting[0][0] if self._waiting else None

    def settle(self) -> None:
        """Waits until it is about to do something, or over."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting or self.is_over, _PATIENCE_S):
                raise TimeoutError(f"the actor {self.name} neither ends nor does anything to a store")

    def kill(self) -> None:
        """Ends it as `kill -9` does: nothing that it would do to clean up reaches a store."""
        with self._changed:
            self._is_killed = True
            for _, turns in self._waiting:
                turns.append(_Grant(ActorKilled(), None))
            self._waiting.clear()
            self._changed.notify_all()
        self._thread.join(_PATIENCE_S)

    def arrive(self, operation: Operation, effect: Callable[[], Any]) -> Any:  # noqa: ANN401 - any operation's
        """Called before an operation of this actor: waits for its turn, then does it."""
        turns: list[_Grant] = []
        with self._changed:
            if self._is_killed:
                raise ActorKilled
            self._waiting.append((operation, turns))
            self._changed.notify_all()
            self._changed.wait_for(lambda: turns)
        turn = turns[0]
        if turn.before is not None:
            if turn.late is not None:
                turn.late.append((operation, effect))
            raise turn.before
        result = effect()
        if turn.after is not None:
            raise turn.after
        return result

    def let(self, turn: _Grant) -> None:
        """Lets it do what it waits for."""
        with self._changed:
            _, turns = self._waiting.popleft()
            turns.append(turn)
            self._changed.notify_all()
        self.settle()

    def _run(self, work: Callable[[], Any]) -> None:
        _OUTSIDE.actor = self
        try:
            self.result = work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test asks for it
            self.error = error
        finally:
            with self._changed:
                self.is_over = True
                self._changed.notify_all()


class _Grant(NamedTuple):
    before: BaseException | None = None
    after: BaseException | None = None
    late: list[tuple[Operation, Callable[[], Any]]] | None = None


class SteppedStore:
    """A store, its clock, and those that work on it.

    Attributes:
        clock: of the store; objects bear its time.
        objects: key with bucket -> bytes and time of writing.
        late: operations whose sender was told that they failed; :meth:`deliver` lets them arrive.
    """

    def __init__(self) -> None:
        self.clock = StageClock()
        self.objects: dict[str, tuple[bytes, float, int]] = {}
        self.late: list[tuple[Operation, Callable[[], Any]]] = []
        self.actors: list[Actor] = []
        self._writes = 0
        self._opened: Any = None

    def __enter__(self) -> Self:
        self._opened = plugins.factories.get("memory")
        plugins.factories["memory"] = lambda rest: _SteppedBackend(self, rest)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is None:
            del plugins.factories["memory"]
        else:
            plugins.factories["memory"] = self._opened
        for actor in self.actors:
            actor.kill()

    def store(self, bucket: str) -> ObjectStore:
        """Opens a store for its caller."""
        return ObjectStore(f"memory://{bucket}")

    def start(self, name: str, work: Callable[[], Any]) -> Actor:
        """Starts an actor; it stands before its first operation, or is over."""
        actor = Actor(name, work)
        self.actors.append(actor)
        return actor

    def step(self, actor: Actor) -> None:
        """Lets an actor do one operation."""
        actor.let(_Grant())

    def fail(self, actor: Actor, *, is_done: bool = False, is_late: bool = False) -> None:
        """Lets one operation fail for the actor.

        Args:
            actor: which.
            is_done: it was done; only the answer is lost.
            is_late: it is done when :meth:`deliver` is called.
        """
        error = UnreachableStoreError("The store is away.", "Try again.", "memory://")
        actor.let(
            _Grant(after=error) if is_done else _Grant(before=error, late=self.late if is_late else None)
        )

    def deliver(self) -> None:
        """Lets everything that was late arrive."""
        while self.late:
            self.late.pop(0)[1]()

    def run(self, actor: Actor, until: Callable[[Operation], bool]) -> Operation | None:
        """Steps an actor until it is about to do something; None if it is over before."""
        while (operation := actor.next) is not None and not until(operation):
            self.step(actor)
        return operation

    def finish(self, actor: Actor) -> Any:  # noqa: ANN401 - what its work returned
        """Steps an actor to its end; gives what it returned.

        Raises:
            BaseException: what it raised.
        """
        self.run(actor, lambda _: False)
        if actor.error is not None:
            raise actor.error
        return actor.result

    def sleep(self, seconds: float) -> None:
        """In place of `time.sleep`: a step of the actor, during which time passes."""
        actor = getattr(_OUTSIDE, "actor", None)
        if actor is None:
            self.clock.sleep(seconds)
        else:
            actor.arrive(Operation("sleep", str(seconds)), lambda: self.clock.sleep(seconds))

    def write(self, name: str, data: bytes) -> None:
        """Puts an object, by its name with the bucket."""
        self._writes += 1
        self.objects[name] = (data, self.clock.now_s, self._writes)


class _SteppedBackend(Backend):
    """A `Backend` over the objects of a stage; its operations are steps of the actor that has opened it."""

    in_memory_bytes = 1 << 62

    def __init__(self, stage: SteppedStore, prefix: str) -> None:
        self._stage = stage
        self._prefix = prefix.rstrip("/")
        self._actor: Actor | None = getattr(_OUTSIDE, "actor", None)

    def _step(self, name: str, key: str, effect: Callable[[], Any]) -> Any:  # noqa: ANN401
        if self._actor is None:
            return effect()
        return self._actor.arrive(Operation(name, key), effect)

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{key}" if key else self._prefix

    def _detail(self, key: str) -> ObjectDetail | None:
        found = self._stage.objects.get(self._name(key))
        return None if found is None else ObjectDetail(key, len(found[0]), f'"{found[2]}"', found[1])

    def _details(self, prefix: str) -> list[ObjectDetail]:
        start = self._name(prefix) + "/"
        skip = len(self._prefix) + 1
        keys = sorted(name[skip:] for name in tuple(self._stage.objects) if name.startswith(start))
        return [detail for key in keys if (detail := self._detail(key)) is not None]

    def _bytes(self, key: str, etag: str = "") -> bytes:
        detail = self._detail(key)
        if detail is None:
            raise FileNotFoundError(key)
        if etag and etag != detail.etag:
            raise ObjectChangedError("another ETag", "It was written again meanwhile.")
        return self._stage.objects[self._name(key)][0]

    def get(self, key: str, limit_bytes: int) -> bytes | None:
        with suppress(FileNotFoundError):
            found: bytes = self._step("get", key, lambda: self._bytes(key))
            if len(found) > limit_bytes:
                raise OverflowError(len(found))
            return found
        return None

    def get_range(self, key: str, start: int, length: int, etag: str) -> memoryview:
        data = self._step("get_range", key, lambda: self._bytes(key, etag))
        return memoryview(data)[start : start + length]

    def info(self, key: str) -> ObjectDetail | None:
        found: ObjectDetail | None = self._step("info", key, lambda: self._detail(key))
        return found

    def details(self, prefix: str) -> Iterator[ObjectDetail]:
        yield from self._step("list", prefix, lambda: self._details(prefix))

    def blocks(self, key: str) -> Iterator[bytes]:
        yield self._step("get", key, lambda: self._bytes(key))

    def put(self, key: str, data: bytes | memoryview) -> None:
        kept = bytes(data)
        self._step("put", key, lambda: self._stage.write(self._name(key), kept))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        def create() -> bool:
            if self._name(key) in self._stage.objects:
                return False
            self._stage.write(self._name(key), bytes(data))
            return True

        created: bool = self._step("put_if_absent", key, create)
        return created

    def put_blocks(self, key: str, blocks: Iterable[bytes], size_bytes: int) -> None:
        self.put(key, b"".join(blocks))

    def exists(self, key: str) -> bool:
        found: bool = self._step("info", key, lambda: self._detail(key) is not None)
        return found

    def folders(self, prefix: str) -> Iterable[str]:
        start = f"{prefix}/" if prefix else ""
        found = self._step("list", prefix, lambda: self._details(prefix))
        below = (detail.key[len(start) :] for detail in found)
        return {key.partition("/")[0] for key in below if "/" in key}

    def delete(self, keys: Iterable[str]) -> None:
        gone = [*keys]

        def forget() -> None:
            for key in gone:
                self._stage.objects.pop(self._name(key), None)

        self._step("delete", gone[0] if gone else "", forget)

    def delete_all(self, prefix: str) -> None:
        def forget() -> None:
            for detail in self._details(prefix):
                self._stage.objects.pop(self._name(detail.key), None)

        self._step("delete_all", prefix, forget)
