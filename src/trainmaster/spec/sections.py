"""The smaller sections of a recipe: `code`, `checkpoint`, `metrics`, `profile`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any, Final

from trainmaster.spec.node import Kind, YamlNode
from trainmaster.spec.reading import Key, Noun, Path, Problems, duration, integer, list_of, takes, text


class Code(Noun):
    """What the code of a run is (``code`` in the recipe, where a text stands for ``dir``).

    Attributes:
        source: directory, wheel or git URL@ref.
        include: patterns of what is sent although .gitignore leaves it out.
    """

    source: Annotated[str, Key("dir", text("write a directory, a wheel or a git URL@ref"))] = "."
    include: Annotated[
        tuple[str, ...],
        Key(
            "include",
            list_of(
                text("write a pattern as in .gitignore, such as data/*.txt"),
                "write a list of patterns as in .gitignore",
                single=True,
            ),
        ),
    ] = ()
    also = (text(),)

    @classmethod
    def prepare(cls, node: YamlNode, path: Path, problems: Problems) -> YamlNode:
        """Take a text as the directory."""
        if node.kind is Kind.MAPPING:
            return node
        directory = replace(node, stands_at=node.stands_at or path)
        return replace(node, kind=Kind.MAPPING, entries={"dir": directory}, keys={"dir": directory}, items=[])

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """Refuse patterns for what has no .gitignore."""
        source = values.get("source", ".")
        if "include" in node.entries and (source.endswith(".whl") or "://" in source or "@" in source):
            message = "`include` is for a directory; wheels and repositories are sent whole: leave it out"
            problems.add(node.keys["include"], (*path, "include"), message)


class Checkpoint(Noun):
    """How often checkpoints are published, and how many are kept.

    Attributes:
        every_s: seconds between two.
        keep: the newest ones that stay.
        keep_after: those that stay of a task that has succeeded, once its model is kept.
    """

    every_s: Annotated[float, Key("every", duration())] = 60.0
    keep: Annotated[int, Key("keep", integer(1, 1_000_000))] = 2
    keep_after: Annotated[int, Key("keep_after", integer(0, 1_000_000))] = 1


def _pattern(node: YamlNode, path: Path, problems: Problems) -> str:
    found = text("write a regular expression with named groups")(node, path, problems)
    try:
        compiled = re.compile(found)
    except (re.error, OverflowError, RecursionError) as error:
        raise problems.refuse(node, path, f"no regular expression ({error}); see Python's re") from None
    if not compiled.groupindex:
        raise problems.refuse(node, path, r"no named group; write for instance loss (?P<loss>\S+)")
    return found


takes(_pattern, text=r"\(\?P<\w+>")


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


_SHAPES: Final = list_of(integer(1, 65536), "")
takes(_shapes, any=[{"const": "auto"}, _SHAPES])


class ProfilePlan(Noun):
    """How the job is measured before it is quoted (``profile`` in the recipe).

    Attributes:
        duration_s: seconds per shape (``seconds`` in the recipe).
        shapes: numbers of workers to measure; empty leaves the choice to the advisor.
    """

    duration_s: Annotated[float, Key("seconds", duration())] = 60.0
    shapes: Annotated[tuple[int, ...], Key("shapes", _shapes)] = ()
