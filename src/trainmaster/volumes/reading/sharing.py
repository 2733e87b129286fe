"""Which positions of an epoch each rank and worker reads, also when their number changes. Pure.

What is left of an epoch is a few spans of positions. Each *phase*, the time between two changes
of the number of ranks, splits what was left anew; so (ranks, samples that each has taken) of the
phases so far is all that has to be remembered.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import UsageError

Padding = Literal["pad", "drop", "uneven"]
Split = Literal["chunks", "samples"]
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TrainingPosition:
    """How far a training is; small, and all that has to be kept.

    Attributes:
        seed: of all orders.
        epoch: the number of the epoch.
        consumed: for each phase of this epoch the number of ranks, and how many samples each took.
    """

    seed: int
    epoch: int
    consumed: tuple[tuple[int, int], ...] = ()

    def as_state(self) -> dict[str, object]:
        """Gives it as JSON."""
        return {"seed": self.seed, "epoch": self.epoch, "consumed": [list(phase) for phase in self.consumed]}

    @classmethod
    def from_state(cls, state: "dict[str, object]") -> "TrainingPosition":
        """Reads what :meth:`as_state` gave.

        Raises:
            UsageError: it is something else.
        """
        try:
            consumed = tuple((int(world), int(taken)) for world, taken in state["consumed"])  # type: ignore[attr-defined]
            progress = cls(int(state["seed"]), int(state["epoch"]), consumed)  # type: ignore[call-overload]
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{state!r} is no state of a stream.",
                "Pass what state_dict() gave.",
            ) from error
        if any(world < 1 or taken < 0 for world, taken in consumed):
            raise UsageError(f"{state!r} is no state of a stream: no phase can be like that.")
        return progress


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank reads.

    Attributes:
        spans: positions from, to (exclusive).
        step: every how many'th of the joined spans, from ``offset`` on.
        offset: see ``step``.
        own: how many positions are its own.
        padded: positions that another rank reads too, behind its own.
    """

    spans: tuple[Span, ...]
    step: int
    offset: int
    own: int
    padded: tuple[int, ...] = ()

    def __len__(self) -> int:
        return self.own + len(self.padded)

    def positions(self, start: int, stop: int) -> NDArray[np.int64]:
        """Gives the positions at places ``start`` to ``stop`` of the share."""
        return self.at(np.arange(start, min(stop, len(self)), dtype=np.int64))

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Gives the positions at increasing places of the share; many at a time cost little more than one."""
        own = int(np.searchsorted(places, self.own))
        found = _lookup(self.spans, places[:own] * self.step + self.offset)
        if own == len(places):
            return found
        return np.concatenate((found, np.asarray(self.padded, np.int64)[places[own:] - self.own]))


def share(spans: Sequence[Span], world: int, rank: int, *, padding: Padding, split: Split) -> Share:
    """Gives one rank its share of what is left.

    Args:
        spans: what is left.
        world: how many ranks there are.
        rank: which one.
        padding: where the samples do not divide: ``pad`` gives the ranks that are short one
            sample of another, ``drop`` leaves up to ``world - 1`` samples out, ``uneven`` lets
            some ranks have one more.
        split: ``chunks`` gives each rank a stretch of the order, so that each chunk is read by
            one rank, but for the first and last of a stretch; ``samples`` deals the samples out in turn, so
            that all ranks read the same chunks at the same time, as ranks of one node should.

    >>> [share([(0, 7)], 2, rank, padding="pad", split="chunks").positions(0, 9).tolist() for rank in (0, 1)]
    [[0, 1, 2, 3], [4, 5, 6, 0]]
    >>> share([(0, 7)], 2, 1, padding="drop", split="samples").positions(0, 9)
    array([1, 3, 5])
    """
    if not 0 <= rank < world:
        raise UsageError(f"Rank {rank} of {world}: ranks are 0 to {world - 1}.")
    total = sum(stop - start for start, stop in spans)
    each, more = divmod(total, world)
    own = each + (rank < more)
    padded: tuple[int, ...] = ()
    if padding == "drop":
        own = each
    elif padding == "pad" and more and rank >= more:
        padded = (int(_lookup(tuple(spans), np.array([(rank - more) % total]))[0]),)
    if split == "samples":
        return Share(tuple(spans), world, rank, own, padded)
    begin = rank * each + min(rank, more)
    return Share(tuple(_cut(spans, begin, begin + own)), 1, 0, own, padded)


def left(total: int, consumed: Sequence[tuple[int, int]], split: Split) -> list[Span]:
    """Says what is left of an epoch after the phases so far.

    >>> left(10, [(2, 3)], "chunks"), left(10, [(2, 3)], "samples")
    ([(3, 5), (8, 10)], [(6, 10)])
    """
    spans: list[Span] = [(0, total)] if total else []
    for world, taken in consumed:
        count = sum(stop - start for start, stop in spans)
        if split == "samples":
            spans = list(_cut(spans, min(world * taken, count), count))
            continue
        each, more = divmod(count, world)
        rest: list[Span] = []
        for rank in range(world):
            begin = rank * each + min(rank, more)
            end = begin + each + (rank < more)
            rest.extend(_cut(spans, min(begin + taken, end), end))
        spans = _joined(rest)
    return spans


def blocks(length: int, size: int, workers: int, worker: int) -> Iterator[Span]:
    """Deals a share out to the loading processes of a rank, batch by batch.

    A ``DataLoader`` takes batches from its workers in turn, so the order is the same for any
    number of them.

    >>> list(blocks(10, 2, workers=2, worker=1))
    [(2, 4), (6, 8)]
    """
    for start in range(worker * size, length, workers * size):
        yield start, min(start + size, length)


def _cut(spans: Sequence[Span], begin: int, end: int) -> Iterator[Span]:
    """The part of joined spans from ``begin`` to ``end``."""
    passed = 0
    for start, stop in spans:
        low, high = max(begin - passed, 0), min(end - passed, stop - start)
        if low < high:
            yield start + low, start + high
        passed += stop - start


def _joined(spans: Sequence[Span]) -> list[Span]:
    result: list[Span] = []
    for start, stop in spans:
        if result and result[-1][1] == start:
            result[-1] = (result[-1][0], stop)
        else:
            result.append((start, stop))
    return result


def _lookup(spans: tuple[Span, ...], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions at places of joined spans."""
    if not spans:
        return np.zeros(0, np.int64)
    starts = np.array([start for start, _ in spans], np.int64)
    ends = np.cumsum([stop - start for start, stop in spans])
    which = np.searchsorted(ends, places, "right")
    before = np.concatenate(([0], ends[:-1]))
    return starts[which] + places - before[which]
