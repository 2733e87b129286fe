"""A search for the best parameters."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field

from trainmaster.spec.node import YamlNode
from trainmaster.spec.reading import (
    Key,
    Noun,
    Path,
    Problems,
    choice,
    integer,
    mapping_of,
    pattern,
    text,
    verbatim,
)
from trainmaster.spec.sections import SEARCH_REFERENCE, RunReference

#: Samplers of our own, that know every task's parameters beforehand.
FIXED_SAMPLERS: Final = ("grid", "random")
_MEAN_OF: Final = "mean of last "
_FROM_RIGHT: Final = "write a run, such as digits-7f3a09c2d1, or RUN/EXPERIMENT"
_PLUGIN: Final = r"[a-z][a-z0-9_-]*"


class Search(Noun):
    """Which metric to make best, and how to look for it.

    Attributes:
        metric: name of a reported metric.
        goal: ``max`` or ``min``.
        best: which of the values that a task reports counts: the ``last`` one, the best one (``min`` or
            ``max``, as ``goal`` is), or the ``mean of last 5``.
        sampler: what chooses parameters; ``grid`` and ``random`` are what tasks have without a search.
        pruner: what ends hopeless tasks early; None: nothing.
        population: members of a generation, for samplers that have generations.
        generations: how often the population of ``pbt`` trains.
        options: options of sampler and pruner, as written.
        goes_on: with what tasks of an earlier run have shown: ``RUN/EXPERIMENT`` (``from`` in the recipe).
    """

    metric: Annotated[
        str, Key("metric", text("write a metric's name"), required="name the metric to look at")
    ]
    goal: Annotated[str, Key("goal", choice("max", "min"), required="write goal: max or goal: min")]
    best: Annotated[
        str,
        Key(
            "best",
            pattern(
                rf"last|min|max|{_MEAN_OF}[1-9]\d{{0,3}}",
                "write last, the goal (min or max) for the best value of a task, or mean of last 5",
            ),
        ),
    ] = "last"
    sampler: Annotated[str, Key("sampler", pattern(_PLUGIN, "write a sampler's name such as tpe"))] = "random"
    pruner: Annotated[str | None, Key("pruner", pattern(_PLUGIN, "write a pruner's name such as asha"))] = (
        None
    )
    population: Annotated[int | None, Key("population", integer(1, 1_000_000))] = None
    generations: Annotated[int | None, Key("generations", integer(1, 1_000_000))] = None
    options: Annotated[
        dict[str, str],
        Key(
            "options",
            mapping_of(
                verbatim,
                "write a mapping",
                name=r"[A-Za-z_]\w*",
                what="write a name of letters, digits and _",
            ),
        ),
    ] = Field(default={})
    goes_on: Annotated[str | None, Key("from", pattern(SEARCH_REFERENCE, _FROM_RIGHT))] = None

    @property
    def earlier(self) -> RunReference | None:
        """What that is; its number says how many tasks, once it is settled."""
        return None if self.goes_on is None else RunReference.parse(self.goes_on)

    @property
    def earlier_count(self) -> int:
        """How many tasks were tried before its own."""
        return 0 if self.earlier is None else self.earlier.number or 0

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """The best value of a task is what the goal says."""
        best, goal = values.get("best"), values.get("goal")
        if goal is not None and best in ("min", "max") and best != goal:
            message = f"best: {best}, but goal: {goal}; write best: {goal} for the best value of a task"
            problems.add(node.entries["best"], (*path, "best"), message)

    @property
    def chooses_later(self) -> bool:
        """True if the sampler chooses parameters when it has seen results."""
        return self.sampler not in FIXED_SAMPLERS

    @property
    def all_options(self) -> dict[str, str]:
        """``options`` and what has a key of its own."""
        own = {"population": self.population, "generations": self.generations}
        return self.options | {name: str(value) for name, value in own.items() if value is not None}


class TaskValue:
    """The one value of a task in a search, of all that it reports of the metric.

    >>> value = TaskValue(Search(metric="loss", goal="min", best="mean of last 2"))
    >>> for loss in (9.0, 3.0, 1.0):
    ...     value.add({"loss": loss})
    >>> value.metrics
    {'loss': 2.0}

    Args:
        search: says which one.
    """

    def __init__(self, search: Search) -> None:
        self._metric = search.metric
        is_mean = search.best.startswith(_MEAN_OF)
        self._choose = {"min": min, "max": max}.get(search.best)
        self._kept: deque[float] = deque(maxlen=int(search.best.removeprefix(_MEAN_OF)) if is_mean else 1)

    def add(self, row: Mapping[str, object]) -> None:
        """One more report, in order; a value that is not finite is never the best."""
        value = row.get(self._metric)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        before = self._kept[-1] if self._kept else math.nan
        if self._choose is not None and math.isfinite(before):
            value = self._choose(before, value) if math.isfinite(value) else before
        self._kept.append(value)

    @property
    def metrics(self) -> dict[str, float]:
        """The metric with it; empty before the first one."""
        return {self._metric: sum(self._kept) / len(self._kept)} if self._kept else {}
