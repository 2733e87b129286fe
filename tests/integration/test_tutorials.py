"""The quick start, and tutorials that need this machine only, are walked as somebody new does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from page_reader import Reader

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """Somebody with an empty home."""
    reader = Reader(tmp_path)
    yield reader
    reader.leave()


@pytest.mark.parametrize(
    "pages",
    [
        ["quickstart", "tutorials/search"],
        pytest.param(["tutorials/volume"]),
        pytest.param(["tutorials/quote"], marks=pytest.mark.crossings),
    ],
    ids=lambda pages: pages[-1].rpartition("/")[2],
)
def test_a_page_is_walked(reader: Reader, pages: list[str]) -> None:
    """What it shows is what one sees; a page that goes on with another one's files is walked after it."""
    for page in pages:
        reader.walk(DOCS / f"{page}.md")
    reader.await_ends()
