"""Says in plain words why a text is not YAML, and where."""

from __future__ import annotations

from typing import Any

# What the parser says of the commonest mistakes, and what people are told instead.
_WORDS = (
    ("mapping values", "a ':' where no key can be; quote a value with ': ' in it, indent keys alike"),
    ("<block end>", "indented unlike the lines above; indent keys that belong together alike"),
    ("behind a value", "something behind the end of a value; put quotes around the whole value"),
    ("end of stream", "a quote or bracket that is opened here and not closed"),
    ("expected ':'", "a key without ': '; write KEY: VALUE"),
    ("cannot start any token", "a value that begins with a sign of YAML's own; put quotes around it"),
)


def explain(error: Any, text: str) -> tuple[int, int, str]:  # noqa: ANN401 - ruamel's marks are not typed
    """Line and column, both 1-based, of what the parser stumbled over, and what to do about it."""
    mark = error.problem_mark or error.context_mark
    if "end of stream" in str(error.problem) and error.context_mark is not None:
        mark = error.context_mark  # where the quote was opened, not where the file ends
    problem = " ".join(str(error.problem or error).split())
    if "expected ':'" in problem and error.context_mark is not None:
        mark = error.context_mark  # where the key begins, not the line after it
    if mark is None:
        return 1, 1, f"not YAML: {problem}"
    line, column = mark.line + 1, mark.column + 1
    lines = text.split("\n")
    start = lines[mark.line] if mark.line < len(lines) else ""
    indent = start[: len(start) - len(start.lstrip())]
    if "\t" in indent:
        return line, indent.index("\t") + 1, "a tab was found; indent with spaces"
    if "'\\t'" in problem:
        return line, column, "a tab was found; use spaces"
    if "<block end>" in problem and column > len(indent) + 1:
        problem = "behind a value"
    for words, plain in _WORDS:
        if words in problem:
            return line, column, f"not YAML: {plain}"
    context = f" {error.context}" if error.context else ""
    return line, column, f"not YAML: {problem}{context}; check quotes, colons and indentation"
