"""Size of the base install: what RECORD lists of Trainmaster and all it needs, without .pyc."""

from __future__ import annotations

import re
from importlib import metadata

from common import report


def closure(name: str) -> set[str]:
    """A distribution and everything it requires without extras, by normalised name."""
    found: set[str] = set()
    todo = [name]
    while todo:
        current = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if current in found:
            continue
        try:
            requires = metadata.distribution(current).requires or []
        except metadata.PackageNotFoundError:  # only wanted on another platform
            continue
        found.add(current)
        for line in requires:
            requirement, _, marker = line.partition(";")
            if "extra ==" not in marker:
                todo.append(re.split(r"[\s<>=!~\[(]", requirement.strip(), maxsplit=1)[0])
    return found


def size_mb(name: str) -> float:
    """Bytes in RECORD that are not compiled Python, in MB."""
    files = metadata.distribution(name).files or []
    return sum(file.size or 0 for file in files if file.suffix != ".pyc") / 1e6


def main() -> None:
    sizes = {name: round(size_mb(name), 2) for name in closure("trainmaster")}
    largest = dict(sorted(sizes.items(), key=lambda item: -item[1])[:8])
    total = round(sum(sizes.values()), 1)
    result = {"total_mb": total, "packages": len(sizes), "largest_mb": largest, "targets": {"total_mb": 140}}
    report("install_size", result, largest, "MB")


if __name__ == "__main__":
    main()
