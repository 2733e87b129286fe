"""Small nouns of an experiment: what is saved, what is read from its output, what is measured."""

from __future__ import annotations

import re
from typing import Annotated

from trainmaster.spec.node import Kind, YamlNode
from trainmaster.spec.reading import Key, Noun, Path, Problems, duration, integer, list_of, text


class Checkpoint(Noun):
    """How often checkpoints are published, and how many are kept.

    Attributes:
        every_s: seconds between two.
        keep: the newest ones that stay.
    """

    every_s: Annotated[float, Key("every", duration())] = 60.0
    keep: Annotated[int, Key("keep", integer(1, 1_000_000))] = 2


def _pattern(node: YamlNode, path: Path, problems: Problems) -> str:
    found = text("write a regular expression with named groups")(node, path, problems)
    try:
        compiled = re.compile(found)
    except (re.error, OverflowError, RecursionError) as error:
        raise problems.refuse(node, path, f"no regular expression ({error}); see Python's re") from None
    if not compiled.groupindex:
        raise problems.refuse(node, path, r"no named group; write for instance loss (?P<loss>\S+)")
    return found


class Metrics(Noun):
    """How metrics are read from what a script prints.

    Attributes:
        pattern: regular expression; each named group is a metric.
    """

    pattern: Annotated[str | None, Key("pattern", _pattern)] = None


def _shapes(node: YamlNode, path: Path, problems: Problems) -> tuple[int, ...]:
    if node.kind is Kind.SCALAR and node.value == "auto":
        return ()
    right = "write auto or a list of numbers of workers"
    return list_of(integer(1, 65536), right)(node, path, problems)


class ProfilePlan(Noun):
    """How the job is measured before it is quoted (``profile`` in the recipe).

    Attributes:
        duration_s: seconds per shape (``seconds`` in the recipe).
        shapes: numbers of workers to measure; empty leaves the choice to the advisor.
    """

    duration_s: Annotated[float, Key("seconds", duration())] = 60.0
    shapes: Annotated[tuple[int, ...], Key("shapes", _shapes)] = ()
