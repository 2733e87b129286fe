"""The smaller sections of a recipe: `code`, `checkpoint`, `metrics`, `profile`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.data_source import EXPERIMENT_NAME
from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.spec.node import Kind, YamlNode
from trainmaster.spec.reading import (
    Key,
    Noun,
    Path,
    Problems,
    duration,
    integer,
    list_of,
    pattern,
    takes,
    text,
)

_TASK: Final = r"(?:/(\d{1,9}))?"
_EXPERIMENT: Final = rf"({EXPERIMENT_NAME})(?:/({EXPERIMENT_NAME}){_TASK})?"
_REFERENCE: Final = rf"{_EXPERIMENT}(?:@([1-9]\d{{0,8}}))?"
#: Of an experiment, without a task.
SEARCH_REFERENCE: Final = rf"{EXPERIMENT_NAME}(/{EXPERIMENT_NAME})?(@[1-9]\d{{0,8}})?"
_REFERENCE_RIGHT: Final = "write a run, such as digits-7f3a09c2d1, RUN/EXPERIMENT, RUN/EXPERIMENT/TASK"


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
        if "include" in node.entries and not is_directory(source):
            message = "`include` is for a directory; wheels and repositories are sent whole: leave it out"
            problems.add(node.keys["include"], (*path, "include"), message)


def is_directory(code: str) -> bool:
    """Whether what `Code` has for its source is neither a wheel nor a repository."""
    return not (code.endswith(".whl") or "://" in code or "@" in code)


@dataclass(frozen=True, slots=True)
class RunReference:
    """What of an earlier run is meant: ``RUN[/EXPERIMENT[/TASK]][@NUMBER]``.

    Attributes:
        run: its id.
        experiment, task: None: those that `settled` or `one_of` finds.
        number: of a checkpoint (None: the newest), or how many of the tasks (None: all).
    """

    run: str
    experiment: str | None = None
    task: int | None = None
    number: int | None = None

    @classmethod
    def parse(cls, text: str) -> RunReference:
        """Read one.

        >>> str(RunReference.parse("digits-7f3a/train/0@2"))
        'digits-7f3a/train/0@2'
        """
        found = re.fullmatch(_REFERENCE, text)
        assert found is not None, f"{text}: the recipe was read"
        run, experiment, task, number = found.groups()
        return cls(
            run, experiment, None if task is None else int(task), None if number is None else int(number)
        )

    def __str__(self) -> str:
        place = "/".join(str(each) for each in (self.run, self.experiment, self.task) if each is not None)
        return place if self.number is None else f"{place}@{self.number}"

    @property
    def place(self) -> tuple[str, str, int]:
        """Run, experiment and task of one that is settled."""
        assert self.experiment is not None, f"{self}: it was planned by `with_versions`"
        assert self.task is not None, f"{self}: it was planned by `with_versions`"
        return self.run, self.experiment, self.task

    def settled(self, namesake: str, found: Mapping[str, Collection[int]]) -> RunReference:
        """The task that is meant: of the experiment of the same name, or of the only one with checkpoints.

        Args:
            namesake: the experiment that is to begin with it.
            found: the run's experiments, and of each the tasks that have left checkpoints.

        Raises:
            NotFoundError: there is none.
            UsageError: there are several.
        """
        having = [name for name, tasks in found.items() if tasks]
        if not having:
            raise NotFoundError(f"{self.run} left no checkpoint", _LEFT_NONE)
        name = self.one_of(namesake, having, list(found), "left checkpoints")
        tasks = sorted(found[name])
        if self.task is None and len(tasks) > 1:
            shown = ", ".join(map(str, tasks[:_SHOWN])) + ", ..." * (len(tasks) > _SHOWN)
            raise UsageError(
                f"several tasks of {self.run}/{name} left checkpoints: {shown}",
                f"Name one, such as {self.run}/{name}/{tasks[0]}.",
            )
        if not tasks or (self.task is not None and self.task not in tasks):
            what = f"{self.run}/{name}" if self.task is None else f"{self.run}/{name}/{self.task}"
            raise NotFoundError(f"{what} left no checkpoint", _LEFT_NONE)
        return RunReference(self.run, name, tasks[0] if self.task is None else self.task, self.number)

    def one_of(self, namesake: str, having: Sequence[str], names: Sequence[str], what: str) -> str:
        """The experiment that is meant: the one that is named, that of the same name, or the only one.

        Args:
            namesake: the experiment that asks.
            having: those that have what is wanted.
            names: all of the run.
            what: they have, in words, such as ``left checkpoints``.

        Raises:
            NotFoundError: there is none.
            UsageError: there are several.
        """
        if self.experiment is not None:
            if self.experiment not in names:
                raise NotFoundError(
                    f"{self.run} has no experiment {self.experiment}", f"It has {', '.join(names)}."
                )
            return self.experiment
        if namesake in having or len(having) == 1:
            return namesake if namesake in having else having[0]
        if not having:
            raise NotFoundError(f"none of the experiments of {self.run} {what}", "Name another run.")
        raise UsageError(
            f"several experiments of {self.run} {what}: {', '.join(having)}",
            f"Name one, such as {self.run}/{having[0]}.",
        )


#: What helps where there is no checkpoint.
_LEFT_NONE: Final = "A script saves them in TRAINMASTER_CHECKPOINT_DIR. A model is named under `data`."
#: So many tasks are named.
_SHOWN: Final = 5


class Checkpoint(Noun):
    """How often checkpoints are published, how many are kept, and with which one the training begins.

    Attributes:
        every_s: seconds between two.
        keep: the newest ones that stay.
        keep_after: those that stay of a task that has succeeded, once its model is kept.
        begins_with: another run's with which a task begins that has none of its own: ``RUN/EXPERIMENT/TASK``.
    """

    every_s: Annotated[float, Key("every", duration())] = 60.0
    keep: Annotated[int, Key("keep", integer(1, 1_000_000))] = 2
    keep_after: Annotated[int, Key("keep_after", integer(0, 1_000_000))] = 1
    begins_with: Annotated[str | None, Key("from", pattern(_REFERENCE, _REFERENCE_RIGHT))] = None

    @property
    def beginning(self) -> RunReference | None:
        """Which that is."""
        return None if self.begins_with is None else RunReference.parse(self.begins_with)


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
