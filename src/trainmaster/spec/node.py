"""The recipe as a tree of nodes, each with its place in the file and its text as written.

Only the events of ruamel.yaml are used: no tag ever constructs an object, numbers keep their source
text (``3.10`` stays ``3.10``), and what could exhaust memory or the stack is refused while reading.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.dataclass import dataclass, field
from trainmaster.lazy import regex
from trainmaster.spec.errors import Mistake, RecipeError, UsageError

if TYPE_CHECKING:
    from ruamel.yaml.events import Event

#: A recipe names code and data, it does not contain them.
MAX_RECIPE_BYTES: Final = 1 << 20
#: How deep lists and mappings may be nested; the key table needs 7.
MAX_DEPTH: Final = 32
#: How many nodes all aliases together may stand for.
MAX_ALIAS_NODES: Final = 10_000
#: A number with more characters than this is no number anybody means.
MAX_NUMBER_CHARACTERS: Final = 100

Scalar = None | bool | int | float | str

_INTEGER = regex(r"[-+]?[0-9]+")
_OCTAL = regex(r"0o[0-7]+")
_HEXADECIMAL = regex(r"0x[0-9a-fA-F]+")
_DECIMAL = regex(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NON_FINITE = regex(r"([-+]?)\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_UNREPRESENTABLE = regex("[\0\ud800-\udfff]")
#: What needs no quotes, and words that do: readers of YAML 1.1 take them for something else.
_PLAIN: Final = regex(r"(?!.*(?:: |:$| #))[A-Za-z/][ -~]*(?<! )")
_OTHER_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_CONSTANTS: Final[dict[str, bool | None]] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}


@dataclass(frozen=True, slots=True)
class Wording:
    """What messages call the file that is read.

    Attributes:
        one: with its article. many: more of them. holds: what one begins with.
    """

    one: str
    many: str
    holds: str


RECIPE: Final = Wording("a recipe", "recipes", "a mapping with the key `experiments`")


class Kind(Enum):
    """What a node is."""

    SCALAR = "scalar"
    LIST = "list"
    MAPPING = "mapping"


@dataclass(slots=True, eq=False)
class YamlNode:
    """A value in the recipe.

    Attributes:
        kind: which of the following attributes are filled.
        line: 1-based.
        column: 1-based.
        text: a scalar's text, unescaped and unfolded.
        plain: a scalar is written without quotes, so it may be a number, true, false or null.
        items: a list's values.
        entries: a mapping's values by key, in order.
        keys: a mapping's keys as nodes.
        source: the text between the first and the last character in the file.
        size: how many nodes it stands for, itself and those behind aliases included.
        stands_at: the keys above it in the file, where it is read as if it stood elsewhere.
        file: that it stands in, where that is another than the one that is read.
        via: what it was given by, such as ``--set seed=1``, else empty.
    """

    kind: Kind
    line: int
    column: int
    text: str = ""
    plain: bool = False
    items: list[YamlNode] = field(default_factory=list)
    entries: dict[str, YamlNode] = field(default_factory=dict)
    keys: dict[str, YamlNode] = field(default_factory=dict)
    source: str = ""
    size: int = 1
    stands_at: tuple[str, ...] = ()
    file: str = ""
    via: str = ""

    @property
    def is_null(self) -> bool:
        """True for ``null``, ``~`` and a value left out."""
        return self.kind is Kind.SCALAR and self.value is None

    def plain_value(self) -> Any:  # noqa: ANN401 - whatever YAML may hold
        """Mappings, lists and scalars as Python has them."""
        if self.kind is Kind.MAPPING:
            return {key: each.plain_value() for key, each in self.entries.items()}
        return [each.plain_value() for each in self.items] if self.kind is Kind.LIST else self.value

    @property
    def value(self) -> Scalar:
        """A scalar's value by the core schema of YAML 1.2 (``on`` and ``yes`` are texts)."""
        return resolve(self.text) if self.plain else self.text

    @property
    def data(self) -> object:
        """All that stands here, as JSON has it."""
        if self.kind is Kind.LIST:
            return [each.data for each in self.items]
        if self.kind is Kind.MAPPING:
            return {name: each.data for name, each in self.entries.items()}
        return self.value

    def hoisted(self, inside: str, name: str, path: tuple[str, ...]) -> YamlNode:
        """This mapping, that stands at a path, with what its entry has of a name beside that entry."""
        outer = self.entries[inside]
        entries, keys = dict(outer.entries), dict(outer.keys)
        moved, key = replace(entries.pop(name), stands_at=(*path, inside, name)), keys.pop(name)
        rest = replace(outer, entries=entries, keys=keys)
        return replace(
            self, entries={name: moved, **self.entries, inside: rest}, keys={name: key, **self.keys}
        )

    def describe(self) -> str:
        """What was found, in YAML terms, for messages."""
        if self.kind is Kind.LIST:
            return "a list" if self.items else "an empty list"
        if self.kind is Kind.MAPPING:
            return "a mapping" if self.entries else "an empty mapping"
        value = self.value
        if value is None:
            return "nothing"
        shown = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        if isinstance(value, bool):
            return shown
        return f"the text {shown!r}" if isinstance(value, str) else f"the number {shown}"

    def walk(self) -> Iterator[YamlNode]:
        """This node and all below it."""
        yield self
        for child in [*self.items, *self.entries.values()]:
            yield from child.walk()


def written(node: YamlNode, indent: str = "") -> str:
    """YAML that is read as the same node; without comments.

    >>> print(written(compose("{a: 3.10, b: [x y, {c: 'on: 1'}], d: {}}", "recipe")), end="")
    a: 3.10
    b:
      - x y
      - c: "on: 1"
    d: {}
    """
    below = indent + "  "
    if node.kind is Kind.MAPPING and node.entries:
        pairs = ((_quoted_if_needed(key), child) for key, child in node.entries.items())
        return "".join(f"{indent}{key}:{_beside(child, below)}" for key, child in pairs)
    if node.kind is Kind.LIST and node.items:
        lines = (written(item, below) for item in node.items)
        return "".join(f"{indent}- {line.removeprefix(below)}" for line in lines)
    if node.kind is not Kind.SCALAR:
        return f"{indent}{'{}' if node.kind is Kind.MAPPING else '[]'}\n"
    value = node.value
    text = _quoted_if_needed(value) if isinstance(value, str) else node.text or "null"
    return f"{indent}{text}\n"


def _quoted_if_needed(text: str) -> str:
    """A text without quotes if each reader of YAML reads it as that text; else in quotes."""
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in _OTHER_WORDS
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def _beside(node: YamlNode, below: str) -> str:
    """A value behind its key: lists and mappings begin on the next line."""
    is_long = bool(node.entries or node.items)
    return f"\n{written(node, below)}" if is_long else f" {written(node)}"


def resolve(text: str) -> Scalar:
    """Read an unquoted scalar by the core schema of YAML 1.2.

    >>> [resolve(text) for text in ("12", "1e3", "0x10", "yes", "true", "~", "1-2")]
    [12, 1000.0, 16, 'yes', True, None, '1-2']
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) > MAX_NUMBER_CHARACTERS or text[0] not in "+-.0123456789":
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _HEXADECIMAL.fullmatch(text):
        return int(text[2:], 16)
    if match := _NON_FINITE.fullmatch(text):
        return float("nan") if match[1] is None else float(f"{match[1]}inf")
    return text


def compose(text: str, file: str, wording: Wording = RECIPE) -> YamlNode:
    """Read YAML text into nodes.

    Args:
        text: the whole file.
        file: its name in messages.
        wording: what kind of file it is.

    Raises:
        RecipeError: it is not YAML, or YAML of a kind that recipes do without.
    """
    return _Composer(text, file, wording).document()


class _Composer:
    """Builds nodes from parser events. One use."""

    def __init__(self, text: str, file: str, wording: Wording) -> None:
        self._text = text
        self._file = file
        self._wording = wording
        self._mistakes: list[Mistake] = []
        self._anchors: dict[str, YamlNode] = {}
        self._alias_nodes = 0

    def document(self) -> YamlNode:
        self._refuse_control_characters()
        from ruamel.yaml import YAML  # only what reads a recipe pays for it
        from ruamel.yaml.error import MarkedYAMLError

        try:
            events = YAML(typ="safe", pure=True).parse(self._text)
            node = self._read(events)
        except RecipeError:
            raise
        except MarkedYAMLError as error:
            from trainmaster.spec.not_yaml import explain  # only a mistake pays for it

            raise self._error(*explain(error, self._text)) from None
        except Exception as error:  # noqa: BLE001 - ruamel's scanner raises what it likes for odd escapes
            raise self._error(1, 1, f"not readable as YAML ({error}); see https://yaml.org") from None
        if self._mistakes:
            raise RecipeError(self._file, self._mistakes)
        return node

    def _read(self, events: Iterator[Event]) -> YamlNode:
        node: YamlNode | None = None
        for event in events:
            name = type(event).__name__
            if name == "DocumentStartEvent":
                if node is not None:
                    raise self._at(event, f"a second document; {self._wording.one} is one YAML document")
                node = None
            elif name in ("StreamStartEvent", "StreamEndEvent", "DocumentEndEvent"):
                continue
            else:
                node = self._node(event, events, 0)
        if node is None or node.is_null:
            raise self._error(1, 1, f"an empty file; {self._wording.one} is {self._wording.holds}")
        return node

    def _node(self, event: Event, events: Iterator[Event], depth: int) -> YamlNode:
        name = type(event).__name__
        anchor = getattr(event, "anchor", None)
        if name == "AliasEvent":
            return self._alias(event, str(anchor))
        if depth > MAX_DEPTH:
            raise self._at(event, f"nested more than {MAX_DEPTH} levels deep; {self._wording.many} are flat")
        tag = getattr(event, "tag", None)
        if tag is not None:
            written = str(tag).replace("tag:yaml.org,2002:", "!!")
            raise self._at(event, f"a YAML tag '{written}'; {self._wording.many} have no tags: leave it out")
        mark = event.start_mark
        node = YamlNode(Kind.SCALAR, mark.line + 1, mark.column + 1)
        if name == "SequenceStartEvent":
            node.kind = Kind.LIST
            while type(event := next(events)).__name__ != "SequenceEndEvent":
                node.items.append(self._node(event, events, depth + 1))
            node.size += sum(item.size for item in node.items)
        elif name == "MappingStartEvent":
            node.kind = Kind.MAPPING
            while type(event := next(events)).__name__ != "MappingEndEvent":
                self._entry(node, event, events, depth + 1)
        else:
            scalar: Any = event
            node.text = scalar.value
            node.plain = scalar.style is None
            node.source = self._text[mark.index : event.end_mark.index] if node.text else ""
            if _UNREPRESENTABLE.search(node.text):
                raise self._at(
                    event, "an escaped NUL or half a surrogate pair; neither programs nor files take it"
                )
        if anchor is not None:
            self._anchors[str(anchor)] = node
        return node

    def _entry(self, mapping: YamlNode, event: Event, events: Iterator[Event], depth: int) -> None:
        key = self._node(event, events, depth)
        value = self._node(next(events), events, depth)
        mapping.size += key.size + value.size
        if value.is_null and not value.source and value is not key:
            # The parser places what is left out at the next token, lines below: its key is where people look.
            value.line, value.column = key.line, key.column
        if key.kind is not Kind.SCALAR:
            braces = self._text.split("\n")[key.line - 1][key.column - 2 : key.column] == "{{"
            what = "put quotes around a value that begins with {{" if braces else "a key is a text"
            self._add(key, f"{key.describe()} as a key; {what}")
        elif key.text == "<<" and key.plain:
            self._add(key, "a merge key '<<'; it is no part of YAML 1.2: write the keys out")
        elif key.text in mapping.keys:
            first = mapping.keys[key.text]
            where = f"line {first.line}, column {first.column}"
            self._add(key, f"a second key '{key.text}'; it was given before, at {where}: keep one of them")
        else:
            mapping.keys[key.text] = key
            mapping.entries[key.text] = value

    def _alias(self, event: Event, anchor: str) -> YamlNode:
        node = self._anchors.get(anchor)
        if node is None:
            raise self._at(
                event, f"an alias '*{anchor}' without an anchor before it; define '&{anchor}' first"
            )
        self._alias_nodes += node.size
        if self._alias_nodes > MAX_ALIAS_NODES:
            raise self._at(
                event, f"aliases that stand for more than {MAX_ALIAS_NODES} values; write them out"
            )
        return node

    def _refuse_control_characters(self) -> None:
        if match := re.search(
            r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", self._text
        ):
            line, column = place(self._text, match.start())
            what = "a NUL byte" if match[0] == "\0" else f"the control character {match[0]!r}"
            raise self._error(line, column, f"{what}; {self._wording.one} is a text file")

    def _add(self, node: YamlNode, message: str) -> None:
        self._mistakes.append(Mistake(node.line, node.column, "", message))

    def _at(self, event: Event, message: str) -> RecipeError:
        return self._error(event.start_mark.line + 1, event.start_mark.column + 1, message)

    def _error(self, line: int, column: int, message: str) -> RecipeError:
        return RecipeError(self._file, [*self._mistakes, Mistake(line, column, "", message)])


def place(text: str, index: int) -> tuple[int, int]:
    r"""Line and column, both 1-based, of a character.

    >>> place("ab\ncd", 4)
    (2, 2)
    """
    before = text[:index]
    return before.count("\n") + 1, index - (before.rfind("\n") + 1) + 1


def read_text(file: Path, shown: str, noun: str, why_large: str) -> str:
    """What is in a file of YAML.

    Args:
        file: its path.
        shown: what people know it by.
        noun: what it should be, after "the".
        why_large: what to do about one that is too large.

    Raises:
        RecipeError: it is too large, or no UTF-8.
        OSError, ValueError: it cannot be read.
    """
    with file.open("rb") as stream:
        data = stream.read(MAX_RECIPE_BYTES + 1)
    if len(data) > MAX_RECIPE_BYTES:
        raise RecipeError(shown, [Mistake(1, 1, "", f"more than {MAX_RECIPE_BYTES >> 20} MiB; {why_large}")])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", "replace")
        line, column = place(before, len(before))
        message = f"the byte 0x{data[error.start]:02x} is not UTF-8; save the {noun} as UTF-8"
        raise RecipeError(shown, [Mistake(line, column, "", message)]) from None


def nearest(word: str, known: Sequence[str]) -> str | None:
    """The known word most like a misspelt one, or None.

    >>> nearest("hardwear", ["hardware", "samples"]), nearest("pcus", ["gpus", "cpus"])
    ('hardware', 'cpus')
    """
    import difflib  # only mistakes need it

    lowered = {name.lower(): name for name in known}
    same = [name for name in lowered if sorted(name) == sorted(word.lower())]  # letters that changed places
    found = same or difflib.get_close_matches(word.lower(), list(lowered), n=1, cutoff=0.6)
    return lowered[found[0]] if found else None


def changed(root: YamlNode, override: str, shown: str = "") -> YamlNode:
    """A copy of the tree with a value put in or taken away.

    Args:
        root: of the recipe.
        override: a text ``path=value`` as for ``--set``.
        shown: what messages call it.

    Raises:
        UsageError: it is wrong in itself.
    """
    path, separator, text = override.partition("=")
    flag = shown or f"--set {override}"
    if not separator or not path.strip():
        raise UsageError(f"{flag}: no path=value", "Write for instance --set experiments.train.retries=5.")
    try:
        value = compose(text, "value") if text.strip() else YamlNode(Kind.SCALAR, 1, 1, plain=True)
    except RecipeError as error:
        empty = not text.strip(" ~") or text.strip() in ("null", "Null", "NULL")
        if not empty:
            raise UsageError(
                f"{flag}: {error.mistakes[0].message}", "Quote the value as YAML asks."
            ) from None
        value = YamlNode(Kind.SCALAR, 1, 1, plain=True)
    return _put(root, path.strip(), value, flag, ())


def _put(parent: YamlNode, path: str, value: YamlNode, flag: str, above: tuple[str, ...]) -> YamlNode:
    if parent.kind is not Kind.MAPPING:
        what = parent.describe()
        raise UsageError(
            f"{flag}: {'.'.join(above)} is {what}, there is nothing below it", "Set it as a whole."
        )
    parts = path.split(".")
    if not all(parts):
        raise UsageError(f"{flag}: an empty key in '{path}'", "Write keys with single dots between them.")
    # Experiments may have dots in their names: the longest key that exists is meant.
    taken = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in parent.entries), 1)
    key, rest = ".".join(parts[:taken]), ".".join(parts[taken:])
    child = parent.entries.get(key)
    if child is None and above == ("experiments",):
        near = nearest(key, list(parent.entries))
        hint = f"Did you mean '{near}'?" if near else f"Known: {', '.join(parent.entries)}."
        raise UsageError(f"{flag}: there is no experiment '{key}'", hint)
    if child is None and not above and (meant := _parameter(parent, key if key != "parameters" else rest)):
        raise UsageError(f"{flag}: a recipe has no key '{key}'", f"Did you mean --set {meant}=VALUE?")
    at = child or parent
    if rest:
        if child is None or child.is_null:
            child = YamlNode(Kind.MAPPING, at.line, at.column, file=at.file, via=flag)
        return with_entry(parent, key, _put(child, rest, value, flag, (*above, key)), flag)
    if value.is_null:
        entries = {name: node for name, node in parent.entries.items() if name != key}
        return replace(parent, entries=entries, keys={name: parent.keys[name] for name in entries})
    return with_entry(parent, key, _moved(value, at, flag), flag)


def _parameter(root: YamlNode, name: str) -> str:
    """Where the one parameter of this name stands; empty if there is none, or there are several."""
    experiments = root.entries.get("experiments")
    parameters = {
        experiment: node.entries.get("parameters")
        for experiment, node in (experiments.entries if experiments is not None else {}).items()
    }
    found = [
        f"experiments.{experiment}.parameters.{name}"
        for experiment, node in parameters.items()
        if node is not None and name in node.entries
    ]
    return found[0] if len(found) == 1 else ""


def below(root: YamlNode, path: tuple[str, ...]) -> YamlNode | None:
    """The node of a key; numbers count the items of lists."""
    for key in path:
        in_list = root.items[int(key)] if root.kind is Kind.LIST else None
        found = root.entries.get(key, in_list)
        if found is None:
            return None
        root = found
    return root


def with_entry(parent: YamlNode, key: str, child: YamlNode, via: str = "") -> YamlNode:
    """A copy of a mapping with a value put in."""
    known = parent.keys.get(key) or YamlNode(
        Kind.SCALAR, child.line, child.column, text=key, file=child.file, via=via
    )
    return replace(parent, entries={**parent.entries, key: child}, keys={**parent.keys, key: known})


def _moved(node: YamlNode, at: YamlNode, via: str) -> YamlNode:
    """A copy whose mistakes are reported where it was put, and as coming from the command line."""
    return replace(
        node,
        line=at.line,
        column=at.column,
        file=at.file,
        source="",
        via=via,
        items=[_moved(item, at, via) for item in node.items],
        entries={name: _moved(child, at, via) for name, child in node.entries.items()},
        keys={name: _moved(key, at, via) for name, key in node.keys.items()},
    )


def plain_value(value: object, path: str = "") -> object:
    """A value as YAML can have it.

    >>> from pathlib import Path
    >>> plain_value({"epochs": range(2), "code": Path("src")})
    {'epochs': [0, 1], 'code': 'src'}

    Raises:
        UsageError: it has no form in YAML.
    """
    tolist = getattr(value, "tolist", None)  # of NumPy, PyTorch and pandas, of one value too
    if callable(tolist):
        return plain_value(tolist(), path)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {
            str(key): plain_value(each, f"{path}.{key}" if path else str(key)) for key, each in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain_value(each, f"{path}[{index}]") for index, each in enumerate(value)]
    raise UsageError(
        f"{path or 'the recipe'}: a {type(value).__name__} is no value of a recipe",
        "Write texts, numbers, true or false, paths, lists and dictionaries.",
    )
