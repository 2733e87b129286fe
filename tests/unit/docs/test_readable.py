"""Pages can be read: `scripts/readable.py` measures sentences, paragraphs and how a page begins."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MEASURE = runpy.run_path(str(ROOT / "scripts/readable.py"))["measure"]
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md")})
#: Words. A page's mean sentence, its longest one, and its longest paragraph or item of a list.
MEAN_MOST, SENTENCE_MOST, PARAGRAPH_MOST = 20, 45, 110
#: Words before a page's first example, its title and what it is for among them.
BEFORE_EXAMPLE_MOST = 90


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_and_paragraphs_are_short(page):
    found = MEASURE(page.read_text())
    assert found.mean_sentence <= MEAN_MOST
    assert len(found.longest_sentence.split()) <= SENTENCE_MOST, found.longest_sentence
    assert len(found.longest_paragraph.split()) <= PARAGRAPH_MOST, found.longest_paragraph


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_begins_with_the_shortest_example(page):
    before = MEASURE(page.read_text()).before_example
    assert before is not None, "show the shortest example"
    assert before <= BEFORE_EXAMPLE_MOST, "what the page is for, then the shortest example"
