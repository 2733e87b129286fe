"""The standard library's `dataclass`, whose functions are made when they are needed.

The standard library compiles up to six functions for each class while its module is imported: a fifth of all
that ``trainmaster run`` computed. Here `__init__` is compiled when there are some objects, and the others are
made without a compiler. To everything else it is a dataclass: `dataclasses.fields`, `replace` and `asdict`
take it, and type checkers see the standard library's. ``order``, ``unsafe_hash`` and ``InitVar`` are unknown.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import reprlib
from dataclasses import MISSING, FrozenInstanceError, field
from operator import attrgetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass
    from typing import Any

    from _typeshed import DataclassInstance

__all__ = ["dataclass", "field"]

#: So many objects of a class take less than to compile its `__init__`; of most there are fewer.
_FIRST = 8

if not TYPE_CHECKING:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        slots: bool = False,
        eq: bool = True,
        repr: bool = True,
        kw_only: bool = False,
    ) -> object:
        """Make a class a dataclass, by the options of `dataclasses.dataclass`."""

        def made(cls: type) -> type:
            written = set(vars(cls))  # by hand: it stays
            has_hash = vars(cls).get("__hash__") is not None
            cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
            methods = {"__init__": _first_init(cls, frozen), "__signature__": _Signature()}
            if repr:
                methods["__repr__"] = _repr
            if eq:
                methods["__eq__"], made_hash = _eq_and_hash(cls)
                if not has_hash:
                    cls.__hash__ = made_hash if frozen else None
            if frozen:
                methods |= {"__setattr__": _set_frozen, "__delattr__": _delete_frozen}
                if slots:
                    methods |= {"__getstate__": _getstate, "__setstate__": _setstate}
            for name, method in methods.items():
                if name not in written:
                    setattr(cls, name, method)
            return cls

        return made if cls is None else made(cls)


def _first_init(cls: type[Any], frozen: bool) -> Callable[..., None]:
    """An `__init__` for the first objects; then it compiles the one that takes its place."""
    objects = itertools.count()

    def compiled() -> Callable[..., None]:
        cls.__init__ = _compiled_init(cls, frozen)
        return cls.__init__  # type: ignore[no-any-return]

    def __init__(self: object, /, *args: object, **kwargs: object) -> None:  # noqa: N807
        if next(objects) >= _FIRST or not _is_filled(self, cls, frozen, args, kwargs):
            compiled()(self, *args, **kwargs)

    __init__.compiled = compiled  # type: ignore[attr-defined]
    return __init__


def _is_filled(
    self: object, cls: type[Any], frozen: bool, args: tuple[object, ...], kwargs: dict[str, object]
) -> bool:
    """Do what the compiled one would; False, and nothing is done, if it would refuse the arguments."""
    fields = dataclasses.fields(cls)
    names = [one.name for one in fields if one.init and not one.kw_only]
    given = dict(zip(names, args, strict=False)) | kwargs
    left, values = len(given), dict[str, object]()
    for one in fields:
        if one.init and one.name in given:
            values[one.name] = given[one.name]
            left -= 1
        elif one.default_factory is not MISSING:
            values[one.name] = one.default_factory()
        elif one.default is not MISSING:
            values[one.name] = one.default
        elif one.init:
            return False
    if left or len(given) < len(args) + len(kwargs):
        return False
    put = object.__setattr__ if frozen else setattr
    for name, value in values.items():
        put(self, name, value)
    if hasattr(cls, "__post_init__"):
        self.__post_init__()  # type: ignore[attr-defined]
    return True


class _Signature:
    """What `inspect.signature` and `help` show of a class."""

    def __get__(self, _: object, cls: type[Any]) -> inspect.Signature:
        init = cls.__init__
        return inspect.signature(getattr(init, "compiled", lambda: init)().__get__(cls))


def _compiled_init(cls: type[Any], frozen: bool) -> Callable[..., None]:
    known: dict[str, object] = {"_set": object.__setattr__, "_missing": MISSING}
    positional, by_keyword, body = ["self"], ["*"], []
    for one in dataclasses.fields(cls):
        name, default, value = one.name, f"_default_{one.name}", one.name
        known[default] = one.default if one.default_factory is MISSING else one.default_factory
        has_default = known[default] is not MISSING
        if one.default_factory is not MISSING:
            value = f"{default}() if {name} is _missing else {name}" if one.init else f"{default}()"
            default = "_missing"
        elif not one.init:
            value = default
        if one.init:
            (by_keyword if one.kw_only else positional).append(f"{name}={default}" if has_default else name)
        if one.init or has_default:
            body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(positional + (by_keyword if len(by_keyword) > 1 else []))
    source = f"def __init__({parameters}):\n " + "\n ".join(body or ["pass"])
    exec(source, known)  # noqa: S102 - of names of fields, as the standard library does
    init: Any = known["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    init.__annotations__ = {one.name: one.type for one in dataclasses.fields(cls) if one.init} | {
        "return": None
    }
    return init  # type: ignore[no-any-return]


@reprlib.recursive_repr()
def _repr(self: DataclassInstance) -> str:
    shown = (f"{one.name}={getattr(self, one.name)!r}" for one in dataclasses.fields(self) if one.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq_and_hash(cls: type[Any]) -> tuple[Callable[..., bool], Callable[..., int]]:
    names = [one.name for one in dataclasses.fields(cls) if one.compare]
    # It takes at least one name, and with one it gives no tuple.
    values: Callable[..., object] = (
        attrgetter(*(names * 2 if len(names) == 1 else names)) if names else lambda _: ()
    )

    def __eq__(self: object, other: object) -> bool:  # noqa: N807
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: object) -> int:  # noqa: N807
        return hash(values(self))

    return __eq__, __hash__


def _set_frozen(self: object, name: str, _: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete_frozen(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _getstate(self: DataclassInstance) -> list[object]:
    return [getattr(self, one.name) for one in dataclasses.fields(self)]


def _setstate(self: DataclassInstance, state: list[object]) -> None:
    for one, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)
