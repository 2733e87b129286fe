"""What a gate decides: whether a model is good enough for others to go on from it. Pure.

`Requirement`: what the best model of an experiment must reach for others to go on from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from trainmaster.dataclass import dataclass, field
from trainmaster.spec.model_reference import PROMOTION, PROMOTION_RIGHT
from trainmaster.spec.node import YamlNode
from trainmaster.spec.parameter import format_value
from trainmaster.spec.reading import Key, Noun, Path, Problems, choice, number, pattern, text


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


#: So many names of metrics are told to who has asked for another.
_MOST_NAMES: Final = 10


@dataclass(frozen=True, slots=True)
class Gate:
    """What the best model of an experiment must reach, or others do not go on from it.

    Attributes:
        requirement: of the recipe.
        metric: by which a model is the best.
        smallest: the smallest value is the best.
    """

    requirement: Requirement
    metric: str
    smallest: bool = False


@dataclass(frozen=True, slots=True)
class Baseline:
    """The registered model, named by its alias, that a gate compares with.

    Attributes:
        version: its number; None if there is no such alias yet.
        metrics: that its task reported last.
        is_same: it is the very model that the gate judges.
    """

    version: int | None = None
    metrics: Mapping[str, object] = field(default_factory=dict)
    is_same: bool = False


@dataclass(frozen=True, slots=True)
class GateResult:
    """What a gate has decided.

    Attributes:
        holds: all that is required is so.
        message: with the numbers, one line.
    """

    holds: bool
    message: str


def judge(requirement: Requirement, metrics: Mapping[str, object], baseline: Baseline) -> GateResult:
    """Whether a model is good enough.

    Args:
        requirement: of the recipe.
        metrics: that the model's task reported last; empty if there is nothing to judge.
        baseline: what ``better_than`` means now.
    """
    place = f"(require, line {requirement.line})" if requirement.line else "(require)"
    name = requirement.metric
    value = as_number(metrics.get(name))
    if value is None:
        seen = ", ".join(sorted(metrics)[:_MOST_NAMES]) or "none at all"
        what = "is no finite number" if name in metrics else "was not reported"
        return GateResult(False, f"{name} {what}; metrics seen: {seen} {place}")
    theirs = as_number(baseline.metrics.get(name))
    found = list(_compare(requirement, value, baseline, theirs))
    failed = [words for holds, words in found if not holds]
    words = "; ".join(failed or [words for _, words in found])
    return GateResult(
        not failed,
        f"{name} {_told(value, theirs, requirement.at_least, requirement.at_most)} {words} {place}",
    )


def _told(value: float, *beside: float | None) -> str:
    """Six digits of a number, or all where six would look like another one beside it."""
    short = f"{value:.6g}"
    alike = any(f"{each:.6g}" == short for each in beside if each is not None and each != value)
    return format_value(value) if alike else short


def _compare(
    requirement: Requirement, value: float, baseline: Baseline, theirs: float | None
) -> Iterator[tuple[bool, str]]:
    least, most, than = requirement.at_least, requirement.at_most, requirement.better_than
    if least is not None:
        holds = value >= least
        yield holds, f"is {'at least' if holds else 'below'} {format_value(least)}"
    if most is not None:
        holds = value <= most
        yield holds, f"is {'at most' if holds else 'above'} {format_value(most)}"
    if than is None:
        return
    version = f"{than} (version {baseline.version})"
    if baseline.version is None:
        yield True, f"has nothing to be better than: there is no {than} yet"
    elif baseline.is_same:
        yield True, f"is that of {version} itself"
    elif theirs is None:
        yield False, f"cannot be compared: {requirement.metric} of {version} is not known"
    else:
        holds = value < theirs if requirement.smallest else value > theirs
        yield holds, f"is {'better' if holds else 'not better'} than {_told(theirs, value)} of {version}"


def as_number(value: object) -> float | None:
    """A metric's value, if it is a finite number.

    >>> [as_number(value) for value in (1, 0.5, float("nan"), None, "high", True)]
    [1.0, 0.5, None, None, None, None]
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
