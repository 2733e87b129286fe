"""Count phrases that readers stumble over, by package of src/trainmaster and in the documentation.

    python scripts/count_phrases.py [PHRASE...] [--json]

A test holds each phrase's sum: `tests/unit/docs/test_phrases.py`.
"""

import argparse
import collections
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PHRASES = ("nobody", "told of", "likewise", "is no more", "are no more", "as it is", "anew")
WRITTEN = {".py", ".html", ".js", ".md"}


def texts() -> Iterator[tuple[str, str]]:
    """Each file that is written by hand: its package or `docs`, and its text."""
    house = ROOT / "src/trainmaster"
    for path in house.rglob("*"):
        if path.suffix in WRITTEN and path.is_file():
            parts = path.relative_to(house).parts
            yield (parts[0] if len(parts) > 1 else "."), path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        if path.name != "CHANGELOG.md":
            yield "docs", path.read_text(encoding="utf-8")


def count(phrases: Iterable[str]) -> dict[str, collections.Counter[str]]:
    """Phrase -> how often it stands in each package."""
    found = {phrase: collections.Counter[str]() for phrase in phrases}
    for package, text in texts():
        for phrase, counts in found.items():
            counts[package] += len(re.findall(rf"\b{re.escape(phrase)}\b", text, re.IGNORECASE))
    return found


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("phrases", nargs="*", default=PHRASES)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = count(options.phrases)
    if options.json:
        print(json.dumps(found))
        return
    for phrase, counts in found.items():
        where = ", ".join(f"{package} {times}" for package, times in counts.most_common() if times)
        print(f"{phrase}: {counts.total()} ({where})")


if __name__ == "__main__":
    main()
