"""Count lines of code under src/trainmaster: no docstrings, comments, blank lines, `lab/` and `testing/`.

    python scripts/count_lines.py [COMMIT] [--json]

Without a commit, the working tree is counted.
"""

import argparse
import ast
import collections
import io
import json
import pathlib
import subprocess
import tarfile
import tokenize
from collections.abc import Iterator

ROOT = "src/trainmaster"
LEFT_OUT = ("lab", "testing")
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """How many lines of `source` hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if ast.get_docstring(node, clean=False) is not None and first is not None:
                lines.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def files(commit: str | None) -> Iterator[tuple[str, str]]:
    """Each Python file under `ROOT` with its text: of a commit, or of the working tree."""
    if commit is None:
        for path in pathlib.Path(ROOT).rglob("*.py"):
            yield path.as_posix(), path.read_text(encoding="utf-8")
        return
    archive = subprocess.run(["git", "archive", commit, ROOT], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.name.endswith(".py") else None
            if content is not None:
                yield member.name, content.read().decode()


def count(commit: str | None) -> dict[str, int]:
    """Lines of code by package; what lies beside the packages counts as `.`."""
    lines: collections.Counter[str] = collections.Counter()
    for path, text in files(commit):
        package, slash, _ = path.removeprefix(f"{ROOT}/").partition("/")
        if package not in LEFT_OUT:
            lines[package if slash else "."] += code_lines(text)
    return dict(sorted(lines.items()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("commit", nargs="?", help="a commit, tag or branch; default: the working tree")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    packages = count(arguments.commit)
    total = sum(packages.values())
    if arguments.json:
        print(json.dumps({"total": total, "packages": packages}))
    else:
        print("\n".join(f"{lines:7,} {name}" for name, lines in {**packages, "total": total}.items()))
