"""`Until`: what ends a training early, a bound of one metric; `MetricTarget`: one whose time is foretold."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from trainmaster.dataclass import dataclass, field
from trainmaster.spec.node import Kind, YamlNode, place
from trainmaster.spec.parameter import format_value
from trainmaster.spec.reading import Key, Noun, Path, Problems, ReportedMistake, number, takes, text

_RIGHT: Final = "write METRIC OP NUMBER, such as accuracy >= 0.97"
_HOLDS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_PARTS = re.compile(r"\s*(?P<metric>[^\s<>=!]*)\s*(?P<op>[<>=!]*)\s*(?P<value>.*?)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Until:
    """Ends a training as soon as its first member reports a value for which it holds.

    Attributes:
        metric: name of a reported metric.
        op: ``>=``, ``<=``, ``>`` or ``<``.
        value: the bound.
        key: of the recipe that says so.
    """

    metric: str
    op: str
    value: float
    key: str = field(default="until", compare=False)

    @property
    def more_is_better(self) -> bool:
        """Whether values that rise come to it.

        >>> [Until.of(f"a {op} 1").more_is_better for op in (">", ">=", "<", "<=")]
        [True, True, False, False]
        """
        return self.op in (">", ">=")

    @classmethod
    def of(cls, words: str) -> Until:
        """Read what a recipe has.

        Raises:
            ValueError: what is wrong and what would be right, and at which character of it.

        >>> str(Until.of("accuracy>=.97"))
        'accuracy >= 0.97'
        """
        found = _PARTS.fullmatch(words)
        assert found is not None  # every part may be empty
        metric, op, value = found["metric"], found["op"], found["value"]
        if not metric:
            raise ValueError(f"no metric before '{words.strip()[:40]}'; {_RIGHT}", 0)
        if op not in _HOLDS:
            what = f"'{op}' is no comparison" if op else f"no comparison after '{metric}'"
            raise ValueError(f"{what}; {_RIGHT} (>=, <=, > or <)", found.start("op"))
        try:
            bound = float(value)
        except ValueError:
            bound = float("nan")
        if not abs(bound) < 1e300:  # what is no number is not below it, either
            what = f"'{value[:40]}' is no number" if value else f"no number after '{op}'"
            raise ValueError(f"{what}; {_RIGHT}", found.start("value"))
        return cls(metric, op, bound)

    def holds(self, metrics: Mapping[str, object]) -> bool:
        """Whether what was reported at once ends the training; what is no number never does.

        >>> until = Until("loss", "<", 0.5)
        >>> until.holds({"loss": 0.4}), until.holds({"loss": 0.5}), until.holds({"step": 7})
        (True, False, False)
        """
        found = metrics.get(self.metric)
        return isinstance(found, int | float) and _HOLDS[self.op](found, self.value)

    def reached(self, metrics: Mapping[str, object]) -> str:
        """What ended a training, for people: the value, and where it stood."""
        found, step = metrics.get(self.metric), metrics.get("step")
        shown = float(f"{found:.6g}") if isinstance(found, float) else found
        value = format_value(shown) if isinstance(shown, int | float) else ""
        at = f" at step {format_value(step)}" if isinstance(step, int | float) else ""
        return f"{self.key} {self}: {self.metric} is {value}{at}" if value else f"{self.key} {self}: it held"

    def missed(self, metrics: Mapping[str, object]) -> str:
        """Why a training was not ended early, by the last values that it reported; empty if they end it.

        >>> print(Until("acc", ">=", 0.9).missed({"accuracy": 0.99, "step": 7}))
        until acc >= 0.9 was never looked at: acc is not reported; reported are accuracy, step
        """
        if self.holds(metrics):
            return ""
        if self.metric in metrics:
            last = metrics[self.metric]
            shown = format_value(last) if isinstance(last, int | float) else "no number"
            return f"{self.key} {self} was not reached: the last {self.metric} is {shown}"
        names = ", ".join(sorted(metrics)[:10])
        found = f"reported are {names}" if names else "nothing is reported"
        return f"{self.key} {self} was never looked at: {self.metric} is not reported; {found}"

    def __str__(self) -> str:
        """As a recipe has it."""
        return f"{self.metric} {self.op} {format_value(self.value)}"


class MetricTarget(Noun):
    """A bound of a metric that ends the training, and whose time is foretold from its curve.

    Attributes:
        metric: name of a reported metric.
        at_least: the value to reach from below.
        at_most: the value to reach from above; exactly one is given.
    """

    metric: Annotated[
        str,
        Key("metric", text("write a metric's name"), required="name the metric, such as metric: accuracy"),
    ]
    at_least: Annotated[float | None, Key("at_least", number())] = None
    at_most: Annotated[float | None, Key("at_most", number())] = None
    one_of = ("at_least", "at_most")

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """Check keys against each other."""
        given = [name for name in cls.one_of if name in node.entries]
        if len(given) != 1:
            found = "both of at_least and at_most" if given else "no value to reach"
            right = "write at_least: N (more is better) or at_most: N (less is better)"
            problems.add(node, path, f"{found}; {right}")

    @property
    def until(self) -> Until:
        """What ends the training."""
        if self.at_least is not None:
            return Until(self.metric, ">=", self.at_least, "target")
        assert self.at_most is not None
        return Until(self.metric, "<=", self.at_most, "target")


def stored_end(experiment: Mapping[str, Any]) -> Until | None:
    """What ends the training of an experiment that was stored as JSON; None if nothing does.

    >>> print(stored_end({"target": {"metric": "loss", "at_most": 0.1}}), stored_end({"until": "acc > 1"}))
    loss <= 0.1 acc > 1.0
    """
    if target := experiment.get("target"):
        return MetricTarget.model_validate(target).until
    return Until.of(experiment["until"]) if experiment.get("until") else None


def read_until(node: YamlNode, path: Path, problems: Problems) -> str:
    """Read a bound of a metric; a mistake is told with its column within the text."""
    found = text(_RIGHT)(node, path, problems)
    try:
        return str(Until.of(found))
    except ValueError as error:
        message, at = error.args
        where = None
        if node.kind is Kind.SCALAR and found in node.source:
            row, column = place(node.source, node.source.index(found) + at)
            where = (node.line + row - 1, column + (node.column - 1 if row == 1 else 0))
        problems.add(node, path, message, place=where)
        raise ReportedMistake from None


takes(read_until, text=r"^\s*[^\s<>=!]+\s*[<>]=?\s*\S+\s*$")
