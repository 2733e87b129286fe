"""`Script`: a script of bash as words and commands, to be changed in places. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from trainmaster.dataclass import dataclass, field

#: Words before which and after which a command begins.
_RESERVED: Final = frozenset(
    {
        "if",
        "then",
        "else",
        "elif",
        "do",
        "while",
        "until",
        "!",
        "{",
        "}",
        "fi",
        "done",
        "time",
        "exec",
        "nohup",
        "setsid",
    }
)
_OPERATOR: Final = re.compile(r"\n|;;|&&|\|\||<<<|<<-?|&>>?|[0-9]*>>?&?|[0-9]*<&?|[;&|()]")
_SPACE: Final = re.compile(r"(?:[ \t]|\\\n)+")
_COMMENT: Final = re.compile(r"#[^\n]*")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(?:\[\w*\])?\+?=(.*)", re.DOTALL)
_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^{}]*))?\})")
#: A variable, or all of an array.
_WHOLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?\})")
_NOTE: Final = re.compile(r"(?:^|(?<=\s))#.*", re.MULTILINE)
_ARITHMETIC: Final = re.compile(r"\$\(\((.*?)\)\)|\$\(expr ([^()]*)\)|`expr ([^`]*)`", re.DOTALL)
_ENDS: Final = {"(": ")", "{": "}"}


@dataclass(frozen=True, slots=True)
class Word:
    """A word with its place: ``end`` is behind its last character."""

    text: str
    start: int
    end: int

    @property
    def bare(self) -> str:
        """Without quotes around the whole."""
        text = self.text
        return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command.

    Attributes:
        words: with those of its assignments.
        assigns: how many of the first words are assignments.
    """

    words: tuple[Word, ...]
    assigns: int

    @property
    def start(self) -> int:
        """Of its first word."""
        return self.words[0].start

    @property
    def end(self) -> int:
        """Behind its last word."""
        return self.words[-1].end

    @property
    def program(self) -> str:
        """The last part of the path of what it runs; empty if it only assigns."""
        rest = self.words[self.assigns :]
        return rest[0].bare.rpartition("/")[2] if rest else ""

    @property
    def arguments(self) -> tuple[Word, ...]:
        """What follows the program."""
        return self.words[self.assigns + 1 :]

    def assignments(self) -> Iterator[tuple[str, str]]:
        """What it gives to variables of the shell, if it does nothing else."""
        rest = self.words[self.assigns :]
        if rest and rest[0].text in ("export", "declare", "local", "readonly"):
            rest = rest[1:]
        elif rest:
            return
        for word in (*self.words[: self.assigns], *rest):
            if found := _ASSIGNMENT.fullmatch(word.text):
                yield found[1], found[2]


@dataclass(slots=True)
class Script:
    """A script and what becomes of it.

    Attributes:
        text: as it is.
        line: of the document where it begins.
    """

    text: str
    line: int = 1
    _changes: list[tuple[int, int, str]] = field(default_factory=list)

    def line_of(self, place: int) -> int:
        """The line of the document that a place is on."""
        return self.line + self.text.count("\n", 0, place)

    def change(self, start: int, end: int, text: str) -> None:
        """Put a text in the place of another."""
        self._changes.append((start, end, text))

    def drop(self, command: Command) -> str:
        """Take a command out, which `changed` no longer has; how it was written."""
        self.change(command.start, command.end, ":")
        return self.text[command.start : command.end]

    def changed(self) -> str:
        """The script with all changes; lines of which nothing is left are left out."""
        found = self.text
        for start, end, text in sorted(self._changes, reverse=True):
            found = found[:start] + text + found[end:]
        # `:` in a branch of its own keeps that from being empty
        kept = [line for line in found.split("\n") if line != ":"]
        return "\n".join(line.rstrip() for line in kept)

    def commands(self) -> list[Command]:
        """Its simple commands, in their order; what is in quotes or substitutions is part of a word."""
        found: list[Command] = []
        words: list[Word] = []
        skips = False  # the target of a redirection
        for word in [*self._tokens(), Word("\n", len(self.text), len(self.text))]:
            if _OPERATOR.fullmatch(word.text):
                redirects = word.text[-1] in "<>" or (word.text[0] in "0123456789<>" or "&>" in word.text)
                if not redirects and words:
                    found.append(_command(words))
                    words = []
                skips = redirects and not word.text.endswith("&")
            elif skips:
                skips = False
            elif words or word.text not in _RESERVED:
                words.append(word)
        return found

    def _tokens(self) -> Iterator[Word]:
        at, heredocs, expects = 0, list[str](), False
        text = self.text
        while at < len(text):
            if (found := _SPACE.match(text, at)) or (found := _COMMENT.match(text, at)):
                at = found.end()
            elif found := _OPERATOR.match(text, at):
                yield Word(found[0], at, found.end())
                at = found.end()
                expects = found[0] in ("<<", "<<-")
                if found[0] == "\n":
                    for delimiter in heredocs:
                        closing = re.compile(rf"^[ \t]*{re.escape(delimiter)}$", re.MULTILINE).search(
                            text, at
                        )
                        at = closing.end() if closing else len(text)
                    heredocs = []
            else:
                end = _word_end(text, at)
                word = Word(text[at:end], at, end)
                if expects:
                    heredocs.append(word.text.strip("'\"\\"))
                    expects = False
                yield word
                at = end


def written_out(text: str, launchers: Collection[str]) -> str:
    r"""A script in which calls of launchers have their options where they otherwise have arrays of them.

    Args:
        text: the script.
        launchers: names of programs.

    >>> written_out('A=(--nnodes=2)\nT=bin/torchrun\n$T "${A[@]}" $S "${B[@]}"', ["torchrun"])
    'A=(--nnodes=2)\nT=bin/torchrun\nbin/torchrun --nnodes=2 $S "${B[@]}"'
    """
    script = Script(text)
    commands = script.commands()
    given: dict[str, list[str]] = {}
    for name, value in (pair for each in commands for pair in each.assignments()):
        given.setdefault(name, []).append(value)
    once = {name: values[0] for name, values in given.items() if len(values) == 1}
    for command in commands:
        changes: list[tuple[Word, str]] = []
        starts = False
        for word in command.words[command.assigns :]:
            value = _stands_for(word, once) or ""
            is_launcher = (value or word.bare).strip("\"'").rpartition("/")[2] in launchers
            said = " ".join(_NOTE.sub("", value.strip("()")).split())
            is_options = value.startswith("(") and said.startswith("-")
            if starts and not is_options and not word.text.startswith("-"):
                break
            starts = starts or is_launcher
            if value and (is_launcher or is_options):
                changes.append((word, said))
        for word, said in changes if starts or command.program == "srun" else ():
            script.change(word.start, word.end, said)
    return script.changed()


def _stands_for(word: Word, known: Mapping[str, str]) -> str | None:
    """What a variable or array was given that is all of a word."""
    found = _WHOLE.fullmatch(word.bare)
    return known.get(found[1] or found[2]) if found else None


def _command(words: list[Word]) -> Command:
    assigns = 0
    while assigns < len(words) and _ASSIGNMENT.fullmatch(words[assigns].text):
        assigns += 1
    return Command(tuple(words), assigns)


def _word_end(text: str, at: int) -> int:
    """Where the word ends that begins at a place."""
    begin = at
    while at < len(text):
        character = text[at]
        if character == "\\":
            at += 2
        elif character == "'":
            at = _closed(text, at + 1, "'")
        elif character == '"':
            at = _quoted_end(text, at + 1)
        elif character == "`":
            at = _closed(text, at + 1, "`")
        elif character == "$" and text[at + 1 : at + 2] in ("(", "{"):
            at = _nested_end(text, at + 1)
        elif character == "(" and at > begin and text[at - 1] == "=":  # an array
            at = _nested_end(text, at)
        elif character in " \t\n;&|()<>":
            break
        else:
            at += 1
    return max(min(at, len(text)), begin + 1)


def _closed(text: str, at: int, mark: str) -> int:
    end = text.find(mark, at)
    return len(text) if end < 0 else end + 1


def _quoted_end(text: str, at: int) -> int:
    while at < len(text) and text[at] != '"':
        if text[at] == "\\":
            at += 2
        elif text[at] == "$" and text[at + 1 : at + 2] in ("(", "{"):
            at = _nested_end(text, at + 1)
        else:
            at += 1
    return at + 1


def _nested_end(text: str, at: int) -> int:
    """Behind the parenthesis or brace that closes the one at a place."""
    opening, closing, depth = text[at], _ENDS[text[at]], 0
    while at < len(text):
        character = text[at]
        if character == "\\":
            at += 1
        elif character == "'" and opening == "(":
            at = _closed(text, at + 1, "'") - 1
        elif character == '"':
            at = _quoted_end(text, at + 1) - 1
        elif character == opening:
            depth += 1
        elif character == closing:
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return len(text)


def number_of(text: str, known: Mapping[str, int]) -> int | None:
    r"""The whole number that a word stands for; None if it is not known.

    >>> number_of('"$((N * ${G:-4}))"', {"N": 2}), number_of("$(expr $N \\* 4)", {"N": 2})
    (8, 8)
    >>> number_of("$X", {})
    """
    text = text.strip().strip("\"'")
    text = _VARIABLE.sub(lambda found: _value(found, known), text)
    text = _ARITHMETIC.sub(
        lambda found: f"({next(part for part in found.groups() if part is not None)})", text
    )
    text = re.sub(
        r"\b[A-Za-z_]\w*\b", lambda found: str(known.get(found[0], found[0])), text.replace("\\", "")
    )
    try:
        return _calculated(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(found: re.Match[str], known: Mapping[str, int]) -> str:
    value = known.get(found[1] or found[2])
    return found[0] if value is None and not found[3] else str(value if value is not None else found[3])


def _calculated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value <= 1_000_000:
        return node.value
    if isinstance(node, ast.BinOp):
        left, right = _calculated(node.left), _calculated(node.right)
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Div) and right and not left % right:
            return left // right
    raise ValueError("no whole number")
