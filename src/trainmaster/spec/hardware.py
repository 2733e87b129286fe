"""What a node must have."""

from __future__ import annotations

import re
from typing import Annotated, Final

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
    list_of,
    size,
    takes,
    text,
)

_MODEL_RIGHT: Final = "write a model such as v100"
#: No GPU is called so, but so many of them fit into a machine: the RTX 4090 is one.
_MOST_GPUS: Final = 100
#: As SkyPilot and dstack write them: a model and how many; at least so much, or a range.
_COUNTED: Final = re.compile(r"([A-Za-z][\w-]*):(\d{1,3})")
_AT_LEAST: Final = re.compile(r"(\d[\w.]*?)(?:\+|\.\.\s*[\w.]*)")


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


def _least(read: Reader[T], unit: str = "") -> Reader[T]:
    """Read what a machine must have at least; other tools write so with a sign."""

    def found(node: YamlNode, path: Path, problems: Problems) -> T:
        if node.kind is Kind.SCALAR and (asked := _AT_LEAST.fullmatch(node.text.strip())):
            right = asked[1] if not asked[1].isdecimal() else asked[1] + unit
            message = f"{node.describe()}; write {right}: machines with more will do, too (docs/migrate.md)"
            raise problems.refuse(node, path, message)
        return read(node, path, problems)

    return takes(found, same=read)


class Hardware(Noun):
    """Wishes and needs for each node; None is any.

    Where all members of a gang are on one machine (``local``), ``gpus`` and ``cpus`` are of each member. On
    nodes the workers there share them (`trainmaster.control.task.gangs`).

    Attributes:
        instance: instance types to choose from; empty is any.
        gpu: model of the GPUs, such as ``v100``.
        gpus: GPUs per node.
        cpus: cores per node.
        memory_bytes: main memory per node.
        disk_bytes: disk per node.
        spot: machines that may be taken back.
        region: place of the provider.
    """

    instance: Annotated[
        tuple[str, ...], Key("instance", list_of(text(), "write a list of instance types", single=True))
    ] = ()
    gpu: Annotated[str | None, Key("gpu", _gpu_model)] = None
    gpus: Annotated[int | None, Key("gpus", _least(integer(0, 1024)))] = None
    cpus: Annotated[int | None, Key("cpus", _least(integer(1, 65536)))] = None
    memory_bytes: Annotated[int | None, Key("memory", _least(size, "GB"))] = None
    disk_bytes: Annotated[int | None, Key("disk", _least(size, "GB"))] = None
    spot: Annotated[bool | None, Key("spot", boolean)] = None
    region: Annotated[str | None, Key("region", text("write a region's name"))] = None

    @property
    def gpu_count(self) -> int:
        """GPUs per node: 1 where only the model is given, 0 where nothing is."""
        return self.gpus if self.gpus is not None else int(self.gpu is not None)

    def overridden_by(self, other: Hardware) -> Hardware:
        """These wishes with those that another gives put in their place."""
        given = {name: value for name, value in other if value not in (None, ())}
        return self.model_copy(update=given)
