"""Conditions on runs, as ``status --where`` takes them: ``loss < 0.3 and label:project = vision``. Pure.

A small language of its own: comparisons, ``and``, ``or``, ``not`` and brackets; nothing of it is ever run.
A name is one of `FIELDS`, or a metric, parameter or label; ``metric:``, ``param:`` and ``label:`` before it
say which. A name alone asks whether it is there. What a run does not have is neither more nor less than
anything: such a comparison finds nothing, also behind ``not``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final, NoReturn

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import UsageError
from trainmaster.spec.node import nearest
from trainmaster.spec.states import EndReason, State
from trainmaster.spec.units import parse_duration

#: What every run has, and how it is compared: a text, dollars, a time, how long ago, or a state.
FIELDS: Final = {
    "state": "state", "name": "text", "run": "text", "provider": "text", "owner": "text", "team": "text",
    "note": "text", "created": "time", "age": "duration", "cost": "money",
}  # fmt: skip
KINDS: Final = ("metric", "param", "label")
MOST_CHARACTERS: Final = 2000
_MOST_DEPTH: Final = 50
_ORDER: Final = ("<", "<=", ">", ">=")
_TOKEN: Final = re.compile(
    r"(?P<space>\s+)|(?P<mark>[()])|(?P<compare>==|!=|<=|>=|!~|=|<|>|~)"
    r"|\"(?P<double>(?:[^\"\\]|\\.)*)\"|'(?P<single>(?:[^'\\]|\\.)*)'|`(?P<name>[^`\"\\]+)`"
    r"|(?P<word>[^\s()=!<>~\"'`]+)"
)
_STATES: Final = (*State, *EndReason)
#: What others call the end of a run that failed, and what it is here.
_FAILURES: Final = ("FAILED", "FAILURE", "FAIL", "ERROR", "CRASHED")
_WHY_FAILED: Final = tuple(
    reason
    for reason in EndReason
    if not reason.is_success and reason not in (EndReason.CANCELLED, EndReason.SKIPPED, EndReason.DENIED)
)
_HINT: Final = "Such as: 'loss < 0.3 and lr > 1e-3', 'state = SUCCEEDED and label:project = x'."


def known_state(text: str) -> str:
    """A state, or a reason why runs end, whatever its case.

    Raises:
        ValueError: there is none of that name; it says which are meant.
    """
    wanted = text.upper()
    if wanted in _STATES:
        return wanted
    is_failure = wanted in _FAILURES  # what is spelt most like it is DRAINED
    near = None if is_failure else nearest(text, _STATES)
    meant = f"did you mean {near}?" if near else f"there are {', '.join(_STATES)}"
    if is_failure:
        meant = f"what failed says why: {', '.join(_WHY_FAILED)}"
    raise ValueError(f"there is no state {text!r}; {meant}")


@dataclass(frozen=True, slots=True)
class Comparison:
    """A name, and what it is compared with.

    Attributes:
        kind: of `KINDS`, ``field``, or empty: a metric, parameter or label, the first that is there.
        name: without its kind.
        operator: ``=``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``~`` (has in it) or ``!~``.
        value: a number (dollars, Unix seconds, seconds) or a text.
        text: the value as it was written.
    """

    kind: str
    name: str
    operator: str
    value: float | str
    text: str


@dataclass(frozen=True, slots=True)
class Has:
    """Whether a metric, parameter or label is there; ``kind`` and ``name`` as of `Comparison`."""

    kind: str
    name: str

    def __str__(self) -> str:
        """As a condition."""
        return f"{self.kind}:{self.name}" if self.kind else f"`{self.name}`"


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite."""

    part: Where


@dataclass(frozen=True, slots=True)
class Both:
    """All of the parts (``and``), or one of them (``or``)."""

    word: str
    parts: tuple[Where, ...]


Where = Comparison | Has | Not | Both


def names_in(where: Where) -> list[Has]:
    """The metrics, parameters and labels that a condition names: of each, whether it is there.

    >>> names_in(parse_where("loss < 0.3 and not (label:project = x or state = SUCCEEDED)"))
    [Has(kind='', name='loss'), Has(kind='label', name='project')]
    """
    if isinstance(where, Has):
        return [where]
    if isinstance(where, Comparison):
        return [] if where.kind == "field" else [Has(where.kind, where.name)]
    parts = (where.part,) if isinstance(where, Not) else where.parts
    return list(dict.fromkeys(name for part in parts for name in names_in(part)))


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    column: int


def parse_where(text: str) -> Where:
    """Read a condition.

    >>> parse_where("loss < 0.3")
    Comparison(kind='', name='loss', operator='<', value=0.3, text='0.3')

    Raises:
        UsageError: it is none; the message points at the column.
    """
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"where: {len(text)} characters", f"Write at most {MOST_CHARACTERS}.")
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._read())
        self._at = 0
        self._depth = 0

    def whole(self) -> Where:
        found = self._any()
        if self._next.kind != "end":
            self._refuse(self._next, f"{self._next.text!r} is one too many; join conditions by `and` or `or`")
        return found

    # --- grammar: any = all {or all}; all = one {and one}; one = not one | (any) | NAME [OPERATOR VALUE] ---

    def _any(self) -> Where:
        return self._joined("or", lambda: self._joined("and", self._one))

    def _joined(self, word: str, part: Callable[[], Where]) -> Where:
        parts = [part()]
        while self._next.kind == "word" and self._next.text.lower() == word:
            self._take()
            parts.append(part())
        return parts[0] if len(parts) == 1 else Both(word, tuple(parts))

    def _one(self) -> Where:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            self._refuse(self._next, f"more than {_MOST_DEPTH} brackets in each other")
        found = self._inner()
        self._depth -= 1
        return found

    def _inner(self) -> Where:
        token = self._take()
        if token.kind == "word" and token.text.lower() == "not":
            return Not(self._one())
        if token.text == "(" and token.kind == "mark":
            found = self._any()
            if self._next.text != ")" or self._next.kind != "mark":
                self._refuse(self._next, f"the bracket of column {token.column} is not closed")
            self._take()
            return found
        if token.kind not in ("word", "name"):
            what = "it ends" if token.kind == "end" else f"{token.text!r} stands"
            self._refuse(token, f"{what} where a name is expected, such as `loss` or `state`")
        return self._comparison(token)

    def _comparison(self, token: _Token) -> Where:
        kind, name = self._named(token)
        if self._next.kind != "compare":
            if kind == "field":
                self._refuse(self._next, f"`{name}` is compared with nothing; every run has it")
            return Has(kind, name)
        sign = self._take()
        operator = "=" if sign.text == "==" else sign.text
        given = self._take()
        if given.kind not in ("word", "text"):
            what = "it ends" if given.kind == "end" else f"{given.text!r} stands"
            self._refuse(given, f"{what} where {name!r} needs what it is compared with")
        value = self._value(kind, name, operator, sign, given)
        return Comparison(kind, name, operator, value, given.text)

    def _named(self, token: _Token) -> tuple[str, str]:
        if token.kind == "word" and _number(token.text) is not None:
            self._refuse(token, f"{token.text!r} is no name; write the name first, such as `loss < 0.3`")
        kind, colon, name = token.text.partition(":")
        if token.kind == "word" and colon:
            if kind not in KINDS:
                self._refuse(token, f"{kind!r} is no kind of name: {', '.join(f'{k}:' for k in KINDS)} are")
            if not name:
                self._refuse(token, f"a name is missing behind {token.text!r}")
            return kind, name
        return ("field" if token.kind == "word" and token.text in FIELDS else "", token.text)

    def _value(self, kind: str, name: str, operator: str, sign: _Token, given: _Token) -> float | str:
        if operator in ("~", "!~"):
            if kind == "metric" or (kind == "field" and FIELDS[name] not in ("text",)):
                self._refuse(sign, f"`{operator}` looks for a text, and {name!r} has none")
            return given.text
        how = FIELDS[name] if kind == "field" else "any"
        if operator in _ORDER and (kind == "label" or how in ("text", "state")):
            self._refuse(sign, f"{name!r} is a text: compare it with = != ~ or !~")
        if how == "any":
            number = None if given.kind == "text" else _number(given.text)
            if number is None and (operator in _ORDER or kind == "metric"):
                self._refuse(given, f"{given.text!r} is no number, which {name!r} could be compared with")
            return given.text if number is None or kind == "label" else number
        return self._field_value(how, given)

    def _field_value(self, how: str, given: _Token) -> float | str:
        if how == "text":
            return given.text
        if how == "state":
            try:
                return known_state(given.text)
            except ValueError as error:
                self._refuse(given, str(error))
        try:
            if how == "time":
                at = datetime.fromisoformat(given.text)
                return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
            if how == "duration":
                return parse_duration(given.text)
            if (usd := _number(given.text)) is not None:
                return usd
            raise ValueError
        except ValueError:
            right = {
                "time": "a date (UTC) such as 2026-11-26; how old a run is, is `age < 7d`",
                "duration": "a time such as 12h or 7d",
                "money": "an amount such as $5 or 0.2",
            }[how]
            self._refuse(given, f"{given.text!r} is not {right}")

    # --- tokens ---------------------------------------------------------------------------------

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _read(self) -> Iterator[_Token]:
        at = 0
        while at < len(self._text):
            found = _TOKEN.match(self._text, at)
            if found is None:
                sign = self._text[at]
                why = f"the {sign} is not closed" if sign in "\"'`" else f"{sign!r} is not understood"
                self._refuse(_Token("", sign, at + 1), why)
            kind = found.lastgroup or ""
            text = found[kind]
            if kind in ("double", "single"):
                kind, text = "text", re.sub(r"\\(.)", r"\1", text)
            if kind != "space":
                yield _Token(kind, text, at + 1)
            at = found.end()
        yield _Token("end", "", len(self._text) + 1)

    def _refuse(self, token: _Token, why: str) -> NoReturn:
        line = self._text.replace("\n", " ").replace("\t", " ")
        place = f"  {line}\n  {' ' * (token.column - 1)}^"
        raise UsageError(f"where, column {token.column}: {why}\n{place}", _HINT)


def _number(text: str) -> float | None:
    """A finite number, also as of dollars.

    >>> _number("1e-3"), _number("$5"), _number("nan"), _number("x")
    (0.001, 5.0, None, None)
    """
    try:
        value = float(text.removeprefix("$").replace("_", "x"))
    except ValueError:
        return None
    return value if value - value == 0 else None
