"""A search for the best parameters."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from trainmaster.spec.reading import Key, Noun, choice, integer, mapping_of, pattern, text, verbatim

#: Samplers of our own, that know every task's parameters beforehand.
FIXED_SAMPLERS: Final = ("grid", "random")
_PLUGIN: Final = r"[a-z][a-z0-9_-]*"


class Search(Noun):
    """Which metric to make best, and how to look for it.

    Attributes:
        metric: name of a reported metric.
        goal: ``max`` or ``min``.
        sampler: what chooses parameters; ``grid`` and ``random`` are what tasks have without a search.
        pruner: what ends hopeless tasks early; None: nothing.
        population: members of a generation, for samplers that have generations.
        generations: how often the population of ``pbt`` trains.
        options: options of sampler and pruner, as written.
    """

    metric: Annotated[
        str, Key("metric", text("write a metric's name"), required="name the metric to look at")
    ]
    goal: Annotated[str, Key("goal", choice("max", "min"), required="write goal: max or goal: min")]
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

    @property
    def chooses_later(self) -> bool:
        """True if the sampler chooses parameters when it has seen results."""
        return self.sampler not in FIXED_SAMPLERS

    @property
    def all_options(self) -> dict[str, str]:
        """``options`` and what has a key of its own."""
        own = {"population": self.population, "generations": self.generations}
        return self.options | {name: str(value) for name, value in own.items() if value is not None}
