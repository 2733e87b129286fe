"""From nodes to models: every model names its keys and how to read them, once, in its fields.

A field's ``Annotated`` metadata carries a `Key`: the name in the recipe and a reader. `read_noun` walks
a mapping by these keys, so the models are the only schema there is. A reader adds what is wrong to
`Problems` and raises `ReportedMistake`; code that can go on without the value catches it, so that all
mistakes of a recipe are found in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, TypeVar

from pydantic import BaseModel, ConfigDict

from trainmaster.dataclass import dataclass
from trainmaster.lazy import regex
from trainmaster.spec.errors import Mistake
from trainmaster.spec.node import Kind, YamlNode, nearest
from trainmaster.spec.units import parse_bytes, parse_duration, parse_money

T = TypeVar("T")
M = TypeVar("M", bound=float)
Path = tuple[str, ...]

_MAX_TEXT_IN_MESSAGE: Final = 60
_MAX_NAMES_IN_MESSAGE: Final = 50
#: Who has made more mistakes of a kind does not read on, and each look for the nearest name looks at all.
_MAX_SUGGESTIONS: Final = 50
#: Of what a pattern describes.
_MAX_TEXT: Final = 100


class ReportedMistake(Exception):  # noqa: N818 - never leaves this package
    """A value was wrong and the mistake was noted."""


class Problems:
    """The mistakes found so far.

    Attributes:
        mistakes: as they were found.
        misspelt: keys that stand there under a name that is not known, for which each was proposed.
    """

    def __init__(self) -> None:
        self.mistakes: list[Mistake] = []
        self.misspelt: set[Path] = set()
        self._known: set[Mistake] = set()
        self._suggestions = 0

    def add(
        self,
        node: YamlNode,
        path: Path,
        message: str,
        *,
        place: tuple[int, int] | None = None,
        lacks: str = "",
    ) -> None:
        """Note a mistake at a node, or at a place within it; or that a key is missing there."""
        line, column = place or (node.line, node.column)
        if node.via:
            message = f"{message} (given by {node.via})"
        mistake = Mistake(line, column, ".".join(node.stands_at or path), message, node.file, lacks)
        if mistake not in self._known:
            self._known.add(mistake)
            self.mistakes.append(mistake)

    def suggest(self, word: str, known: Iterable[str]) -> str:
        """What to write instead of a word that is not known; as `suggest` for the first ones."""
        self._suggestions += 1
        return suggest(word, [*known]) if self._suggestions <= _MAX_SUGGESTIONS else "write one that is known"

    def refuse(self, node: YamlNode, path: Path, message: str) -> ReportedMistake:
        """Note a mistake and make the exception to raise."""
        self.add(node, path, message)
        return ReportedMistake()

    def in_order(self) -> list[Mistake]:
        """The mistakes as they follow in the file."""
        return sorted(self.mistakes, key=lambda mistake: (mistake.file, mistake.line, mistake.column))

    @contextmanager
    def goes_on(self) -> Iterator[None]:
        """Go on after a value that was refused."""
        try:
            yield
        except ReportedMistake:
            return


#: How a value of a type is read.
Reader = Callable[[YamlNode, Path, Problems], T]


def takes(read: Reader[T], **shape: Any) -> Reader[T]:  # noqa: ANN401 - as JSON Schema has it
    """Say what a reader takes where it is made, for `trainmaster.spec.schema`; the reader itself."""
    vars(read)["shape"] = shape
    return read


@dataclass(frozen=True, slots=True)
class Key:
    """How a field is written in the recipe.

    Attributes:
        name: the key.
        read: how to read its value.
        required: what to say when it is missing; empty if it may be.
    """

    name: str
    read: Reader[Any]
    required: str = ""


class Noun(BaseModel):
    """Base of all models: frozen, and strict about its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    #: Other ways of writing it, which `prepare` takes: readers, or schemas.
    also: ClassVar[tuple[Any, ...]] = ()
    #: Keys of which exactly one is given.
    one_of: ClassVar[tuple[str, ...]] = ()
    #: Keys that may be written in it, and are read as if they stood beside it.
    hoisted: ClassVar[tuple[tuple[str, Reader[Any]], ...]] = ()

    @classmethod
    def prepare(cls, node: YamlNode, path: Path, problems: Problems) -> YamlNode:
        """Turn other ways of writing it into the mapping that the keys describe."""
        if node.kind is not Kind.MAPPING:
            example = ", ".join(key.name for _, key in keys_of(cls))
            raise problems.refuse(node, path, f"{node.describe()}; write a mapping with the keys {example}")
        return node

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """Check fields against each other; ``values`` has those that were given, by field name."""


N = TypeVar("N", bound=Noun)

_KEYS: dict[type[Noun], list[tuple[str, Key]]] = {}


def keys_of(noun: type[Noun]) -> list[tuple[str, Key]]:
    """The fields that are keys of the recipe."""
    if noun not in _KEYS:
        _KEYS[noun] = [
            (name, data)
            for name, info in noun.model_fields.items()
            for data in info.metadata
            if isinstance(data, Key)
        ]
    return _KEYS[noun]


def read_noun(noun: type[N], node: YamlNode, path: Path, problems: Problems) -> N:
    """Read a mapping into a model.

    Raises:
        Refused: something in it is wrong; all of it was noted.
    """
    node = noun.prepare(node, path, problems)
    found_before = len(problems.mistakes)
    keys = {key.name: (field, key) for field, key in keys_of(noun)}
    refuse_unknown_keys(node, path, problems, [*keys, *(name for name, _ in noun.hoisted)])
    values: dict[str, Any] = {}
    for name, (field, key) in keys.items():
        child = node.entries.get(name)
        if child is None:
            if key.required and (*path, name) not in problems.misspelt:
                problems.add(node, path, f"no `{name}`; {key.required}", lacks=name)
            continue
        with problems.goes_on():
            values[field] = key.read(child, (*path, name), problems)
    noun.check(values, node, path, problems)
    if len(problems.mistakes) > found_before:
        raise ReportedMistake
    return noun(**values)


#: What other tools call keys of an experiment.
_OTHER_WORDS: Final = {
    other: ours
    for ours, others in {
        "after": "needs depends_on dependencies requires",
        "command": "run script cmd entrypoint",
        "container": "image docker docker_image",
        "data": "dataset datasets inputs file_mounts mounts",
        "env": "environment envs env_vars",
        "hardware": "gpu gpus cpu cpus memory instance instance_type machine resources accelerators",
        "parameters": "space params hyperparameters search_space grid matrix",
        "retries": "max_retries restarts retry",
        "samples": "trials num_trials n_trials num_samples max_trials",
        "timeout": "time_limit max_duration",
        "workers": "nodes num_nodes replicas num_workers nnodes world_size",
    }.items()
    for other in others.split()
}


def refuse_unknown_keys(node: YamlNode, path: Path, problems: Problems, known: Sequence[str]) -> None:
    """Note every key that is not known, with the nearest one that is; ``x-`` ones are the user's own."""
    for name, key in node.keys.items():
        if name not in known and not name.startswith("x-"):
            ours = _OTHER_WORDS.get(name.lower())
            if name in _OTHER_WORDS.values():
                right = "it is a key of an experiment: `experiments: {NAME: {" + name + ": ...}}`"
            elif ours in known:
                right = f"it is called '{ours}' here"
            else:
                right = problems.suggest(name, known)
                right += "" if ours is None else f"; an experiment has '{ours}' for it"
            problems.misspelt |= {(*path, meant) for meant in known if f"'{meant}'" in right}
            problems.add(key, (*path, name), f"unknown key '{shorten(name)}'; {right}")


def suggest(word: str, known: Sequence[str]) -> str:
    """What to write instead of a word that is not known.

    >>> suggest("sampels", ["samples", "steps"]), suggest("q", ["a", "b"])
    ("did you mean 'samples'?", 'known here: a, b')
    """
    if near := nearest(word, known):
        return f"did you mean '{near}'?"
    if not known:
        return "nothing is known here"
    more = len(known) - _MAX_NAMES_IN_MESSAGE
    shown = ", ".join(known[:_MAX_NAMES_IN_MESSAGE])
    return f"known here: {shown}{f' and {more} more' if more > 0 else ''}"


def shorten(text: str) -> str:
    """A text that fits into a message."""
    return text if len(text) <= _MAX_TEXT_IN_MESSAGE else text[: _MAX_TEXT_IN_MESSAGE - 3] + "..."


def noun(kind: type[N]) -> Reader[N]:
    """Read a model."""
    return takes(lambda node, path, problems: read_noun(kind, node, path, problems), noun=kind)


def text(right: str = "write a text") -> Reader[str]:
    """Read a text that is not empty. Numbers and true or false count with their source text."""

    def read(node: YamlNode, path: Path, problems: Problems) -> str:
        if node.kind is not Kind.SCALAR or node.is_null:
            raise problems.refuse(node, path, f"{node.describe()}; {right}")
        if not node.text.strip():
            raise problems.refuse(node, path, f"an empty text; {right}")
        return node.text

    return takes(read, text=r"\S")


def pattern(allowed: str, right: str) -> Reader[str]:
    """Read a text of which a regular expression describes the whole."""
    compiled = regex(allowed)
    read_text = text(right)

    def read(node: YamlNode, path: Path, problems: Problems) -> str:
        found = read_text(node, path, problems)
        if not compiled.fullmatch(found):
            raise problems.refuse(node, path, f"{node.describe()}; {right}")
        if len(found) > _MAX_TEXT:
            raise problems.refuse(
                node, path, f"{node.describe()}; at most {_MAX_TEXT} characters are allowed"
            )
        return found

    return takes(read, text=f"^(?:{allowed})$", maxLength=_MAX_TEXT)


def verbatim(node: YamlNode, path: Path, problems: Problems) -> str:
    """Read the source text of a scalar, also an empty one in quotes."""
    if node.kind is not Kind.SCALAR or node.is_null:
        raise problems.refuse(
            node, path, f"{node.describe()}; write a text, a number, true or false ('' is an empty text)"
        )
    return node.text


takes(verbatim, scalar=True)


def integer(minimum: int | None = None, maximum: int = (1 << 63) - 1) -> Reader[int]:
    """Read a whole number."""
    least = "" if minimum is None else f" of at least {minimum}"

    def read(node: YamlNode, path: Path, problems: Problems) -> int:
        value = node.value if node.kind is Kind.SCALAR else None
        if isinstance(value, bool) or not isinstance(value, int) or (minimum is not None and value < minimum):
            raise problems.refuse(node, path, f"{node.describe()}; write a whole number{least}")
        if abs(value) > maximum:
            raise problems.refuse(node, path, f"{node.describe()}; write a number of at most {maximum}")
        return value

    return takes(read, type="integer", minimum=-maximum if minimum is None else minimum, maximum=maximum)


def number(minimum: float | None = None) -> Reader[float]:
    """Read a finite number."""
    least = "" if minimum is None else f" of at least {minimum:g}"
    lowest = -1e300 if minimum is None else minimum

    def read(node: YamlNode, path: Path, problems: Problems) -> float:
        value = node.value if node.kind is Kind.SCALAR else None
        if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value < 1e300:
            raise problems.refuse(node, path, f"{node.describe()}; write a number{least}")
        return float(value)

    return takes(read, type="number", minimum=lowest, exclusiveMaximum=1e300)


def boolean(node: YamlNode, path: Path, problems: Problems) -> bool:
    """Read true or false; ``on``, ``off``, ``yes`` and ``no`` are texts in YAML 1.2."""
    value = node.value if node.kind is Kind.SCALAR else None
    if not isinstance(value, bool):
        raise problems.refuse(node, path, f"{node.describe()}; write true or false")
    return value


takes(boolean, type="boolean")


def choice(*known: str) -> Reader[str]:
    """Read one of some words."""

    def read(node: YamlNode, path: Path, problems: Problems) -> str:
        if node.kind is not Kind.SCALAR or node.text not in known:
            near = nearest(node.text, known) if node.text else None
            right = f"did you mean '{near}'?" if near else f"write {' or '.join(known)}"
            raise problems.refuse(node, path, f"{node.describe()}; {right}")
        return node.text

    return takes(read, enum=list(known))


def _measured(
    parse: Callable[[str], M], right: str, measured: str, *, may_be_zero: bool = False
) -> Reader[M]:
    def read(node: YamlNode, path: Path, problems: Problems) -> M:
        if node.kind is not Kind.SCALAR or node.is_null or isinstance(node.value, bool):
            raise problems.refuse(node, path, f"{node.describe()}; {right}")
        if node.text.lstrip().startswith("-"):
            raise problems.refuse(node, path, f"{node.describe()} is negative; {right}")
        try:
            value = parse(node.text)
        except ValueError as error:
            raise problems.refuse(node, path, str(error)) from None
        if value <= 0 and not may_be_zero:
            raise problems.refuse(node, path, f"{node.describe()} is zero; {right}")
        return value

    return takes(read, measured=measured, may_be_zero=may_be_zero)


def duration(*, may_be_zero: bool = False) -> Reader[float]:
    """Read a duration in seconds."""
    right = "write a duration such as 60s, 30m or 1h30m"
    return _measured(parse_duration, right, "duration", may_be_zero=may_be_zero)


#: Read a size in bytes.
size: Final = _measured(parse_bytes, "write a size such as 16GB or 16GiB", "size")
#: Read an amount in US dollars.
money: Final = _measured(parse_money, "write an amount such as $20 or 20 USD", "money")


class _SeenValues:
    """Values that were there, however many: nearly all have a hash."""

    def __init__(self) -> None:
        self._hashed: set[object] = set()
        self._others: list[object] = []

    def is_new(self, value: object) -> bool:
        """Whether it is the first of its kind."""
        try:
            is_new = value not in self._hashed
            self._hashed.add(value)
        except TypeError:  # models with a mapping in them
            is_new = value not in self._others
            self._others.append(value)
        return is_new


def list_of(read_item: Reader[T], right: str, *, single: bool = False) -> Reader[tuple[T, ...]]:
    """Read a list without repetitions; with ``single``, a value stands for the list of it."""

    def read(node: YamlNode, path: Path, problems: Problems) -> tuple[T, ...]:
        if node.kind is Kind.MAPPING or (node.kind is Kind.SCALAR and (node.is_null or not single)):
            raise problems.refuse(node, path, f"{node.describe()}; {right}")
        found: list[T] = []
        seen = _SeenValues()
        refused = False
        for index, item in enumerate(node.items if node.kind is Kind.LIST else [node]):
            try:
                value = read_item(item, (*path, str(index)) if node.kind is Kind.LIST else path, problems)
            except ReportedMistake:
                refused = True
                continue
            if not seen.is_new(value):
                problems.add(item, (*path, str(index)), f"{item.describe()} a second time; name it once")
                refused = True
            found.append(value)
        if refused:
            raise ReportedMistake
        return tuple(found)

    return takes(read, items=read_item, single=single)


def mapping_of(read_value: Reader[T], right: str, *, name: str, what: str) -> Reader[dict[str, T]]:
    """Read a mapping from names of one's own choice.

    Args:
        read_value: reads each value.
        right: what to write when it is no mapping.
        name: regular expression for the names.
        what: what the names are and may look like.
    """
    compiled = regex(name)

    def read(node: YamlNode, path: Path, problems: Problems) -> dict[str, T]:
        if node.kind is not Kind.MAPPING:
            raise problems.refuse(node, path, f"{node.describe()}; {right}")
        found: dict[str, T] = {}
        refused = False
        for key, value in node.entries.items():
            if len(key) > 100 or not compiled.fullmatch(key):
                problems.add(node.keys[key], (*path, key), f"the name '{shorten(key)}'; {what}")
                refused = True
            try:
                found[key] = read_value(value, (*path, key), problems)
            except ReportedMistake:
                refused = True
        if refused:
            raise ReportedMistake
        return found

    return takes(read, values=read_value, names=f"^(?:{name})$")


def shell_script(node: YamlNode, path: Path, problems: Problems) -> str:
    """Read a script: a text, or a list of lines."""
    lines = node.items if node.kind is Kind.LIST else [node]
    refused = False
    for index, line in enumerate(lines):
        where = (*path, str(index)) if node.kind is Kind.LIST else path
        if line.kind is Kind.MAPPING and line.entries:
            problems.add(line, where, "a mapping; put the line in quotes, it contains a colon and a space")
            refused = True
        elif line.kind is not Kind.SCALAR or line.is_null:
            problems.add(line, where, f"{line.describe()}; write a text or a list of lines")
            refused = True
    found = "\n".join(line.text for line in lines)
    if not refused and not found.strip():
        problems.add(node, path, "an empty script; write a text or a list of lines")
        refused = True
    if refused:
        raise ReportedMistake
    return found


_LINE: Final = {"type": ["string", "number", "boolean"]}
_SAID: Final = _LINE | {"pattern": r"\S"}
takes(shell_script, any=[_SAID, {"type": "array", "items": _LINE, "contains": _SAID}])


def read_file_names(node: YamlNode, path: Path, problems: Problems) -> tuple[str, ...]:
    """Refuse names of other files: what lies beside a recipe is in it before it is read."""
    message = "names a file, and this recipe is a text by itself; write out here what the file says"
    raise problems.refuse(node, path, message)


takes(read_file_names, items=text(), single=True)
