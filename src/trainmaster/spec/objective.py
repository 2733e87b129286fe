"""What a run may spend, and what a better cluster is."""

from __future__ import annotations

from typing import Annotated, Any, Final

from trainmaster.spec.node import Kind, YamlNode
from trainmaster.spec.reading import (
    Key,
    Noun,
    Path,
    Problems,
    choice,
    duration,
    money,
    noun,
    number,
    read_noun,
    takes,
)

#: Policies of published systems that choose clusters instead (`trainmaster.advisor.papers`).
POLICIES: Final = ("cost-opt", "time-opt", "scala-opt", "scala-opt-m", "lookup")
_WORDS: Final = ("cheapest", "fastest", *POLICIES)
_RIGHT: Final = f"write {', '.join(_WORDS)}, {{time: a, cost: b}} or {{policy: P, p: 0.8}}"


class Budget(Noun):
    """Caps of a run; None is no cap.

    Attributes:
        total_usd: a hard cap on the whole run.
        usd_per_hour: a cap on what is rented at the same time.
        deadline_s: seconds from the start of the run.
        saving_usd: what machines may cost that wait for nothing but something to be saved.
        wait_s: how long to wait for machines that a queue, or a cloud without capacity, does not give.
    """

    total_usd: Annotated[float | None, Key("total", money)] = None
    usd_per_hour: Annotated[float | None, Key("per_hour", money)] = None
    deadline_s: Annotated[float | None, Key("deadline", duration())] = None
    saving_usd: Annotated[float | None, Key("saving", money)] = None
    wait_s: Annotated[float | None, Key("wait", duration())] = None


class Objective(Noun):
    """Weights of time and cost when clusters are compared (Anwar's alpha and beta); the default is cheapest.

    Attributes:
        time: weight of the time.
        cost: weight of the cost.
        policy: that chooses instead; empty for our own.
        p: of FC2's Scala-Opt: the share of the servers' bandwidth that workers may use; None is its own.
    """

    time: Annotated[float, Key("time", number(0))] = 0.0
    cost: Annotated[float, Key("cost", number(0))] = 1.0
    policy: Annotated[str, Key("policy", choice(*POLICIES))] = ""
    p: Annotated[float | None, Key("p", number(0))] = None

    @property
    def name(self) -> str:
        """``cheapest``, ``fastest``, ``weighted`` or that of a policy."""
        if self.policy or self.time == 0:
            return self.policy or "cheapest"
        return "fastest" if self.cost == 0 else "weighted"

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """Check keys against each other."""
        given = set(node.entries)
        weighs = given == {"time", "cost"} and not values.get("time") == values.get("cost") == 0
        if not weighs and not ("policy" in given and given <= {"policy", "p"}):
            problems.add(node, path, f"not two weights above 0; {_RIGHT}")
        elif (p := values.get("p")) is not None and not 0 < p <= 1:
            right = "write more than 0 and at most 1, such as 0.8"
            problems.add(node.entries["p"], (*path, "p"), f"{p:g}; {right}")


def read_objective(node: YamlNode, path: Path, problems: Problems) -> Objective:
    """Read ``cheapest``, ``fastest``, a policy, ``{time: a, cost: b}`` or ``{policy: P, p: 0.8}``."""
    if node.kind is Kind.MAPPING:
        return read_noun(Objective, node, path, problems)
    word = choice(*_WORDS)(node, path, problems)
    if word in POLICIES:
        return Objective(policy=word)
    return Objective(time=1.0, cost=0.0) if word == "fastest" else Objective()


takes(read_objective, any=[choice(*_WORDS), noun(Objective)])
