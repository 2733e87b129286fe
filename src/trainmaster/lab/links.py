"""`Links`: how slow and how leaky the way between two hosts is."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import UsageError

#: Every host, but not what is outside.
ALL: Final = "all"
#: This machine: where ssh comes from.
OUTSIDE: Final = "outside"
LONGEST_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Link:
    """One way between two hosts.

    Attributes:
        delay_s: each packet arrives so much later.
        loss: share of the packets that never arrive.
    """

    delay_s: float = 0.0
    loss: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether nothing is done to the packets."""
        return self.delay_s == 0 and self.loss == 0


@dataclass(frozen=True, slots=True)
class End:
    """One end of a way.

    Attributes:
        name: id of the host, or `OUTSIDE`.
        zone: where it stands; empty outside.
        addresses: it sends from them.
    """

    name: str
    zone: str
    addresses: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What a link may call it, the narrowest first."""
        return (self.name,) if self.name == OUTSIDE else (self.name, self.zone, ALL)


class Links:
    """The links that were set; the narrowest that fits counts.

    >>> links = Links()
    >>> links.set("us-east-1a", "us-east-1b", 0.02, 0.0)
    >>> a, b = End("i-1", "us-east-1a", ()), End("i-2", "us-east-1b", ())
    >>> links.between(b, a).delay_s, links.between(a, a).delay_s
    (0.02, 0.0)
    >>> links.set("i-1", "all", 0.05, 0.0)
    >>> links.between(a, b).delay_s
    0.05
    """

    def __init__(self) -> None:
        self._set: dict[tuple[str, str], Link] = {}

    def set(self, one: str, other: str, delay_s: float, loss: float, *, one_way: bool = False) -> None:
        """Set what happens to packets from one to the other, and back unless ``one_way``.

        Raises:
            UsageError: no such delay or loss.
        """
        if not (math.isfinite(delay_s) and 0 <= delay_s <= LONGEST_S):
            raise UsageError(f"a delay of {delay_s * 1000:g} ms", f"Give 0 to {LONGEST_S * 1000:g} ms.")
        if not 0 <= loss <= 1:
            raise UsageError(f"a loss of {loss:g}", "Give the share of packets that are lost, 0 to 1.")
        for pair in [(one, other)] if one_way else [(one, other), (other, one)]:
            self._set.pop(pair, None)  # a new one is the latest
            self._set[pair] = Link(delay_s, loss)

    def unset(self, one: str, other: str, *, one_way: bool = False) -> None:
        """Let these two be as what is wider says."""
        for pair in [(one, other)] if one_way else [(one, other), (other, one)]:
            self._set.pop(pair, None)

    def forget(self, name: str) -> None:
        """A host is gone."""
        for pair in [pair for pair in self._set if name in pair]:
            del self._set[pair]

    def between(self, source: End, target: End) -> Link:
        """What happens to packets on this way."""
        best, found = (99, 0), Link()
        for number, ((one, other), link) in enumerate(self._set.items()):
            if one in source.names and other in target.names:
                rank = source.names.index(one) + target.names.index(other)
                if (rank, -number) < best:
                    best, found = (rank, -number), link
        return found

    def tables(self, ends: Iterable[End]) -> dict[str, dict[str, Link]]:
        """Receiving end -> address of a sender -> link, where there is anything to do."""
        there = list(ends)
        found: dict[str, dict[str, Link]] = {}
        for target in there:
            for source in there:
                if source.name != target.name and not (link := self.between(source, target)).is_plain:
                    found.setdefault(target.name, {}).update(
                        dict.fromkeys(filter(None, source.addresses), link)
                    )
        return found

    def as_list(self) -> list[dict[str, Any]]:
        """For `lab status`."""
        return [
            {"from": one, "to": other, "delay_ms": link.delay_s * 1000, "loss": link.loss}
            for (one, other), link in self._set.items()
        ]
