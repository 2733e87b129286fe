"""What a node must have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final

from trainmaster.lazy import regex
from trainmaster.spec.node import Kind, YamlNode
from trainmaster.spec.reading import (
    Key,
    Noun,
    Path,
    Problems,
    Reader,
    T,
    boolean,
    integer,
    keys_of,
    list_of,
    noun,
    refuse_unknown_keys,
    size,
    takes,
    text,
)

_MODEL_RIGHT: Final = "write a model such as v100"
#: No GPU is called so, but so many of them fit into a machine: the RTX 4090 is one.
_MOST_GPUS: Final = 100
#: As SkyPilot and dstack write them: a model and how many; at least so much (which is what is meant here
#: anyway), or a range.
_COUNTED: Final = regex(r"([A-Za-z][\w-]*):(\d{1,3})")
_AT_LEAST: Final = regex(r"(\d[\w.]*?)(\+|\.\.\s*[\w.]*)")
_RANGE: Final = regex(r"(\d[\w.]*?)\s*\.\.\s*(\d[\w.]*)")
_OPEN: Final = r"^\s*\d[\w.]*?(\+|\.\.)\s*$"
_CLOSED: Final = r"^\s*\d[\w.]*?\s*\.\.\s*\d[\w.]*\s*$"
_SIZES: Final = ("memory", "gpu_memory")
#: A system has so many times the memory that it lets be shared.
_OF_SHARED: Final = 2
#: Keys of other tools, and what is written here.
_FOREIGN: Final = {
    "accelerators": "write `gpu` and `gpus`: `V100:4` is `gpu: V100, gpus: 4`",
    "use_spot": "write `spot`",
    **dict.fromkeys(
        ("type", "types", "instance_type", "instance_types", "machine_type", "vm_size", "flavor"),
        "did you mean `instance`? The model of its GPUs is `gpu`",
    ),
}


def _gpu_model(node: YamlNode, path: Path, problems: Problems) -> str:
    """Read a GPU's model; a number of GPUs goes elsewhere."""
    if node.kind is Kind.SCALAR and node.text.isdecimal() and int(node.text) < _MOST_GPUS:
        message = f"{node.describe()}; did you mean `gpus: {int(node.text)}`? `gpu` is a model such as v100"
        raise problems.refuse(node, path, message)
    if counted := _COUNTED.fullmatch(node.text):
        message = f"{node.describe()}; write `gpu: {counted[1]}, gpus: {counted[2]}` (docs/migrate.md)"
        raise problems.refuse(node, path, message)
    return text(_MODEL_RIGHT)(node, path, problems)


takes(_gpu_model, text=r"^(?!\d{1,2}$).*\S")


def _one_or_several(read: Reader[str], right: str, *more: object) -> Reader[str | tuple[str, ...] | None]:
    """Read a text, or a list of which any will do; of one it is that text."""
    read_list = list_of(read, right, single=True)

    def found(node: YamlNode, path: Path, problems: Problems) -> str | tuple[str, ...] | None:
        values = read_list(node, path, problems)
        return values if len(values) > 1 else values[0] if values else None

    return takes(found, any=[read_list, *more])


#: As SkyPilot and dstack have GPUs, too; `Hardware.prepare` shares it out.
_COUNTED_GPUS: Final = {
    "type": "object",
    "properties": {
        "type": {"type": ["string", "array"]},
        "count": {"type": ["integer", "string"], "minimum": 0, "maximum": 1024},
        "memory": {"type": "string"},
    },
    "additionalProperties": False,
}


def _least(read: Reader[T], unit: str = "") -> Reader[T]:
    """Read what a machine must have at least, as in ``4`` or, as other tools write it, ``4+``."""

    def found(node: YamlNode, path: Path, problems: Problems) -> T:
        if node.kind is Kind.SCALAR and (asked := _AT_LEAST.fullmatch(node.text.strip())):
            least = asked[1] if not asked[1].isdecimal() else asked[1] + unit
            if asked[2] not in ("+", ".."):
                right = f"write {least}: machines with more will do, too (docs/migrate.md)"
                raise problems.refuse(node, path, f"{node.describe()}; {right}")
            node = replace(node, text=least, plain=True)
        return read(node, path, problems)

    return takes(found, any=[read, {"type": "string", "pattern": _OPEN}])


def _ranged(read: Reader[T], unit: str = "") -> Reader[T]:
    """Read the lower end of a range, too: `_bounded` has taken the upper one."""
    least = _least(read, unit)
    either = [least, {"type": "string", "pattern": _CLOSED}]
    return takes(lambda node, path, problems: least(node, path, problems), any=either)


def _prepared(node: YamlNode, path: Path, problems: Problems, parts: Mapping[str, str]) -> YamlNode:
    """Move ``count`` and ``memory`` out of ``gpu: {type: H100, count: 8}``; the type is the model."""
    for name in node.entries.keys() & _FOREIGN.keys():
        problems.add(node.keys[name], (*path, name), _FOREIGN[name])
    keys = {name: key for name, key in node.keys.items() if name not in _FOREIGN}
    entries = {name: node.entries[name] for name in keys}
    gpu = entries.get("gpu")
    if gpu is not None and gpu.kind is Kind.MAPPING:
        where = (*path, "gpu")
        refuse_unknown_keys(gpu, where, problems, tuple(parts))
        del entries["gpu"]
        for name, key in parts.items():
            if name in gpu.entries and key in entries:
                problems.add(gpu.keys[name], (*where, name), f"`{key}` says that already; give it once")
            elif name in gpu.entries:
                entries[key] = replace(gpu.entries[name], stands_at=(*where, name))
    return replace(node, keys=keys, entries=entries)


def _bounded(node: YamlNode, path: Path, problems: Problems) -> YamlNode:
    """Move the upper ends of ranges such as ``gpus: 1..4`` to ``most``."""
    entries, most = dict(node.entries), node.entries.get("most")
    ends: dict[str, YamlNode] = {}
    for key in ("gpus", "cpus", *_SIZES):
        given = entries.get(key)
        asked = given and given.kind is Kind.SCALAR and _RANGE.fullmatch(given.text.strip())
        if not given or not asked:
            continue
        least, end = asked.groups()
        if key in _SIZES:
            end += "GB" if end.isdecimal() else ""
            least += end.lstrip("0123456789.") if least.isdecimal() else ""
        if most is not None and key in most.entries:
            problems.add(most.keys[key], (*path, "most", key), f"`{key}` has an upper end already")
        where = given.stands_at or (*path, key)
        entries[key] = replace(given, text=least, plain=True, stands_at=where)
        ends[key] = replace(given, text=end, plain=True, stands_at=where)
    if not ends:
        return node
    base = most or replace(node, kind=Kind.MAPPING, entries={}, keys={})
    keys = base.keys | {key: node.keys.get(key, end) for key, end in ends.items()}
    entries["most"] = replace(base, entries=base.entries | ends, keys=keys)
    return replace(node, entries=entries, keys=node.keys | {"most": node.keys.get("most", node)})


_read_gpu: Final = _one_or_several(_gpu_model, "write a model such as v100, or a list", _COUNTED_GPUS)
_read_region: Final = _one_or_several(text("write a region's name"), "write a region's name, or a list")
_read_instance: Final = list_of(text(), "write a list of instance types", single=True)


class WishChoice(Noun):
    """Of several the machines that will do; attributes as `Hardware` has them."""

    instance: Annotated[tuple[str, ...], Key("instance", _read_instance)] = ()
    gpu: Annotated[str | tuple[str, ...] | None, Key("gpu", _read_gpu)] = None
    gpu_memory_bytes: Annotated[int | None, Key("gpu_memory", _least(size, "GB"))] = None
    region: Annotated[str | tuple[str, ...] | None, Key("region", _read_region)] = None

    @classmethod
    def prepare(cls, node: YamlNode, path: Path, problems: Problems) -> YamlNode:
        """Read ``gpu: {type: H100}``, too; how many there are is the same for all of them."""
        node = super().prepare(node, path, problems)
        return _prepared(node, path, problems, {"type": "gpu", "memory": "gpu_memory"})


class Most(Noun):
    """What a machine has at most; attributes as `Hardware` has them, None is any."""

    gpus: Annotated[int | None, Key("gpus", integer(0, 1024))] = None
    gpu_memory_bytes: Annotated[int | None, Key("gpu_memory", size)] = None
    cpus: Annotated[int | None, Key("cpus", integer(1, 65536))] = None
    memory_bytes: Annotated[int | None, Key("memory", size)] = None


class Hardware(Noun):
    """Wishes and needs for each node; None is any.

    Where all members of a gang are on one machine (``local``), ``gpus`` and ``cpus`` are of each member. On
    nodes the workers there share them (`trainmaster.control.task.gangs`).

    Attributes:
        instance: instance types to choose from; empty is any.
        gpu: model of the GPUs, such as ``v100``; of several any will do.
        gpus: GPUs per node.
        gpu_memory_bytes: memory of each GPU.
        cpus: cores per node.
        memory_bytes: main memory per node.
        shm_bytes: shared memory (`/dev/shm`) that members find at least.
        most: upper ends; `gpus: 1..4` is `gpus: 1` with `most: {gpus: 4}`.
        disk_bytes: disk per node.
        spot: machines that may be taken back.
        region: place of the provider; of several any will do, one for all machines.
        any_of: machines that are as one of these will do; empty is any.
    """

    instance: Annotated[tuple[str, ...], Key("instance", _read_instance)] = ()
    gpu: Annotated[str | tuple[str, ...] | None, Key("gpu", _read_gpu)] = None
    gpus: Annotated[int | None, Key("gpus", _ranged(integer(0, 1024)))] = None
    gpu_memory_bytes: Annotated[int | None, Key("gpu_memory", _ranged(size, "GB"))] = None
    cpus: Annotated[int | None, Key("cpus", _ranged(integer(1, 65536)))] = None
    memory_bytes: Annotated[int | None, Key("memory", _ranged(size, "GB"))] = None
    disk_bytes: Annotated[int | None, Key("disk", _least(size, "GB"))] = None
    shm_bytes: Annotated[int | None, Key("shm_size", size)] = None
    most: Annotated[Most | None, Key("most", noun(Most))] = None
    spot: Annotated[bool | None, Key("spot", boolean)] = None
    region: Annotated[str | tuple[str, ...] | None, Key("region", _read_region)] = None
    any_of: Annotated[
        tuple[WishChoice, ...], Key("any_of", list_of(noun(WishChoice), "write a list of wishes"))
    ] = ()

    @classmethod
    def prepare(cls, node: YamlNode, path: Path, problems: Problems) -> YamlNode:
        """Read what other tools call so, and ``gpu: {type: H100, count: 8}``."""
        node = super().prepare(node, path, problems)
        node = _prepared(node, path, problems, {"type": "gpu", "count": "gpus", "memory": "gpu_memory"})
        return _bounded(node, path, problems)

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """Check lower and upper ends against each other."""
        for name, end in values.get("most") or Most():
            least = values.get(name)
            if end is not None and least is not None and least > end:
                key = next(key.name for field, key in keys_of(Most) if field == name)
                where = node.entries[key]
                problems.add(where, (*path, key), "the least is more than the most; write it as 1..4")

    @property
    def gpu_count(self) -> int:
        """GPUs per node: 1 where only the model or the memory is given, 0 where nothing is."""
        return self.gpus if self.gpus is not None else int(self.is_choosy)

    @property
    def fixed_gpus(self) -> int | None:
        """GPUs per node; None if a task takes all that its machine has: a range, or a model alone."""
        return None if self.most is not None and self.most.gpus is not None else self.gpus

    @property
    def rented_memory_bytes(self) -> int | None:
        """Main memory of a machine that is rented: half of it is what a system lets be shared."""
        return max(self.memory_bytes or 0, _OF_SHARED * (self.shm_bytes or 0)) or None

    @property
    def is_choosy(self) -> bool:
        """Whether it says which GPUs will do."""
        return any(each.gpu is not None or each.gpu_memory_bytes is not None for each in self._wishes)

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions of which any will do; empty is any."""
        return tuple(region for each in self._wishes for region in several(each.region))

    @property
    def _wishes(self) -> tuple[Hardware | WishChoice, ...]:
        return (self, *self.any_of)

    @property
    def device(self) -> str:
        """What its GPUs are, before any are rented; empty without."""
        return "" if not self.gpu_count else self.gpu if isinstance(self.gpu, str) else "gpu"

    def overridden_by(self, other: Hardware) -> Hardware:
        """These wishes with those that another gives put in their place."""
        given = {name: value for name, value in other if value not in (None, ())}
        return self.model_copy(update=given)


def several(wish: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """A wish as the list of what will do.

    >>> several("v100"), several(("l4", "a10g")), several(None)
    (('v100',), ('l4', 'a10g'), ())
    """
    return () if wish is None else (wish,) if isinstance(wish, str) else wish
