"""What a better cluster is."""

from __future__ import annotations

from typing import Annotated, Any

from trainmaster.spec.node import Kind, YamlNode
from trainmaster.spec.reading import Key, Noun, Path, Problems, choice, number, read_noun


class Objective(Noun):
    """Weights of time and cost when clusters are compared (Anwar's alpha and beta); the default is cheapest.

    Attributes:
        time: weight of the time.
        cost: weight of the cost.
    """

    time: Annotated[float, Key("time", number(0))] = 0.0
    cost: Annotated[float, Key("cost", number(0))] = 1.0

    @property
    def name(self) -> str:
        """``cheapest``, ``fastest`` or ``weighted``."""
        if self.time == 0:
            return "cheapest"
        return "fastest" if self.cost == 0 else "weighted"

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """Check keys against each other."""
        if set(node.entries) != {"time", "cost"} or values.get("time") == values.get("cost") == 0:
            problems.add(node, path, "not two weights above 0; write cheapest, fastest or {time: a, cost: b}")


def read_objective(node: YamlNode, path: Path, problems: Problems) -> Objective:
    """Read ``cheapest``, ``fastest`` or ``{time: a, cost: b}``."""
    if node.kind is Kind.MAPPING:
        return read_noun(Objective, node, path, problems)
    word = choice("cheapest", "fastest")(node, path, problems)
    return Objective(time=1.0, cost=0.0) if word == "fastest" else Objective()
