"""Which of Libcloud's EC2 prices are those of ordinary (shared) machines on demand.

Libcloud keeps one price per type and region, though Amazon lists several for it: zero for capacity that was
reserved before, and 6 to 11 % more for machines on hardware of one's own ("dedicated"). Which of them came
first in Amazon's file is chance, so about every third price is too high and every sixth is zero.

What tells them apart is that Amazon prices the sizes of one family in proportion to their *normalization
factor*. In each region the lowest price per unit of that factor, if at least two sizes agree on it, is that
of shared machines; what lies above is not.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

#: Published prices are rounded, c4.large by 0.5 %; dedicated machines cost at least 5 % more.
_TOLERANCE: Final = 0.02
_MOST_SURCHARGE: Final = 0.15
_SMALL: Final = {"nano": 0.25, "micro": 0.5, "small": 1.0, "medium": 2.0, "large": 4.0, "xlarge": 8.0}
_XLARGE = re.compile(r"([0-9]+)xlarge")

#: A verdict on each price: type, region, the price, and why it is refused ('' if it is not).
Verdict = tuple[str, str, float, str]


def normalization_factor(instance_type: str) -> float | None:
    """Amazon's factor of a size, where it follows from the name; None for bare metal.

    It does not for families with GPUs whose sizes have the same GPU (g4dn, g5, g6): pass what Amazon lists.

    >>> [normalization_factor(kind) for kind in ("m4.10xlarge", "t2.micro", "m5.metal")]
    [80.0, 0.5, None]
    """
    size = instance_type.rpartition(".")[2]
    if found := _XLARGE.fullmatch(size):
        return 8.0 * int(found[1])
    return _SMALL.get(size)


def judge_prices(
    prices: Mapping[str, Mapping[str, float]], factors: Mapping[str, float]
) -> Iterator[Verdict]:
    """Say of every price whether it is that of shared machines.

    Args:
        prices: by type and region.
        factors: normalization factors by type. Those of a family of which none is given follow from the
            names of its sizes.
    """
    families: dict[tuple[str, str], list[tuple[str, float]]] = defaultdict(list)
    for kind, regions in prices.items():
        for region, price in regions.items():
            if not isinstance(price, int | float) or not price > 0:
                yield kind, region, 0.0, f"{price!r} is no price"
            else:
                families[kind.partition(".")[0], region].append((kind, float(price)))
    for (_, region), sizes in families.items():
        yield from _judge_family(region, sizes, factors)


def _judge_family(
    region: str, sizes: list[tuple[str, float]], factors: Mapping[str, float]
) -> Iterator[Verdict]:
    units: dict[str, float] = {}
    listed = any(
        kind in factors for kind, _ in sizes
    )  # then names do not count: they may be of another scale
    for kind, price in sizes:
        factor = factors.get(kind) if listed else normalization_factor(kind)
        if factor is None:
            yield kind, region, price, "no other size to check it with: perhaps that of dedicated hardware"
        else:
            units[kind] = price / factor
    lowest = min(units.values(), default=0.0)
    agreed = sum(unit <= lowest * (1 + _TOLERANCE) for unit in units.values()) > 1
    for kind, price in sizes:
        if kind not in units:
            continue
        excess = units[kind] / lowest - 1
        if not agreed:
            reason = "no other size of its family agrees with it: perhaps that of dedicated hardware"
        elif excess > _MOST_SURCHARGE:
            reason = f"{excess:.0%} more than other sizes of its family: it cannot be checked with them"
        elif excess > _TOLERANCE:
            reason = f"{excess:.0%} more than other sizes of its family: that of dedicated hardware"
        else:
            reason = ""
        yield kind, region, price, reason
