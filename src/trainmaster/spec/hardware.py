"""What a node must have."""

from __future__ import annotations

from typing import Annotated

from trainmaster.spec.reading import Key, Noun, boolean, integer, list_of, size, text


class Hardware(Noun):
    """Wishes and needs for each node; None is any.

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
    gpu: Annotated[str | None, Key("gpu", text("write a model such as v100"))] = None
    gpus: Annotated[int | None, Key("gpus", integer(0, 1024))] = None
    cpus: Annotated[int | None, Key("cpus", integer(1, 65536))] = None
    memory_bytes: Annotated[int | None, Key("memory", size)] = None
    disk_bytes: Annotated[int | None, Key("disk", size)] = None
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
