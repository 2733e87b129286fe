"""Rules for the tests themselves, read from their text: what a busy machine breaks proves nothing."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_KINDS = ("monotonic", "time", "perf_counter", "process_time", "thread_time")
CLOCKS = {f"{kind}{suffix}" for kind in _KINDS for suffix in ("", "_ns")}
_REFERENCE = re.compile(r"(?<!`)`(trainmaster(?:\.\w+)+)`(?!`)")
_PUBLIC_CLASS = re.compile(r"^ *class ([A-Za-z]\w*)", re.MULTILINE)
_READS_CLOCK = re.compile(rf"\b({'|'.join(CLOCKS)})\(")
#: Asserts about a time that passed, by file: how many, and why no busy machine breaks them.
TIMED = {
    "tests/integration/volumes/test_peers_slow_line.py": (3, "at least, by the clock that it waits by"),
    "tests/integration/lab/test_lab_hosts.py": (1, "at least: the kernel lets no more through"),
    "tests/integration/lab/test_lab_trouble.py": (1, "at least: the API was told to be late"),
    "src/trainmaster/testing/executor_contract_gangs.py": (1, "at least: it waits for changes"),
}
#: Sleeps of unit tests, by file: how many, and why nothing can be waited for instead.
SLEEPS: dict[str, tuple[int, str]] = {}


def is_written(name: str) -> bool:
    """Whether a module has such a name, or is one, by the text of its file."""
    path, rest = ROOT / "src", name.split(".")
    while rest and (path / rest[0]).is_dir():
        path /= rest.pop(0)
    file = path / "__init__.py"
    if rest and (path / f"{rest[0]}.py").exists():
        file = path / f"{rest.pop(0)}.py"
    return all(re.search(rf"\b{part}\b", file.read_text()) for part in rest)


def timed_asserts(source: str) -> list[int]:
    """Lines of asserts that compare how long something took, and not a clock with a wait's own end."""
    if not _READS_CLOCK.search(source):  # parsing all files takes seconds
        return []
    tree = ast.parse(source)
    took = _took(tree)
    asserts = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    return sorted(
        node.lineno
        for node in asserts
        if any(isinstance(each, ast.Compare) and _is_timed(each, took) for each in ast.walk(node.test))
    )


def sleeps(source: str) -> list[int]:
    """Lines that sleep, or import `sleep` by its name."""
    if "sleep" not in source:
        return []
    nodes = list(ast.walk(ast.parse(source)))
    calls = [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("time.sleep", "asyncio.sleep")
        and ast.unparse(node) != "asyncio.sleep(0)"  # lets other tasks run
    ]
    imports = [
        node.lineno
        for node in nodes
        if isinstance(node, ast.ImportFrom) and any(each.name == "sleep" for each in node.names)
    ]
    return sorted(calls + imports)


def _is_clock(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="time"), attr=name)):
            return name in CLOCKS
        case ast.Call(func=ast.Name(id=name)):
            return name in CLOCKS - {"time"}
        case _:
            return False


def _is_timed(compare: ast.Compare, took: set[str]) -> bool:
    sides = [compare.left, *compare.comparators]
    if any(_has_difference(side, took) for side in sides):
        return True
    about = [side for side in sides if "approx" in ast.unparse(side)]
    if any(_is_clock(each) for side in about for each in ast.walk(side)):
        return True
    # A clock alone with a margin on the other side: `time.monotonic() < began + 5`.
    return any(map(_is_clock, sides)) and any(isinstance(side, ast.BinOp) for side in sides)


def _has_difference(node: ast.AST, took: set[str]) -> bool:
    for each in ast.walk(node):
        match each:
            case ast.BinOp(left=left, op=ast.Sub(), right=right) if _is_clock(left):
                if not isinstance(right, ast.Constant):  # that is a moment, some seconds ago
                    return True
            case ast.Name(id=name) if name in took:
                return True
            case _:
                pass
    return False


def _took(tree: ast.Module) -> set[str]:
    """Names of what holds a time that passed: assigned, appended, or returned by a function of this name."""
    holders = [holder for node in ast.walk(tree) for holder in _holders(node)]
    found: set[str] = set()
    while more := {name for name, value in holders if name not in found and _has_difference(value, found)}:
        found |= more
    return found


def _holders(node: ast.AST) -> list[tuple[str, ast.expr]]:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return [(name, value)]
        case ast.Assign(targets=[ast.Tuple(elts=parts)], value=value):  # these carry their unit
            names = [part.id for part in parts if isinstance(part, ast.Name)]
            return [(name, value) for name in names if name.endswith("_s")]
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value]):
            return [(name, value)]
        case ast.FunctionDef(name=name):
            returns = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
            return [(name, value) for value in returns if value is not None]
        case _:
            return []


def _counted(folders: list[str], find: Callable[[str], list[int]]) -> dict[str, list[int]]:
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {str(path.relative_to(ROOT)): find(path.read_text(encoding="utf-8")) for path in paths}
    return {path: lines for path, lines in found.items() if lines}


def _surplus(found: dict[str, list[int]], allowed: dict[str, tuple[int, str]]) -> list[str]:
    """Files whose number is another one than what is allowed, with their lines."""
    numbers = {name: allowed.get(name, (0, ""))[0] for name in sorted({*found, *allowed})}
    return [
        f"{name}: lines {found.get(name, [])}, {number} allowed"
        for name, number in numbers.items()
        if len(found.get(name, [])) != number
    ]


def test_no_test_asserts_how_long_something_took() -> None:
    """Say what happened instead: who was called, how often, in which order, before which event."""
    assert _surplus(_counted(["tests", "src/trainmaster/testing"], timed_asserts), TIMED) == []


def test_no_unit_test_sleeps() -> None:
    """Wait for an event or a condition (`trainmaster.testing.waits.until`), or give it a clock."""
    assert _surplus(_counted(["tests/unit"], sleeps), SLEEPS) == []


def test_no_two_classes_have_one_name() -> None:
    """Doubles, and what the lab has, say so."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for name in _PUBLIC_CLASS.findall(path.read_text(encoding="utf-8")):
            found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


#: Where engines are joined to the rest: they may be named there.
ENGINES_NAMED = {"spec/frameworks.py", "spec/recipe.py"}
#: What works with any engine. Elsewhere Ray is a framework, or a place of machines, too.
ENGINELESS = ("artifacts", "cluster", "control", "db", "executors", "service/driving", "service/on_cluster")
_ENGINE_MODULE = re.compile(r"\bexecutors[./](ray|ssh)\b")
_RAY = re.compile(r"\bray\b|\bRay\w*\b|\bRAY_")


def test_no_engine_is_named_outside_its_folder() -> None:
    """Who needs something of an engine's asks its `RecordedCluster`."""
    found = []
    for path in sorted((ROOT / "src" / "trainmaster").rglob("*.py")):
        name = path.relative_to(ROOT / "src" / "trainmaster").as_posix()
        own = _ENGINE_MODULE.match(name)
        if own or name in ENGINES_NAMED or name.startswith(("lab/", "testing/")):
            continue
        rules = [_ENGINE_MODULE] + [_RAY] * name.startswith(tuple(f"{each}/" for each in ENGINELESS))
        lines = path.read_text(encoding="utf-8").splitlines()
        found += [
            f"{name}:{number}: {line.strip()}"
            for number, line in enumerate(lines, 1)
            if any(rule.search(line) for rule in rules)
        ]
    assert found == []


def test_what_docstrings_refer_to_is_there() -> None:
    """Names in full, in backquotes: what was renamed is renamed there, too."""
    found = {name for file in (ROOT / "src").rglob("*.py") for name in _REFERENCE.findall(file.read_text())}
    assert len(found) > 50
    assert [name for name in sorted(found) if not is_written(name)] == []


@pytest.mark.parametrize("folder", ["tests/integration", "tests/contract", "benchmarks", "scripts"])
def test_what_tests_and_benchmarks_import_is_there(folder: str) -> None:
    """Those of integration run for half an hour: a name that has moved is to be noticed before.

    So is an argument: nothing reads the types of benchmarks.
    """
    missing, unfit = [], []
    for path in sorted((ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text())
        found = imported(tree)
        at = path.relative_to(ROOT)
        missing += [
            f"{at}: {module}.{name}" for module, name in found.values() if not _is_there(module, name)
        ]
        unfit += [f"{at}:{each}" for each in unfit_calls(tree, found)] if not missing else []
    assert missing == []
    assert unfit == []


def imported(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Names of ours that a file imports: of which module, and how they are called there."""
    return {
        each.asname or each.name: (str(node.module), each.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "trainmaster"
        for each in node.names
    }


def unfit_calls(tree: ast.Module, found: dict[str, tuple[str, str]]) -> list[str]:
    """Calls of such names with arguments that they do not take, or without those that they need."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    unfit = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id not in found.keys() - own:
            continue
        if any(isinstance(each, ast.Starred) for each in node.args) or None in (k.arg for k in node.keywords):
            continue  # who knows
        module, name = found[node.func.id]
        with contextlib.suppress(ValueError):  # it does not tell what it takes
            taken = inspect.signature(getattr(import_module(module), name))
            try:
                taken.bind(*node.args, **{str(each.arg): None for each in node.keywords})
            except TypeError as error:
                unfit.append(f"{node.lineno}: {name}: {error}")
    return unfit


def test_calls_that_do_not_fit_are_found() -> None:
    """One with an argument too many, one without what is needed."""
    text = "from trainmaster.spec.private_files import short_digest as it\nit('a')\nit()\nit('a', tls=1)\n"
    tree = ast.parse(text)
    assert [each.partition(":")[0] for each in unfit_calls(tree, imported(tree))] == ["3", "4"]


def below_main(text: str) -> list[int]:
    """Lines of what stands below `if __name__ == "__main__"` at the top: a program would not know it."""
    body = ast.parse(text).body
    mains = [
        at for at, node in enumerate(body) if isinstance(node, ast.If) and "__main__" in ast.dump(node.test)
    ]
    return [node.lineno for node in body[mains[0] + 1 :]] if mains else []


def test_nothing_stands_below_a_main_block() -> None:
    """A module that is joined to another goes above it."""
    files = [file for file in (ROOT / "src").rglob("*.py") if "__main__" in file.read_text()]
    assert len(files) > 5
    assert {str(file): lines for file in files if (lines := below_main(file.read_text()))} == {}
    assert below_main("if __name__ == '__main__':\n    main()\nX = 1\n") == [3]


def test_files_of_one_call_have_names_of_their_own() -> None:
    """Two modules of one name cannot be imported into one process: nothing of that call would run."""
    for part in ("unit", "contract", "integration"):
        names = [path.name for path in (ROOT / "tests" / part).rglob("test_*.py")]
        assert sorted(set(names)) == sorted(names), part


def test_folders_with_a_conftest_each_go_into_one_call() -> None:
    """The first two that doctests were looked for in had one module name, and the call ended there."""
    folders = sorted({str(path.parent) for path in (ROOT / "tests").rglob("conftest.py")})
    assert len(folders) > 5
    only_those = ["--collect-only", "--ignore-glob=*/test_*.py", "-p", "no:cacheprovider", *folders]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *only_those], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout


def test_nothing_imports_a_conftest() -> None:
    """Which of several is meant depends on the folders of the call: `make crossings` ended there."""
    pattern = re.compile(r"^(?!if TYPE_CHECKING:).*\n\s*(?:from|import) conftest\b", re.MULTILINE)
    assert [str(path) for path in (ROOT / "tests").rglob("*.py") if pattern.search(path.read_text())] == []


def _is_there(module: str | None, name: str) -> bool:
    there = import_module(str(module))
    return hasattr(there, name) or (hasattr(there, "__path__") and find_spec(f"{module}.{name}") is not None)


@pytest.mark.parametrize(
    "body",
    [
        "assert time.monotonic() - began < 5",
        "took_s = time.perf_counter() - began\nassert 0 < took_s < 5",
        "took = []\ntook.append(time.process_time() - began)\nassert min(took) < 0.05",
        "worst = 0.0\nworst = max(worst, time.time() - float(line))\nlater = worst\nassert later < 2",
        "def got():\n    return data, time.monotonic() - began\nassert got()[1] >= 1",
        "def got():\n    return data, time.monotonic() - began\ndata, took_s = got()\nassert took_s < 1",
        "assert ended_at == pytest.approx(time.time(), abs=5)",
        "assert time.time() >= before + 1",
        "assert monotonic() < began + 5",
    ],
)
def test_it_finds_asserts_about_time(body: str) -> None:
    assert timed_asserts(body) == [len(body.splitlines())]


@pytest.mark.parametrize(
    "body",
    [
        "assert time.monotonic() < deadline, what",
        "assert machine.ended_at - machine.started_at == 5",
        "assert before <= ended_at <= time.time()",
        "assert store.acquire('r-1', time.time() + 7200) is None",
        "machine = Machine(started_at=time.time() - 3600)\nassert machine.started_at < 5",
        "def got():\n    return data, time.monotonic() - began\ndata, took_s = got()\nassert data == 1",
    ],
)
def test_it_lets_waits_and_told_moments_be(body: str) -> None:
    assert timed_asserts(body) == []


def test_it_finds_sleeps() -> None:
    assert sleeps("event.wait(1)\ntime.sleep(1)\nprogram = 'time.sleep(60)'\nawait asyncio.sleep(1)") == [
        2,
        4,
    ]
    assert sleeps("await asyncio.sleep(0)") == []
    assert sleeps("from time import sleep") == [1]
