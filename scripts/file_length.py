"""Fail when a Python file is longer than one noun should be (600 lines; aim at 400)."""

import pathlib
import sys

LIMIT_LINES = 600

long_files = [
    f"{path}: {count} lines"
    for folder in ("src", "tests", "benchmarks", "examples", "scripts")
    for path in sorted(pathlib.Path(folder).rglob("*.py"))
    if (count := len(path.read_text(encoding="utf-8").splitlines())) > LIMIT_LINES
]
if long_files:
    sys.exit(f"over {LIMIT_LINES} lines, split by noun:\n" + "\n".join(long_files))
