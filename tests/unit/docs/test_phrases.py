"""Phrases that readers stumble over do not come back: `scripts/count_phrases.py` counts them."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

COUNT = runpy.run_path(str(Path(__file__).resolve().parents[3] / "scripts/count_phrases.py"))["count"]
#: At most so often in the source and the documentation together. Only ever lower these.
MOST = {
    "nobody": 72,
    "told of": 2,
    "likewise": 0,
    "is no more": 3,
    "are no more": 1,
    "as it is": 114,
    "anew": 71,
}


@pytest.fixture(scope="module")
def counted():
    return COUNT(MOST)


@pytest.mark.parametrize("phrase", MOST)
def test_a_phrase_does_not_spread(counted, phrase):
    counts = counted[phrase]
    assert counts.total() <= MOST[phrase], f"{phrase!r}: write it in plain words; now {dict(counts)}"
