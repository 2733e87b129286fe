"""Fail when files import each other in a circle, be it under `TYPE_CHECKING` or inside functions.

import-linter sees imports between packages; this sees those between files of one. What is left is listed
in `LEFT`, which only gets shorter.
"""

import ast
import pathlib
import sys

SOURCE = pathlib.Path("src")
#: One line per circle: its files, sorted.
LEFT: set[tuple[str, ...]] = {
    # A simulated schedule and its parts, which see all of it: for types only, and outside of the product.
    (
        "trainmaster.testing.failures",
        "trainmaster.testing.simulated_driver",
        "trainmaster.testing.simulated_judge",
        "trainmaster.testing.simulated_saving",
        "trainmaster.testing.simulated_volumes",
    ),
}


def modules() -> dict[str, pathlib.Path]:
    """All modules under `SOURCE`, by their dotted names."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: pathlib.Path, known: dict[str, pathlib.Path]) -> set[str]:
    """Modules of ours that a file imports anywhere, itself left out.

    What a package's `__init__` imports counts only at run time: what it re-exports for type checkers is lazy.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    lazy = (
        {id(each) for node in tree.body if _for_types(node) for each in ast.walk(node)}
        if path.name == "__init__.py"
        else set()
    )
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in lazy:
            continue
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")
                above = above[: len(above) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            for each in node.names:
                found.add(f"{base}.{each.name}" if f"{base}.{each.name}" in known else base)
    return (found & known.keys()) - {name}


def _for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def circles(graph: dict[str, set[str]]) -> set[tuple[str, ...]]:
    """Strongly connected components of more than one node (Tarjan), each sorted."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = set()

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in order:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == order[node]:
            group = stack[stack.index(node) :]
            del stack[-len(group) :]
            if len(group) > 1:
                found.add(tuple(sorted(group)))

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return found


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    known = modules()
    found = circles({name: imports(name, path, known) for name, path in known.items()})
    problems = [
        f"a circle of imports, to be dissolved: {', '.join(circle)}" for circle in sorted(found - LEFT)
    ]
    problems += [
        f"no circle any more, take it off LEFT: {', '.join(circle)}" for circle in sorted(LEFT - found)
    ]
    if problems:
        sys.exit("\n".join(problems))
