"""Labels and the note of a run: what people write on it to find it, and to sum up what it cost. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmaster.spec.node import YamlNode
    from trainmaster.spec.reading import Path, Problems

MOST_LABELS: Final = 64
MOST_KEY: Final = 63
MOST_VALUE: Final = 256
MOST_NOTE: Final = 4000
_KEY: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_/-]*[A-Za-z0-9])?")
_KEY_RIGHT: Final = f"write letters, digits, _, - and /, a letter first, at most {MOST_KEY} characters"
_VALUE_RIGHT: Final = f"write one line of at most {MOST_VALUE} characters"
_CHANGE_RIGHT: Final = "Write KEY=VALUE, and KEY- for one to be taken away."


def key_problem(key: str) -> str:
    """What is wrong with the name of a label; empty if nothing is.

    >>> key_problem("cost-centre"), key_problem("a b")[:15]
    ('', "the key 'a b'; ")
    """
    if len(key) <= MOST_KEY and _KEY.fullmatch(key):
        return ""
    return f"the key {key[:MOST_KEY]!r}; {_KEY_RIGHT}"


def value_problem(value: str) -> str:
    """What is wrong with its value; empty if nothing is."""
    if len(value) <= MOST_VALUE and value.isprintable():
        return ""
    return f"the value {value[:40]!r}; {_VALUE_RIGHT}"


def read_labels(node: YamlNode, path: Path, problems: Problems) -> dict[str, str]:
    """Read ``labels`` of a recipe: a mapping of texts; numbers count as they are written."""
    from trainmaster.spec.reading import ReportedMistake, mapping_of, verbatim

    found = mapping_of(verbatim, "write a mapping such as {project: x}", name=".*", what="")(
        node, path, problems
    )
    is_right = len(found) <= MOST_LABELS
    if not is_right:
        problems.add(node, path, f"{len(found)} labels; a run has at most {MOST_LABELS}")
    for key, value in found.items():
        if wrong := key_problem(key):
            problems.add(node.keys[key], (*path, key), wrong)
        if not_value := value_problem(value):
            problems.add(node.entries[key], (*path, key), not_value)
        is_right = is_right and not wrong and not not_value
    if not is_right:
        raise ReportedMistake
    return found


def parsed_changes(texts: Iterable[str]) -> dict[str, str | None]:
    """What ``KEY=VALUE`` and ``KEY-`` change, as a command line has them; None takes a label away.

    >>> parsed_changes(["project=x", "owner-", "why="])
    {'project': 'x', 'owner': None, 'why': ''}

    Raises:
        UsageError: one is neither.
    """
    found: dict[str, str | None] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals and not text.endswith("-"):
            raise UsageError(f"the label {text!r} has no value", _CHANGE_RIGHT)
        key = key if equals else key.removesuffix("-")
        found[key] = value if equals else None
    check_changes(found)
    return found


def check_changes(changes: Mapping[str, str | None]) -> None:
    """Refuse what no run can be labelled with.

    Raises:
        UsageError: a key or value is wrong, or there are too many.
    """
    for key, value in changes.items():
        if wrong := key_problem(key) or ("" if value is None else value_problem(value)):
            raise UsageError(f"labels: {wrong}", _CHANGE_RIGHT)


def changed(labels: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """The labels of a run after a change, by name.

    >>> changed({"b": "1", "a": "2"}, {"b": None, "c": "3"})
    {'a': '2', 'c': '3'}

    Raises:
        UsageError: those would be too many.
    """
    after = {key: value for key, value in sorted({**labels, **changes}.items()) if value is not None}
    if len(after) > MOST_LABELS:
        raise UsageError(f"labels: {len(after)}; a run has at most {MOST_LABELS}", "Take some away: KEY-.")
    return after


def checked_note(text: str) -> str:
    """The note of a run.

    Raises:
        UsageError: it is too long.
    """
    text = text.strip()
    if len(text) > MOST_NOTE:
        raise UsageError(f"a note of {len(text)} characters", f"Write at most {MOST_NOTE}.")
    return text


def as_overrides(texts: Sequence[str]) -> list[str]:
    """What ``--label KEY=VALUE`` changes of a recipe, as ``--set`` has it.

    >>> as_overrides(["project=x"])
    ['labels.project="x"']

    Raises:
        UsageError: one is no label.
    """
    import json

    found = parsed_changes(texts)
    return [f"labels.{key}={'null' if value is None else json.dumps(value)}" for key, value in found.items()]


def selecting(texts: Sequence[str]) -> str:
    """The condition (see `trainmaster.spec.where`) of ``--label KEY=VALUE``, ``KEY!=VALUE`` or ``KEY``.

    >>> selecting(["project=x", "owner"])
    'label:project = "x" and label:owner'

    Raises:
        UsageError: one is neither.
    """
    parts = []
    for text in texts:
        key, equals, value = text.partition("=")
        is_not = bool(equals) and key.endswith("!")
        key = key.removesuffix("!") if is_not else key
        if wrong := key_problem(key):
            raise UsageError(f"--label {text}: {wrong}", "Write --label KEY=VALUE, or KEY for any value.")
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        parts.append(f'label:{key} {"!=" if is_not else "="} "{quoted}"' if equals else f"label:{key}")
    return " and ".join(parts)


def joined(where: str, labels: Sequence[str]) -> str:
    """A condition and what `selecting` makes of labels, both of which must hold; empty without any.

    >>> joined("loss < 1 or lr > 1", ["a=b"])
    'label:a = "b" and (loss < 1 or lr > 1)'

    Raises:
        UsageError: a label is none, or the condition is none by itself.
    """
    if not where.strip() or not labels:
        return selecting(labels) or where
    from trainmaster.spec.where import parse_where

    parse_where(where)  # what is wrong is told at its own column
    return f"{selecting(labels)} and ({where})"
