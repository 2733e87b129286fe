"""What machines cost per hour that may be there at the same time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter


def ancestors(after: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Of each experiment, all that have ended before it begins.

    Args:
        after: which experiments each waits for; those that are not named themselves do not count.

    >>> sorted(ancestors({"a": [], "b": ["a"], "c": ["b"]})["c"])
    ['a', 'b']
    """
    direct = {name: {each for each in earlier if each in after} for name, earlier in after.items()}
    found: dict[str, set[str]] = {}
    for name in TopologicalSorter(direct).static_order():
        found[name] = direct[name].union(*(found[each] for each in direct[name]))
    return found


def most_at_once(
    usd_per_hour: Mapping[str, float], serves: Mapping[str, Sequence[str]], before: Mapping[str, set[str]]
) -> float:
    """The most that clusters which may be there at the same time cost per hour.

    Two are never there together if every experiment of the one has to wait for every experiment of the other.

    Args:
        usd_per_hour: of each cluster, by its name.
        serves: the experiments that each is for.
        before: see `ancestors`.

    >>> chain = ancestors({"a": [], "b": ["a"], "c": []})
    >>> most_at_once({"x": 3.0, "y": 2.0, "z": 1.0}, {"x": ["a"], "y": ["b"], "z": ["c"]}, chain)
    4.0
    """

    def follows(later: str, earlier: str) -> bool:
        return all(set(serves[earlier]) <= before[name] for name in serves[later])

    def heaviest(left: Sequence[str]) -> float:
        if not left:
            return 0.0
        one, rest = left[0], left[1:]
        beside = [other for other in rest if not follows(one, other) and not follows(other, one)]
        taken = usd_per_hour[one] + heaviest(beside)
        return taken if len(beside) == len(rest) else max(taken, heaviest(rest))

    def apart(names: Sequence[str]) -> Iterator[list[str]]:
        """Groups that do not wait for each other: each is looked at by itself."""
        left = list(names)
        while left:
            group, todo = [], [left.pop()]
            while todo:
                group.append(one := todo.pop())
                near = [other for other in left if follows(one, other) or follows(other, one)]
                left = [other for other in left if other not in near]
                todo += near
            yield sorted(group, key=names.index)

    return sum(heaviest(group) for group in apart(list(usd_per_hour)))


def least_cap(usd_per_hour: float) -> float:
    """The least cap that machines keep, for people: in ten-thousandths of a dollar.

    Args:
        usd_per_hour: that they cost.

    >>> least_cap(3 * 0.2), least_cap(0.12341)
    (0.6, 0.1235)
    """
    return math.ceil(usd_per_hour * 1e4 - 1e-6) / 1e4
