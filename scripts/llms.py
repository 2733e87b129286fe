"""`llms.txt` of the site: each page with what it answers, for assistants; `llms-full.txt` is all of them.

Made of the navigation and of the pages' first lines when the site is built (`scripts/site_pages.py`).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
#: Parts of the navigation for those who change Trainmaster; not in the whole text.
_NOT_FOR_USERS = ("Extending", "Development")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
_SAYS = 200


def short(nav: list[Any], description: str) -> str:
    """Of each section the pages, with the first sentence of each."""
    lines = ["# Trainmaster", "", f"> {description}", ""]
    for section, pages in sections(nav):
        lines += [f"## {section}", ""]
        for page in pages:
            title, says = first_lines((DOCS / page).read_text(encoding="utf-8"))
            lines.append(f"- [{title}]({page.removesuffix('.md')}.html): {says}")
        lines.append("")
    return "\n".join(lines)


def full(nav: list[Any]) -> str:
    """All pages for users, one after the other."""
    pages = [page for section, found in sections(nav) if section not in _NOT_FOR_USERS for page in found]
    return "\n\n".join(
        f"<!-- {page} -->\n\n{(DOCS / page).read_text(encoding='utf-8').strip()}\n" for page in pages
    )


def sections(nav: list[Any]) -> Iterator[tuple[str, list[str]]]:
    """Top-level parts of the navigation, with all of their pages that lie in docs/."""
    for part in nav:
        for name, content in part.items() if isinstance(part, dict) else [("", part)]:
            found = [page for page in pages_of(content) if (DOCS / page).is_file()]
            if found:
                yield name, found


def pages_of(content: Any) -> Iterator[str]:  # noqa: ANN401 - of YAML
    """Names of pages in a part of the navigation."""
    if isinstance(content, str):
        yield content
        return
    for each in content.values() if isinstance(content, dict) else content:
        yield from pages_of(each)


def first_lines(text: str) -> tuple[str, str]:
    """The title of a page, and its first sentence."""
    lines = [line.strip() for line in text.splitlines()]
    title = next(line.removeprefix("# ") for line in lines if line.startswith("# "))
    prose = (line for line in lines if line and line[0] not in "#`|>!<-$*")
    says = _LINK.sub(r"\1", next(prose, title))
    sentence = re.split(r"(?<=[.:?])\s", says)[0]
    return title, sentence if len(sentence) <= _SAYS else f"{sentence[:_SAYS]}..."
