"""`log_html`: a line of a log as HTML: its colours, what was looked for, links. `level_of`: how bad it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from markupsafe import Markup, escape

#: Levels by which a log can be limited, each with what such lines have in them; they hold no newline.
LEVELS: Final = {
    "error": re.compile(
        rb"(?:(?<![A-Za-z])|(?<=\dm))(?:CRITICAL|FATAL|ERROR)(?![A-Za-z])|^[ \t]*(?:error|fatal):|"
        rb"[\[=](?:error|fatal)\b|^Traceback \(most recent|^[\w.]*(?:Error|Exception)(?::|$)",
        re.M,
    ),
    "warning": re.compile(
        rb"(?:(?<![A-Za-z])|(?<=\dm))WARN(?:ING)?(?![A-Za-z])|Warning:|^[ \t]*warning:|[\[=]warn", re.M
    ),
}
_DEBUG: Final = re.compile(rb"(?:(?<![A-Za-z])|(?<=\dm))(?:DEBUG|TRACE)(?![A-Za-z])")
_CODE: Final = re.compile(r"\x1b\[([0-?]*)[ -/]*([@-~])|\x1b[\]()][^\x07\x1b]{0,200}\x07?|\x1b.?")
_URL: Final = r"https?://[^\s<>\"'`()\[\]{}]+[^\s<>\"'`()\[\]{}.,;:!?]"
_SHOWN: Final = 4000
#: Of codes for colours, the class of ours.
_COLOURS: Final = {
    31: "bad",
    32: "ok",
    33: "warn",
    34: "blue",
    35: "pink",
    36: "blue",
    90: "dim",
}
_EMPHASIS: Final = {1: "b", 2: "dim"}
#: So far apart the largest and the least of red, green and blue are, or it is grey.
_HUE: Final = 60
_GREY: Final = (40, 200)


def level_of(text: str) -> str:
    """How bad a line is: ``error``, ``warning``, ``debug``, or empty.

    >>> [level_of(each) for each in ("[E] ERROR: x", "XWarning: y", "DEBUG", "an error 1", "KeyError: 'a'")]
    ['error', 'warning', 'debug', '', 'error']
    """
    line = _CODE.sub("", text).encode()
    found = next((level for level, pattern in LEVELS.items() if pattern.search(line)), "")
    return found or ("debug" if _DEBUG.search(line) else "")


def log_html(text: str, wanted: str = "") -> Markup:
    r"""A line as a terminal would show it: what was drawn over is not there.

    Args:
        text: of the line.
        wanted: what is marked in it.

    >>> print(log_html("10%\r20% \x1b[31mbad\x1b[0m <b>"))
    20% <span class="l-bad">bad</span> &lt;b&gt;
    >>> print(log_html("\x1b[?25l\x1b[1;38;5;196mred\x1b[38:2::0:200:0mgreen\x1b[39;48;5;2mbold\x1b[0m no"))
    <span class="l-b l-bad">red</span><span class="l-b l-ok">green</span><span class="l-b">bold</span> no
    >>> print(log_html("see http://a.b/c.", "SEE"))
    <mark>see</mark> <a href="http://a.b/c" rel="noreferrer nofollow">http://a.b/c</a>.
    """
    text = text.rstrip("\r").rpartition("\r")[2]
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}… ({len(text) - _SHOWN} more)"
    parts: list[Markup] = []
    at, style = 0, ("", "")
    for code in _CODE.finditer(text):
        parts.append(_told(text[at : code.start()], style, wanted))
        at = code.end()
        if code[2] == "m":
            style = _style(style, code[1])
    return Markup("").join([*parts, _told(text[at:], style, wanted)])


def _style(before: tuple[str, str], codes: str) -> tuple[str, str]:
    """The emphasis and the colour of what follows some codes."""
    emphasis, colour = before
    rest = (int(each) if each.isdecimal() else 0 for each in re.split("[;:]", codes.replace("::", ":")))
    for code in rest:
        if code in (0, 22):
            emphasis = ""
        if code in (0, 39) or 30 <= code <= 37 or 90 <= code <= 97:
            colour = _COLOURS.get(code - 60 if code > 90 else code, "")
        elif code in (38, 48):  # of what stands behind a text, too: its numbers are no codes
            found = _of_many(rest)
            colour = found if code == 38 else colour
        emphasis = _EMPHASIS.get(code, emphasis)
    return emphasis, colour


def _of_many(codes: Iterator[int]) -> str:
    """The nearest of ours to one of 256 colours, or of 16 million."""
    kind, first = next(codes, 0), next(codes, 0)
    if kind == 2:
        light = [first, next(codes, 0), next(codes, 0)]
    elif first < 16:
        return _COLOURS.get(90 if first == 8 else 30 + first % 8, "")
    elif first < 232:
        light = [51 * ((first - 16) // each % 6) for each in (36, 6, 1)]
    else:
        light = [10 * first - 2312] * 3
    least, most = min(light), max(light)
    if most - least < _HUE:
        return "dim" if _GREY[0] <= most < _GREY[1] else ""
    return _COLOURS[30 + sum(1 << at for at, each in enumerate(light) if 2 * each > least + most)]


def _told(text: str, style: tuple[str, str], wanted: str) -> Markup:
    if not text:
        return Markup("")
    pattern = re.compile(
        f"(?P<mark>{re.escape(wanted)})|{_URL}" if wanted else f"(?P<mark>(?!))|{_URL}", re.I
    )
    parts, at = [], 0
    for found in pattern.finditer(text):
        parts.append(escape(text[at : found.start()]))
        at = found.end()
        if found["mark"]:
            parts.append(Markup("<mark>{}</mark>").format(found[0]))
        else:
            parts.append(Markup('<a href="{0}" rel="noreferrer nofollow">{0}</a>').format(found[0]))
    said = Markup("").join([*parts, escape(text[at:])])
    classes = " ".join(f"l-{each}" for each in style if each)
    return Markup('<span class="{}">{}</span>').format(classes, said) if classes else said
