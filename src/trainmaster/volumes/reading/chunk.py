"""A chunk as the cache is asked for it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


class RangeSource(Protocol):
    """What gives the bytes of chunks; safe to use from several threads."""

    def blocks(self, chunk: int, start: int, length: int) -> Iterator[memoryview]:
        """Reads exactly these bytes of a chunk from the store.

        Where the way to the store can be timed, an empty block comes first, when it answers, and the next
        one when the first MiB is there.
        """
        ...

    def verify(self, chunk: int, data: memoryview) -> None:
        """Raises a PublishError if these are not the bytes of the chunk."""
        ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a volume.

    Attributes:
        source: where its bytes come from.
        number: which chunk of the source it is.
        key: 32 bytes that are equal for equal content: its hash.
        size_bytes: of the whole chunk.
    """

    source: RangeSource
    number: int
    key: bytes
    size_bytes: int

    @property
    def prefix(self) -> int:
        """The number by which announced orders name it."""
        return int.from_bytes(self.key[:8], "little")


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a chunk lies in the cache.

    Attributes:
        slot: number of the slot.
        stamp: the slot's stamp while this is true; a slot with another one holds something else.
    """

    slot: int
    stamp: int
