"""`Requirement`: what the best model of an experiment must reach for others to go on from it."""

from __future__ import annotations

from typing import Annotated, Any

from trainmaster.spec.model_reference import PROMOTION, PROMOTION_RIGHT
from trainmaster.spec.node import YamlNode
from trainmaster.spec.reading import Key, Noun, Path, Problems, choice, number, pattern, text
from trainmaster.spec.values import format_value


class Requirement(Noun):
    """Bounds of a metric; an experiment with it is a gate.

    Attributes:
        metric: name of a reported metric.
        at_least: the smallest value that is good enough.
        at_most: the largest value that is good enough.
        better_than: the registered model that it must surpass, such as ``digits@production``.
        goal: ``max`` or ``min``; None only until the experiment has been read.
        line: of the recipe, where it stands; 0 if it stands in no file.
    """

    metric: Annotated[
        str, Key("metric", text("write a metric's name"), required="name the metric to look at")
    ]
    at_least: Annotated[float | None, Key("at_least", number())] = None
    at_most: Annotated[float | None, Key("at_most", number())] = None
    better_than: Annotated[str | None, Key("better_than", pattern(PROMOTION, PROMOTION_RIGHT))] = None
    goal: Annotated[str | None, Key("goal", choice("max", "min"))] = None
    line: int = 0

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """Check keys against each other."""
        if not {"at_least", "at_most", "better_than"} & set(node.entries):
            problems.add(node, path, "no bound of the metric; add at_least, at_most or better_than")
        least, most = values.get("at_least"), values.get("at_most")
        if least is not None and most is not None and least > most:
            found = f"at_least {format_value(least)} is more than at_most {format_value(most)}"
            problems.add(node.entries["at_least"], (*path, "at_least"), f"{found}; no value is both")

    @property
    def smallest(self) -> bool:
        """Whether the smallest value is the best."""
        return self.goal == "min"
