"""The command as a template: where its ``{{name}}`` stand, and whether bash keeps a quoted value whole there.

Values are put in as quoted words. That is safe where bash reads plain words and nowhere else,
so the scanner follows quotes, substitutions, arithmetic, comments and here-documents, and refuses a
placeholder wherever a quoted value would not arrive as it is. Where it cannot be sure it refuses, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from trainmaster.dataclass import dataclass, field
from trainmaster.lazy import regex

_PLACEHOLDER = regex(r"\{\{[ \t]*([A-Za-z_][A-Za-z0-9_]*)[ \t]*\}\}")
#: Looks as if a placeholder was meant. Braces with commas (``{{a,b},c}``) are bash's own.
_ALMOST = regex(r"\{\{[ \t]*([A-Za-z_][\w.\-\[\]|: ]*?)[ \t]*\}\}")
_SUBSCRIPT = regex(r"(?:^|[\s;&|(])[A-Za-z_][A-Za-z0-9_]*\[[^\]\s]*$")
_WORD_ENDS: Final = frozenset(" \t\n;&|()<>")
_BARE = regex(r"(?:-?[0-9.]|[A-Za-z_/])[A-Za-z0-9_./@%+:-]*")
_RESERVED: Final = frozenset(
    {
        "if",
        "then",
        "else",
        "elif",
        "fi",
        "do",
        "done",
        "case",
        "esac",
        "while",
        "until",
        "for",
        "in",
        "function",
    }
    | {"time", "select", "coproc"}
)
_SPECIAL: Final = frozenset("$#?!@*-0123456789")
#: `name[` begins a subscript that may go on over spaces, quotes and hashes; the plain ones are passed over.
_INTRICATE_SUBSCRIPT = regex(
    r"""[A-Za-z_]\w*\[(?!(?:[\w@*.,:+\-/%!^]|\$\w+|\$\{\w+\}|"\$?[\w .]*"|"\$\{\w+\}"|'[\w .]*')*\])"""
)
#: The first of two opening parentheses. If both are not closed at once, they were subshells.
_OUTER: Final = "(( "
_CASE = regex(r"case\b")


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One ``{{name}}``.

    Attributes:
        name: what stands between the braces.
        start: offset of its first character in the script.
        end: offset behind its last character.
        refusal: why no value can be put here: ``what was found; what would be right``. Empty if one can.
    """

    name: str
    start: int
    end: int
    refusal: str = ""


@lru_cache(maxsize=64)
def placeholders(script: str) -> tuple[Placeholder, ...]:
    """Every placeholder of a bash script, in order. Those in comments are left alone and not among them."""
    return tuple(_Scanner(script).scan())


def quote(text: str, *, always: bool = False) -> str:
    """A text as one literal word of bash.

    ``shlex.quote`` leaves more bare than bash takes literally: ``a=b`` assigns, ``if`` begins a statement,
    ``-n`` tests, ``1..3`` and ``a,b`` expand between braces. What is left bare here is an ordinary number or
    word.

    >>> [quote(text) for text in ("0.1", "-0.5", "resnet-50", "a b", "a=b", "if")]
    ['0.1', '-0.5', 'resnet-50', "'a b'", "'a=b'", "'if'"]
    """
    if not always and _BARE.fullmatch(text) and ".." not in text and text not in _RESERVED:
        return text
    return "'" + text.replace("'", "'\"'\"'") + "'"


def render(script: str, texts: Mapping[str, str]) -> str:
    r"""Put shell-quoted texts in for the placeholders.

    Raises:
        KeyError: a placeholder has no text.
        ValueError: a placeholder stands where no value can be put.

    >>> render("echo {{word}} # {{word}}", {"word": "it's"})
    'echo \'it\'"\'"\'s\' # {{word}}'
    """
    pieces = []
    position = 0
    for placeholder in placeholders(script):
        if placeholder.refusal:
            raise ValueError(placeholder.refusal)
        before_redirection = script[placeholder.end : placeholder.end + 1] in ("<", ">")
        quoted = quote(
            texts[placeholder.name], always=before_redirection
        )  # `{{x}}>out` must not become `2>out`
        pieces += [script[position : placeholder.start], quoted]
        position = placeholder.end
    return "".join([*pieces, script[position:]])


@dataclass(slots=True)
class _Heredoc:
    delimiter: str
    strips_tabs: bool
    expands: bool


@dataclass(slots=True)
class _Scanner:
    """Walks through a script with a stack of what is open: ``( $( (( $(( ${ " ' $' ` ``."""

    script: str
    found: list[Placeholder] = field(default_factory=list)
    stack: list[str] = field(default_factory=list)
    heredocs: list[_Heredoc] = field(default_factory=list)
    doubt: str = ""
    #: How many things were open when a word behind ``>&`` began; None outside of such words.
    duplicating: int | None = None

    def scan(self) -> list[Placeholder]:
        position = 0
        while position < len(self.script):
            top = self.stack[-1] if self.stack else ""
            if placeholder := self._placeholder(position):
                position = placeholder.end
            elif top == "'":
                position = self._in_single_quotes(position)
            elif top == "$'":
                position = self._until_unescaped(position, "'")
            elif top == "`":
                position = self._until_unescaped(position, "`")
            elif top == '"':
                position = self._in_double_quotes(position)
            elif top == "${":
                position = self._in_expansion(position)
            elif top in (_OUTER, "((", "$["):
                position = self._in_arithmetic(position)
            else:
                position = self._in_code(position)
        return self.found

    def _placeholder(self, position: int) -> Placeholder | None:
        if not self.script.startswith("{{", position):
            return None
        match = _PLACEHOLDER.match(self.script, position)
        if match is not None:
            found = Placeholder(match[1], match.start(), match.end(), self._refusal(match[1], position))
        elif match := _ALMOST.match(self.script, position):
            refusal = f"'{match[0]}'; a placeholder is {{{{name}}}}, the name of one parameter"
            found = Placeholder(match[1], match.start(), match.end(), refusal)
        else:
            return None
        self.found.append(found)
        return found

    def _refusal(self, name: str, position: int) -> str:
        shown = f"{{{{{name}}}}}"
        instead = f'write "$TRAINMASTER_PARAM_{name.upper()}"'
        for opened in reversed(self.stack):
            if opened in ("'", '"', "$'"):
                return f"{shown} inside quotes; it is quoted for you: leave the quotes out"
            if opened == "`":
                return f"{shown} inside backticks; write $(...) instead of them"
            if opened == "${":
                return f"{shown} inside ${{...}}, where quoting does not hold; {instead} outside of it"
            if opened in (_OUTER, "((", "$["):
                return f"{shown} inside arithmetic, where quoting does not hold; {instead}"
            if opened == "$(":
                break  # a new context: what is around it does not matter
        line = self.script.rfind("\n", 0, position) + 1
        if self.script.find("[", line, position) >= 0 and _SUBSCRIPT.search(self.script[line:position]):
            return f"{shown} inside an array's subscript, where quoting does not hold; {instead}"
        if self.duplicating is not None:
            # Bash (5.2) expands that word twice, quoted or not: `>&'$(ls)'` runs ls. The fuzzer found it.
            return f"{shown} behind '>&', where quoting does not hold; write > and 2>&1"
        if position and self.script[position - 1] == "$" and not self._is_escaped(position - 1):
            return f"{shown} behind a '$'; leave the '$' out"
        if self.doubt:
            return f"{shown} after {self.doubt}, where quoting cannot be followed safely; {instead}"
        return ""

    def _is_escaped(self, position: int) -> bool:
        start = position
        while start and self.script[start - 1] == "\\":
            start -= 1
        return (position - start) % 2 == 1

    def _in_single_quotes(self, position: int) -> int:
        if self.script[position] == "'":
            self.stack.pop()
        return position + 1

    def _until_unescaped(self, position: int, end: str) -> int:
        if self.script[position] == "\\":
            return position + 2
        if self.script[position] == end:
            self.stack.pop()
        return position + 1

    def _in_double_quotes(self, position: int) -> int:
        character = self.script[position]
        if character == "\\":
            return position + 2
        if character == '"':
            self.stack.pop()
            return position + 1
        return self._dollar_or_backtick(position) or position + 1

    def _in_expansion(self, position: int) -> int:
        character = self.script[position]
        if character == "\\":
            return position + 2
        if character == "}":
            self.stack.pop()
            return position + 1
        if character == '"':
            self.stack.append('"')
            return position + 1
        if character == "'" and '"' not in self.stack:
            self.stack.append("'")
            return position + 1
        return self._dollar_or_backtick(position) or position + 1

    def _in_arithmetic(self, position: int) -> int:
        character = self.script[position]
        if character == "\\":
            return position + 2
        if self.stack[-1] == _OUTER:
            self.stack.pop()
            if character != ")":
                self.doubt = self.doubt or "(( without ))"
                return position
        elif character == "#" and self.script[position - 1] in _WORD_ENDS:
            self.doubt = self.doubt or "a '#' inside (( ))"
        elif character in "([":
            self.stack.append("((" if character == "(" else "$[")
        elif (character == ")" and self.stack[-1] == "((") or (character == "]" and self.stack[-1] == "$["):
            self.stack.pop()
        elif character in "'\"":
            self.stack.append(character)
        else:
            return self._dollar_or_backtick(position) or position + 1
        return position + 1

    def _dollar_or_backtick(self, position: int) -> int | None:
        """Open what a ``$`` or a backtick opens; None if it is something else."""
        script = self.script
        if script[position] == "`":
            self.stack.append("`")
            return position + 1
        if script[position] != "$":
            return None
        if script[position + 1 : position + 2] in _SPECIAL:
            return position + 2  # in `$${`, `$$` is a number and `{` a brace
        if script.startswith("$((", position):
            self.stack += [_OUTER, "(("]
            return position + 3
        if script.startswith("$[", position):
            self.doubt = self.doubt or "arithmetic as $[ ], which is obsolete"
        for opening in ("$(", "$["):
            if script.startswith(opening, position):
                self.stack.append(opening)
                return position + 2
        if script.startswith("${", position) and not _PLACEHOLDER.match(script, position + 1):
            self.stack.append("${")
            return position + 2
        return None

    def _in_code(self, position: int) -> int:
        script, character = self.script, self.script[position]
        before = script[position - 1] if position else "\n"
        if character == "\\":
            return position + 2
        if character in _WORD_ENDS and self.duplicating == len(self.stack):
            self.duplicating = None
        if script.startswith((">&", "<&"), position):
            self.duplicating = len(self.stack)
            return self._skip_blanks(position + 2)
        if character == "\n":
            return self._skip_heredocs(position + 1)
        if character == "#" and before in _WORD_ENDS:
            return self._hash(position, before)
        if character in "'\"":
            self.stack.append(character)
        elif script.startswith(("$'", '$"'), position):
            self.stack.append(script[position : position + 2] if script[position + 1] == "'" else '"')
            return position + 2
        elif script.startswith("((", position):
            self.stack += [_OUTER, "(("]
            return position + 2
        elif character == "(":
            self.stack.append("(")
        elif character == ")":
            self._close()
        elif script.startswith("<<<", position):
            return position + 3
        elif script.startswith("<<", position):
            return self._heredoc(position + 2)
        elif before in _WORD_ENDS and _INTRICATE_SUBSCRIPT.match(script, position):
            self.doubt = self.doubt or "an intricate subscript of an array"
        elif before in _WORD_ENDS and "$(" in self.stack and _CASE.match(script, position):
            # Its patterns end in a ')' that closes nothing. What is inside or outside is then anyone's guess.
            self.doubt = self.doubt or "a `case` inside $( )"
        else:
            return self._dollar_or_backtick(position) or position + 1
        return position + 1

    def _hash(self, position: int, before: str) -> int:
        """Pass a comment, unless what looks like the end of a word before it is none."""
        if before == ")" or (before == "\n" and position and self._is_escaped(position - 1)):
            # `$(a)#b` and two lines joined by a backslash are one word, `(a)#b` is a comment.
            self.doubt = self.doubt or "a '#' without a space before it"
        elif not (position and self._is_escaped(position - 1)):
            end = self.script.find("\n", position)
            return len(self.script) if end < 0 else end
        return position + 1

    def _close(self) -> None:
        if self.stack and self.stack.pop() == "$(" and self.heredocs:
            self.doubt = self.doubt or "a here-document that begins inside $( ) and ends outside"

    def _skip_blanks(self, position: int) -> int:
        while self.script[position : position + 1] in (" ", "\t"):
            position += 1
        return position

    def _heredoc(self, position: int) -> int:
        script = self.script
        strips_tabs = script.startswith("-", position)
        position += strips_tabs
        position = self._skip_blanks(position)
        delimiter, expands, quote = "", True, ""
        while position < len(script) and (quote or script[position] not in _WORD_ENDS):
            character = script[position]
            if quote:
                quote, delimiter = ("", delimiter) if character == quote else (quote, delimiter + character)
            elif character in "'\"":
                quote, expands = character, False
            elif character == "\\":
                expands = False
                position += 1
                delimiter += script[position : position + 1]
            else:
                delimiter += character
            position += 1
        if "$" in delimiter or "`" in delimiter or "{{" in delimiter or "\n" in delimiter:
            self.doubt = self.doubt or "a here-document with such a delimiter"
        self.heredocs.append(_Heredoc(delimiter, strips_tabs, expands))
        return position

    def _skip_heredocs(self, position: int) -> int:
        """Pass the bodies of the here-documents that begin on this line."""
        script = self.script
        for heredoc in self.heredocs:
            joined = False
            while position < len(script):
                end = script.find("\n", position)
                end = len(script) if end < 0 else end
                line = script[position:end]
                self._refuse_in_heredoc(position, end)
                position = end + 1
                line = line.lstrip("\t") if heredoc.strips_tabs else line
                if not joined and line == heredoc.delimiter:
                    break
                if self.stack and line.startswith(heredoc.delimiter):
                    # Bash 5.2 takes `EOF)` for the end of both, older ones do not.
                    self.doubt = self.doubt or "a line that only begins as the end of a here-document"
                # In a body that expands, a backslash at the end of a line joins it to the next.
                joined = heredoc.expands and (len(line) - len(line.rstrip("\\"))) % 2 == 1
        self.heredocs.clear()
        return min(position, len(script))

    def _refuse_in_heredoc(self, start: int, end: int) -> None:
        for match in _PLACEHOLDER.finditer(self.script, start, end):
            variable = f"$TRAINMASTER_PARAM_{match[1].upper()}"
            refusal = f"{match[0]} inside a here-document, where quoting does not hold; write {variable}"
            self.found.append(Placeholder(match[1], match.start(), match.end(), refusal))
