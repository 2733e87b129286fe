"""Our `dataclass` does what the standard library's does: each test runs with both."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import pickle
from typing import Any, ClassVar

import pytest

from trainmaster import dataclass as ours


@pytest.fixture(params=["standard", "ours", "compiled"])
def dataclass(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "compiled":
        monkeypatch.setattr(ours, "_FIRST", 0)
    return dataclasses.dataclass if request.param == "standard" else ours.dataclass


@ours.dataclass(frozen=True, slots=True)
class Kept:
    """At module level, where pickle finds it."""

    name: str
    sizes: tuple[int, ...] = ()


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_arguments_defaults_and_text(dataclass: Any, slots: bool, frozen: bool) -> None:
    @dataclass(frozen=frozen, slots=slots)
    class Machine:
        count: ClassVar[int] = 3
        name: str
        cores: int = 2
        tags: list[str] = dataclasses.field(default_factory=list)
        secret: str = dataclasses.field(default="s", repr=False, compare=False)
        made: list[str] = dataclasses.field(default_factory=list, init=False)
        seen: bool = dataclasses.field(default=False, init=False)
        late: int = dataclasses.field(init=False, repr=False, compare=False)

    one, other = Machine("a"), Machine("a", tags=[], secret="t")
    assert one == other
    assert one.tags is not other.tags
    assert Machine("a") != Machine("a", 3)
    assert Machine("a") != "a"
    assert repr(one).endswith("Machine(name='a', cores=2, tags=[], made=[], seen=False)")
    assert (one.secret, other.secret, one.seen) == ("s", "t", False)
    assert not hasattr(one, "late")
    assert Machine.__match_args__ == ("name", "cores", "tags", "secret")
    assert Machine.count == 3
    assert [f.name for f in dataclasses.fields(one)] == [
        "name",
        "cores",
        "tags",
        "secret",
        "made",
        "seen",
        "late",
    ]
    assert hasattr(one, "__dict__") is not slots
    for wrong in (lambda: Machine(), lambda: Machine("a", nothing=1), lambda: Machine("a", name="b")):
        with pytest.raises(TypeError, match=r"__init__\(\)"):
            wrong()


@pytest.mark.parametrize("slots", [False, True])
def test_frozen(dataclass: Any, slots: bool) -> None:
    @dataclass(frozen=True, slots=slots)
    class Point:
        x: float
        y: float = 0.0

    point = Point(1.0)
    for change in (lambda: setattr(point, "x", 2.0), lambda: delattr(point, "x")):
        with pytest.raises(dataclasses.FrozenInstanceError, match="field 'x'"):
            change()
    assert dataclasses.replace(point, y=5.0) == Point(1.0, 5.0)
    assert hash(point) == hash(Point(1.0))
    assert {point: 1}[Point(1.0)] == 1
    assert copy.copy(point) == copy.deepcopy(point) == point
    assert dataclasses.asdict(point) == {"x": 1.0, "y": 0.0}


def test_one_that_changes_has_no_hash(dataclass: Any) -> None:
    @dataclass(slots=True)
    class Counter:
        n: int = 0

    counter = Counter()
    counter.n += 1
    assert counter == Counter(1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(counter)


def test_by_identity(dataclass: Any) -> None:
    @dataclass(eq=False)
    class Handle:
        n: int = 0

    assert Handle() != Handle()
    assert len({Handle(), Handle()}) == 2


def test_fields_of_the_base_come_first_and_what_is_written_stays(dataclass: Any) -> None:
    @dataclass(frozen=True)
    class Base:
        a: int
        b: int = 2

        def __post_init__(self) -> None:
            object.__setattr__(self, "b", self.b + 1)

        def __repr__(self) -> str:
            return f"<{self.a}>"

        def __hash__(self) -> int:
            return 7

    @dataclass(frozen=True)
    class Derived(Base):
        c: int = 3

        def __post_init__(self) -> None:
            super().__post_init__()

    class Plain(Derived):
        """No dataclass of its own."""

    assert repr(Base(1)) == "<1>"
    assert hash(Base(1)) == 7
    assert Base(1) != Derived(1)
    assert (Derived(1, c=9).b, Derived(1, c=9).c) == (3, 9)
    assert (Plain(1).b, type(Plain(1))) == (3, Plain)
    assert repr(Derived(1)).endswith("Derived(a=1, b=3, c=3)")
    assert hash(Derived(1)) == hash(Derived(1))


def test_its_signature(dataclass: Any) -> None:
    @dataclass(frozen=True, slots=True)
    class Machine:
        name: str
        cores: int = dataclasses.field(default=2, kw_only=True)
        seen: bool = dataclasses.field(default=False, init=False)

    class Plain(Machine):
        """No dataclass of its own."""

    for cls in (Machine, Plain):
        assert str(inspect.signature(cls)) == "(name: 'str', *, cores: 'int' = 2) -> None"


def test_by_keyword_only(dataclass: Any) -> None:
    @dataclass(kw_only=True)
    class Options:
        a: int
        b: int = 1

    @dataclass
    class Some:
        a: int
        b: int = dataclasses.field(default=1, kw_only=True)

    assert (Options(a=1).b, Some(1, b=3).b) == (1, 3)
    for wrong in (lambda: Options(1), lambda: Some(1, 2)):
        with pytest.raises(TypeError, match="positional"):
            wrong()


def test_few_fields_and_what_is_not_itself(dataclass: Any) -> None:
    @dataclass(frozen=True)
    class Nothing:
        pass

    @dataclass(frozen=True)
    class Loss:
        value: float

    assert Nothing() == Nothing()
    assert hash(Nothing()) == hash(Nothing())
    nan = math.nan
    assert Loss(nan) == Loss(nan)  # a tuple compares what is the same object as equal
    assert hash(Loss(1.0)) != hash(Loss(2.0))


def test_what_holds_itself_is_shown(dataclass: Any) -> None:
    @dataclass
    class Node:
        next: object = None

    node = Node()
    node.next = node
    assert repr(node).endswith("Node(next=...)")


def test_pickled() -> None:
    assert pickle.loads(pickle.dumps(Kept("a", (1, 2)))) == Kept("a", (1, 2))


def test_nothing_is_compiled_before_several_objects_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataclasses, "_create_fn", lambda *_, **__: pytest.fail("compiled"))

    @ours.dataclass(frozen=True, slots=True)
    class Value:
        a: int
        b: str = ""

    first_init = Value.__init__
    assert [Value(number).a for number in range(8)] == [*range(8)]
    assert Value.__init__ is first_init
    assert Value(1).a == 1
    assert Value.__init__ is not first_init
    assert Value(2, "b") == Value(b="b", a=2)
