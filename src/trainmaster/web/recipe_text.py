"""`RecipeText`: the text of a recipe in which single keys are changed; every other byte stays as it is."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from trainmaster.spec.errors import UsageError, fails_as

Path = tuple[str, ...]
#: Keys of a recipe, and of an experiment, in the order in which one writes them: where a new one goes.
_ORDER: Final = (
    "name", "code", "provider", "objective", "budget", "experiments",
    "command", "setup", "parameters", "samples", "search", "data", "distributed", "framework", "hardware",
    "batch", "steps", "epochs", "examples",
)  # fmt: skip


class RecipeText:
    """A recipe as text.

    Args:
        text: as somebody wrote it.

    Raises:
        UsageError: it is no mapping in YAML.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._yaml = YAML(typ="safe", pure=True)
        try:
            root = self._yaml.compose(text)
            self.values: Any = self._yaml.constructor.construct_document(root) if root else None
        except (YAMLError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
            where = f", line {mark.line + 1}" if mark else ""
            raise UsageError(f"the recipe cannot be read{where}", "Mend it there first.") from None
        if not isinstance(root, MappingNode):
            raise UsageError("the recipe has no keys", "Begin with `name: digits`.")
        self._root = root

    def put(self, path: Path, value: str) -> RecipeText:
        r"""The same with another value of a key.

        Args:
            path: of the key, from the top.
            value: YAML in one line; of several lines it is a text, as `setup` is.

        Raises:
            UsageError: that cannot be written.

        >>> RecipeText("name: a  # mine\nseed: 1\n").put(("name",), "b").text
        'name: b  # mine\nseed: 1\n'
        >>> RecipeText("name: a\nseed: 1\n").put(("budget", "total"), '"$5"').text
        'name: a\nbudget: {total: "$5"}\nseed: 1\n'
        """
        wanted = at = _copy(self.values)
        for key in path[:-1]:
            at[key] = at[key] if isinstance(at.get(key), dict) else {}
            at = at[key]
        with fails_as(".".join(path), "Write another value.", on=ValueError):  # of too many digits
            at[path[-1]] = value if "\n" in value else self._yaml.load(value)
        return self._written(path, value, wanted)

    def without(self, path: Path) -> RecipeText:
        r"""The same without a key, and without the mapping around it if it was alone there.

        >>> text = "a: 1\nb:\n  c: 2\n# of d\nd: {e: 3, f: 4}\n"
        >>> RecipeText(text).without(("b", "c")).without(("d", "e")).text
        'a: 1\n# of d\nd: {f: 4}\n'
        """
        wanted = at = _copy(self.values)
        for key in path[:-1]:
            at = at.get(key) if isinstance(at, dict) else None
        if not isinstance(at, dict) or path[-1] not in at:
            return self
        if len(at) == 1 and len(path) > 1:
            return self.without(path[:-1])
        del at[path[-1]]
        return self._written(path, None, wanted)

    def _written(self, path: Path, value: str | None, wanted: dict[str, Any]) -> RecipeText:
        """What means `wanted`, by the least change; else what is around it is written again."""
        for length in range(len(path), 0, -1):
            if length < len(path):
                at: Any = wanted
                for key in path[:length]:
                    at = at.get(key, {})
                value = json.dumps(at, ensure_ascii=False, default=str)
            try:
                found = RecipeText(self._edited(path[:length], value))
            except UsageError:
                continue
            if _same(found.values, wanted):
                return found
        raise UsageError(f"{'.'.join(path)} cannot be written into the recipe", "Change its text instead.")

    def _edited(self, path: Path, value: str | None) -> str:
        mapping, depth = self._root, 0
        entry = _entry(mapping, path[0])
        while depth < len(path) - 1 and entry and isinstance(entry[1], MappingNode) and not _is_alias(entry):
            mapping, depth = entry[1], depth + 1
            entry = _entry(mapping, path[depth])
        if value is None:
            return self.text if entry is None else self._cut(mapping, entry)
        for name in reversed(path[depth + 1 :]):
            value = f"{{{_key(name)}: {_in_line(value)}}}"
        if "\n" in value:
            indent = "\n" + " " * (_column(mapping) + 2)
            lines = f"|{indent}" + indent.join(value.splitlines())
            value = _in_line(value) if mapping.flow_style else lines
        if entry is None:
            return self._added(mapping, path[depth], value)
        key, old = entry
        start, end = self._after_colon(key), self._end(entry)
        if not _is_block(old) and start < old.start_mark.index < end:
            start = old.start_mark.index
        space = "" if self.text[start - 1].isspace() else " "
        return self.text[:start] + space + value + self.text[end:]

    def _added(self, mapping: MappingNode, key: str, value: str) -> str:
        before = _ORDER[: _ORDER.index(key)] if key in _ORDER else ()
        entries = mapping.value
        known = [each for each in entries if each[0].value in before] if before or key in _ORDER else entries
        line = f"{_key(key)}: {value}"
        if mapping.flow_style:
            if not entries:
                at = mapping.start_mark.index + 1
                return self.text[:at] + line + self.text[at:]
            at = self._end(known[-1] if known else entries[-1])
            return f"{self.text[:at]}, {line}{self.text[at:]}"
        line = " " * _column(mapping) + line + "\n"
        if not known:
            at = self._line_of(entries[0][0])
            return self.text[:at] + line + self.text[at:]
        at = self.text.find("\n", self._end(known[-1])) + 1
        return self.text[:at] + line + self.text[at:] if at else f"{self.text}\n{line}"

    def _cut(self, mapping: MappingNode, entry: tuple[Node, Node]) -> str:
        number = mapping.value.index(entry)
        if not mapping.flow_style:
            last = self.text.find("\n", self._end(entry)) + 1 or len(self.text)
            return self.text[: self._line_of(entry[0])] + self.text[last:]
        if number:
            start, end = self._end(mapping.value[number - 1]), self._end(entry)
        else:
            start = entry[0].start_mark.index
            end = mapping.value[1][0].start_mark.index if len(mapping.value) > 1 else self._end(entry)
        return self.text[:start] + self.text[end:]

    def _line_of(self, key: Node) -> int:
        start = self.text.rfind("\n", 0, key.start_mark.index) + 1
        if self.text[start : key.start_mark.index].strip():
            raise UsageError("it begins in the middle of a line", "Change the text.")
        return start

    def _after_colon(self, key: Node) -> int:
        return self.text.index(":", key.end_mark.index) + 1

    def _end(self, entry: tuple[Node, Node]) -> int:
        """Where a key's value ends: comments and empty lines behind it are not of it."""
        key, value = entry
        if _is_alias(entry):
            start = self.text.index("*", self._after_colon(key))
            return start + len(re.split(r"[\s,\]}]", self.text[start:], maxsplit=1)[0])
        if isinstance(value, MappingNode) and _is_block(value):
            return self._end(value.value[-1])
        if isinstance(value, SequenceNode) and _is_block(value):
            return self._end((key, value.value[-1]))
        if value.start_mark.index == value.end_mark.index:  # nothing is there
            return self._after_colon(key)
        return len(self.text[: value.end_mark.index].rstrip())


def _is_alias(entry: tuple[Node, Node]) -> bool:
    """Its value stands above, where it got its name."""
    return bool(entry[1].start_mark.index < entry[0].start_mark.index)


def _is_block(node: Node) -> bool:
    """It ends by indentation, and not by a sign."""
    if isinstance(node, MappingNode | SequenceNode):
        return not node.flow_style
    return isinstance(node, ScalarNode) and node.style in ("|", ">")


def _entry(mapping: MappingNode, key: str) -> tuple[Node, Node] | None:
    return next((each for each in mapping.value if each[0].value == key), None)


def _column(mapping: MappingNode) -> int:
    return int(mapping.value[0][0].start_mark.column) if mapping.value else 0


def _key(name: str) -> str:
    return name if name.isidentifier() and name.lower() not in ("null", "true", "false") else json.dumps(name)


def _in_line(value: str) -> str:
    return json.dumps(value, ensure_ascii=False) if "\n" in value else value


def _copy(value: Any) -> Any:  # noqa: ANN401 - of YAML
    """A copy in which nothing is shared: an alias is a value of its own."""
    if isinstance(value, dict):
        return {key: _copy(each) for key, each in value.items()}
    return [_copy(each) for each in value] if isinstance(value, list) else value


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - of YAML
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(each, other[key]) for key, each in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return repr(one) == repr(other)
