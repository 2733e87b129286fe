"""Files by what they are for: `python scripts/modules.py lease renew` prints those that have both words."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "trainmaster"
_NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def modules(words: list[str]) -> Iterator[str]:
    """A line for each file of ours: its path and the first paragraph of its docstring.

    Args:
        words: Parts of words, in any case, that the path, the docstring or the names of classes, functions
            and fields have.
    """
    for path in sorted(SOURCE.rglob("*.py")):
        place, source = path.relative_to(SOURCE), path.read_text()
        if not all(word.lower() in f"{place} {source}".lower() for word in words):
            continue  # to take a file apart takes ten times as long
        tree = ast.parse(source)
        text = ast.get_docstring(tree) or ""
        nodes = list(ast.walk(tree))
        named = [node.name for node in nodes if isinstance(node, _NAMED)]
        named += [ast.unparse(node.target) for node in nodes if isinstance(node, ast.AnnAssign)]
        spoken = " ".join((str(place), text, *named)).lower()
        if all(word.lower() in spoken for word in words):
            yield f"{place}: {' '.join(text.split(2 * chr(10))[0].split())}"


if __name__ == "__main__":
    print("\n".join(modules(sys.argv[1:])) or "no file has all these words: try fewer, or a part of one")
