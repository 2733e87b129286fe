"""Pages can be read: `scripts/readable.py` measures sentences and paragraphs, and these only get shorter."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MEASURE = runpy.run_path(str(ROOT / "scripts/readable.py"))["measure"]
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md")})
#: Words. A page's mean sentence, its longest one, and its longest paragraph or item of a list.
MEAN_MOST, SENTENCE_MOST, PARAGRAPH_MOST = 20, 45, 110
#: Pages that are still to be rewritten. Only ever take one away.
NOT_YET: set[str] = {
    "docs/development/decisions.md",
    "docs/development/engines.md",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_and_paragraphs_are_short(page):
    found = MEASURE(page.read_text())
    name = str(page.relative_to(ROOT))
    is_short = (
        found.mean_sentence <= MEAN_MOST
        and len(found.longest_sentence.split()) <= SENTENCE_MOST
        and len(found.longest_paragraph.split()) <= PARAGRAPH_MOST
    )
    if name in NOT_YET:
        assert not is_short, "take it out of NOT_YET"
    else:
        assert is_short, (
            f"{found.mean_sentence:.0f} words a sentence\n{found.longest_sentence}\n{found.longest_paragraph}"
        )
