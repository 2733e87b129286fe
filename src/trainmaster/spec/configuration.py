"""`Configuration`: what recipes leave open, from ``config.toml`` and ``pyproject.toml``."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path as FilePath
from typing import Annotated, Any, Final

from pydantic import Field

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import Mistake, RecipeError, UsageError
from trainmaster.spec.labels import read_labels
from trainmaster.spec.node import Kind, YamlNode, below, compose
from trainmaster.spec.objective import Budget, Objective, read_objective
from trainmaster.spec.places import PROVIDER_NAME
from trainmaster.spec.reading import Key, Noun, Problems, ReportedMistake, noun, pattern, read_noun, text
from trainmaster.spec.redaction import redacted
from trainmaster.spec.topics import Subscription, read_notify

TABLE: Final = ("tool", "trainmaster")
BUILT_IN: Final = {"provider": "local", "objective": "cheapest"}
_KEYS: Final = (
    "provider", "region", "objective", "budget.total", "budget.per_hour", "budget.deadline", "budget.saving",
    "notify",
)  # fmt: skip
#: Keys of which each part is a value of its own.
_IN_PARTS: Final = ("budget", "labels")
_HEADER: Final = re.compile(r"\s*\[{1,2}\s*([^\[\]#]+?)\s*\]{1,2}\s*(?:#.*)?")
_ASSIGNED: Final = re.compile(
    r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*="
)


class Configuration(Noun):
    """What may be configured; what a recipe, or the command line, says comes first.

    Attributes:
        provider: that rents the machines.
        region: of that provider, where an experiment names none.
        objective: what a better cluster is.
        budget: caps of a run, each by itself.
        labels: what runs are found by, each by itself.
        notify: who is told what happens to a run.
    """

    provider: Annotated[
        str | None, Key("provider", pattern(PROVIDER_NAME, "write a provider's name such as local"))
    ] = None
    region: Annotated[str | None, Key("region", text("write a region's name"))] = None
    objective: Annotated[Objective | None, Key("objective", read_objective)] = None
    budget: Annotated[Budget | None, Key("budget", noun(Budget))] = None
    labels: Annotated[dict[str, str], Key("labels", read_labels)] = Field(default={})
    notify: Annotated[tuple[Subscription, ...], Key("notify", read_notify)] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """A value of a configuration.

    Attributes:
        key: such as ``budget.total``.
        value: as its file has it.
        file: that says so.
        line: 1-based.
        provider: that the same file names; None if it names none.
    """

    key: str
    value: Any
    file: str
    line: int
    provider: str | None = None

    @property
    def place(self) -> str:
        """``FILE:LINE``."""
        return f"{self.file}:{self.line}"


def settings_of(files: Sequence[FilePath]) -> list[Setting]:
    """What is configured; of a key that several files have, the first one's value.

    Raises:
        RecipeError: with all mistakes of a file.
    """
    found: dict[str, Setting] = {}
    for file in files:
        for each in read_settings(file):
            found.setdefault(each.key, each)
    return list(found.values())


def defaults_for(
    root: YamlNode, provider: str | None, settings: Sequence[Setting]
) -> Iterator[tuple[str, str]]:
    """What a recipe leaves open: texts ``path=value`` as for ``--set``, each with the place that says so.

    Args:
        root: of the recipe, with what it includes.
        provider: that the command line or the recipe names; None if neither does.
        settings: that are configured.
    """
    if root.kind is not Kind.MAPPING:
        return
    configured = next((each.value for each in settings if each.key == "provider"), None)
    provider = provider or configured or BUILT_IN["provider"]
    experiments = root.entries.get("experiments")
    for each in settings:
        value = json.dumps(each.value, ensure_ascii=False)
        if each.key == "region":
            if (
                each.provider not in (None, provider)
                or provider == BUILT_IN["provider"]
                or experiments is None
            ):
                continue  # a region is one of its provider
            for name, experiment in experiments.entries.items():
                if experiment.kind is Kind.MAPPING and _is_open(experiment, ("hardware", "region")):
                    yield f"experiments.{name}.hardware.region={value}", each.place
        elif _is_open(root, tuple(each.key.split("."))):
            yield f"{each.key}={value}", each.place


def _is_open(root: YamlNode, path: tuple[str, ...]) -> bool:
    """Whether nothing stands at a key, and something may."""
    for known in range(1, len(path)):
        above = below(root, path[:known])
        if above is not None and above.kind is not Kind.MAPPING:
            return False
    return below(root, path) is None


def read_settings(file: FilePath, source: str | None = None) -> Iterator[Setting]:
    """What a file says.

    Args:
        file: of configuration.
        source: its text; None reads it.

    Raises:
        RecipeError: with all mistakes.
        UsageError: it cannot be read.
    """
    shown = os.fspath(file)
    try:
        source = file.read_text(encoding="utf-8-sig") if source is None else source
        content = tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line, column = (int(place[1]), int(place[2])) if place else (1, 1)
        why = str(error).partition(" (at ")[0]
        raise RecipeError(
            shown, [Mistake(line, column, "", f"not TOML: {why}; see https://toml.io")]
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"{shown}: cannot be read ({why})", "Mend it, or take it away.") from None
    prefix = TABLE if file.name == "pyproject.toml" else ()
    for key in prefix:
        content = content.get(key, {})
    lines, problems = _lines(source), Problems()
    root = _node(content, prefix, lines)
    try:
        read = read_noun(Configuration, root, prefix, problems)
    except ReportedMistake:
        raise RecipeError(shown, problems.in_order()) from None
    for key, value in content.items():
        if key.startswith("x-"):
            continue
        parts = value if key in _IN_PARTS else {}
        for part, each in parts.items():
            yield Setting(f"{key}.{part}", each, shown, _line((*prefix, key, part), lines), read.provider)
        if not parts:
            yield Setting(key, value, shown, _line((*prefix, key), lines), read.provider)


def _node(value: object, path: tuple[str, ...], lines: Mapping[tuple[str, ...], int]) -> YamlNode:
    """A value of TOML as the same value of a recipe."""
    line = _line(path, lines)
    if isinstance(value, dict):
        node = YamlNode(Kind.MAPPING, line, 1)
        for key, each in value.items():
            node.entries[key] = _node(each, (*path, key), lines)
            node.keys[key] = YamlNode(Kind.SCALAR, _line((*path, key), lines), 1, text=key)
        return node
    if isinstance(value, list):
        items = [_node(each, (*path, str(number)), lines) for number, each in enumerate(value)]
        return YamlNode(Kind.LIST, line, 1, items=items)
    plain = not isinstance(value, str)
    return YamlNode(
        Kind.SCALAR, line, 1, text=json.dumps(value, default=str) if plain else str(value), plain=plain
    )


def _lines(source: str) -> dict[tuple[str, ...], int]:
    """Where each key stands: lines of tables and of keys before ``=``."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(source.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            table = _parts(header[1])
            found.setdefault(table, number)
        elif assigned := _ASSIGNED.match(line):
            found.setdefault((*table, *_parts(assigned[1])), number)
    return found


def _parts(key: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in key.split("."))


def _line(path: tuple[str, ...], lines: Mapping[tuple[str, ...], int]) -> int:
    """Of the longest known beginning of a path."""
    return next((lines[path[:known]] for known in range(len(path), -1, -1) if path[:known] in lines), 1)


def with_setting(source: str, key: str, value: str) -> str:
    """The text of a ``config.toml`` in which a key has a value; all else stays as it was written.

    Args:
        source: the text.
        key: such as ``provider`` or ``budget.total``.
        value: as it would be typed; a text needs no quotes, and lists and mappings may be as in a recipe.

    Raises:
        UsageError: it is written there in a way that cannot be changed line by line.
    """
    try:
        tomllib.loads(f"x = {value}")
        written = value
    except tomllib.TOMLDecodeError:
        written = _as_toml(_read(value))
    lines, path = source.splitlines(), _parts(key)
    known = _lines(source)
    line = f"{key} = {written}"
    if path in known:
        number = known[path]
        before, separator, after = lines[number - 1].partition("=")
        try:
            tomllib.loads(f"x ={after}")
        except tomllib.TOMLDecodeError:
            separator = ""
        if not separator:
            raise UsageError(f"{key} stands on several lines, from line {number}", "Change it there.")
        lines[number - 1] = f"{before}= {written}"
    elif any(len(each) < len(path) and path[: len(each)] == each for each in known):
        above = next(each for each in known if path[: len(each)] == each)
        table = lines[known[above] - 1].lstrip().startswith("[")
        if not table:
            raise UsageError(f"{'.'.join(above)} has its value on line {known[above]}", "Change it there.")
        lines.insert(known[above], f"{'.'.join(path[len(above) :])} = {written}")
    else:
        first = next((at for at, each in enumerate(lines) if each.lstrip().startswith("[")), len(lines))
        lines.insert(first, line)
    return "\n".join(lines) + "\n"


def _read(value: str) -> object:
    """A list or a mapping that is written as in a recipe; else the text itself."""
    if value[:1] in ("[", "{"):
        with suppress(RecipeError):
            return compose(f"value: {value}", "value").entries["value"].data
    return value


def _as_toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_as_toml, value))}]"
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {_as_toml(each)}" for key, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    return json.dumps(value, ensure_ascii=False)


def configured_rows(files: Sequence[FilePath]) -> list[dict[str, Any]]:
    """All that may be configured: ``key``, ``value``, and ``file`` and ``line`` that say so, else None."""
    settings = settings_of(files)
    known = {
        each.key: {"key": each.key, "value": each.value, "file": each.file, "line": each.line}
        for each in settings
    }
    return [known.get(key, _built_in(key)) for key in (*_KEYS, *(key for key in known if key not in _KEYS))]


def recipe_rows(root: YamlNode, file: str) -> list[dict[str, Any]]:
    """The same of what holds for a recipe that was read, whichever file says so.

    Args:
        root: its tree.
        file: what messages call it.
    """
    paths = [tuple(key.split(".")) for key in _KEYS if key != "region"]
    paths += [("experiments", name, "hardware", "region") for name in root.entries["experiments"].entries]
    return [_row(root, path, file) for path in paths]


def _row(root: YamlNode, path: tuple[str, ...], file: str) -> dict[str, Any]:
    node = below(root, path)
    if node is None:
        return _built_in(".".join(path))
    said_by, line = node.file or file, node.line
    if node.via and not node.via.startswith("--set"):
        said_by, _, number = node.via.rpartition(":")
        line = int(number)
    return {"key": ".".join(path), "value": node.plain_value(), "file": said_by, "line": line}


def _built_in(key: str) -> dict[str, Any]:
    return {"key": key, "value": BUILT_IN.get(key), "file": None, "line": None}


def shown_value(value: object) -> str:
    """A value for people: without what is secret in URLs."""
    return redacted(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
