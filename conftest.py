"""What the examples in docstrings need."""

from __future__ import annotations

from pathlib import Path

SOURCE = Path(__file__).parent / "src"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """A module without an example is not imported to look for some: that takes seconds, in each process."""
    if SOURCE not in collection_path.parents or collection_path.suffix != ".py":
        return None
    return None if ">>> " in collection_path.read_text(encoding="utf-8") else True
