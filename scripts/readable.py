"""How well pages of the documentation can be read: words per sentence and per paragraph, the worst first.

    python scripts/readable.py [PAGE...]

A test holds how long they may be: `tests/unit/docs/test_readable.py`.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
_LEFT_OUT = re.compile(r"```.*?```|<!--.*?-->", re.DOTALL)
_ITEM = re.compile(r"(?:[-*]|\d+\.) +")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_ENDS = re.compile(r"(?<=[.?!:])[\"*)]*\s+(?=[A-Z*\[(`\"])")


class Readable(NamedTuple):
    """What was measured of a page, in words; code is one word."""

    words: int
    mean_sentence: float
    longest_sentence: str
    longest_paragraph: str
    before_example: int | None  # words before the first block of code, None without one


def measure(text: str) -> Readable:
    """Measure a page's running text: neither tables nor headings nor blocks of code."""
    found = list(_paragraphs(_LEFT_OUT.sub("", text)))
    plain = [_LINK.sub(r"\1", re.sub(r"`[^`]*`", "CODE", each)) for each in found]
    sentences = [sentence for each in plain for sentence in _ENDS.split(each) if sentence.strip()]
    words = sum(len(each.split()) for each in sentences)

    def longest(texts: list[str]) -> str:
        return max(texts, key=lambda each: len(each.split()), default="")

    mean = words / len(sentences) if sentences else 0.0
    before, fence, _ = text.partition("\n```")
    before_example = len(before.split()) if fence else None
    return Readable(len(text.split()), mean, longest(sentences), longest(plain), before_example)


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs and items of lists, each as one line."""
    lines: list[str] = []
    for line in [*map(str.strip, text.splitlines()), ""]:
        is_prose = bool(line) and line[0] not in "|#!"
        if lines and (not is_prose or _ITEM.match(line)):
            yield " ".join(lines)
            lines = []
        if is_prose:
            lines.append(_ITEM.sub("", line, count=1) if _ITEM.match(line) else line)


def main() -> None:
    """Print a line for each page."""
    pages = [Path(each) for each in sys.argv[1:]] or [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    rows = [(measure(page.read_text(encoding="utf-8")), page) for page in pages]
    print("words a sentence: mean, most; of the longest paragraph; before the first example; of the page")
    for found, page in sorted(rows, key=lambda row: -row[0].mean_sentence):
        most, paragraph = (len(each.split()) for each in (found.longest_sentence, found.longest_paragraph))
        begins = "-" if found.before_example is None else found.before_example
        print(f"{found.mean_sentence:5.1f} {most:4} {paragraph:5} {begins:5} {found.words:6}  {page}")


if __name__ == "__main__":
    main()
