"""`log_html`: a line of a log as HTML: its colours, what was looked for, links. `level_of`: how bad it is."""

from __future__ import annotations

import re
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
_CODE: Final = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])|\x1b[\]()][^\x07\x1b]{0,200}\x07?|\x1b.?")
_URL: Final = r"https?://[^\s<>\"'`()\[\]{}]+[^\s<>\"'`()\[\]{}.,;:!?]"
_SHOWN: Final = 4000
#: Of codes for colours, the class of ours.
_COLOURS: Final = {
    1: "b",
    2: "dim",
    31: "bad",
    32: "ok",
    33: "warn",
    34: "blue",
    35: "pink",
    36: "blue",
    90: "dim",
}


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
    >>> print(log_html("see http://a.b/c.", "SEE"))
    <mark>see</mark> <a href="http://a.b/c" rel="noreferrer nofollow">http://a.b/c</a>.
    """
    text = text.rstrip("\r").rpartition("\r")[2]
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}… ({len(text) - _SHOWN} more)"
    parts: list[Markup] = []
    at, classes = 0, ""
    for code in _CODE.finditer(text):
        parts.append(_told(text[at : code.start()], classes, wanted))
        at = code.end()
        if code[2] == "m":
            classes = _classes(classes, code[1])
    return Markup("").join([*parts, _told(text[at:], classes, wanted)])


def _classes(before: str, codes: str) -> str:
    found = before
    for code in (int(each or 0) for each in codes.split(";")):
        if code in (0, 22, 39):
            found = ""
        elif name := _COLOURS.get(code - 60 if 91 <= code <= 97 else code):
            found = f"{found} l-{name}".strip()
    return found


def _told(text: str, classes: str, wanted: str) -> Markup:
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
    return Markup('<span class="{}">{}</span>').format(classes, said) if classes else said
