import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import trainmaster

SOURCE = Path(trainmaster.__file__).parent
PACKAGES = sorted(
    "trainmaster." + ".".join(path.parent.relative_to(SOURCE).parts)
    for path in SOURCE.rglob("__init__.py")
    if "lazy_exports(" in path.read_text()
)


def test_they_are_found():
    assert {"trainmaster.volumes", "trainmaster.artifacts", "trainmaster.providers"} <= set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there_and_known_to_type_checkers(package):
    module = import_module(package)
    tree = ast.parse(Path(module.__file__).read_text())
    typed = {
        alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert typed - {None} == set(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


def test_importing_them_loads_nothing():
    program = f"""
import sys, trainmaster
before = set(sys.modules)
for package in {PACKAGES}:
    __import__(package)
print(sorted(name for name in set(sys.modules) - before if name.startswith("trainmaster.")))
print([name for name in ("obstore", "numpy", "asyncssh", "sqlalchemy", "pathspec") if name in sys.modules])
from trainmaster.artifacts import take_snapshot, publish, fetch, CheckpointSeries
print([name for name in ("obstore", "pathspec", "zipfile", "concurrent.futures") if name in sys.modules])
"""
    environment = {"PYTHONPATH": ":".join(sys.path)}
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, env=environment)
    loaded, heavy, later = result.stdout.decode().splitlines()
    above = {package.rpartition(".")[0] for package in PACKAGES} - {"trainmaster"}
    assert set(ast.literal_eval(loaded)) == {*PACKAGES, *above, "trainmaster.lazy"}
    assert (heavy, later) == ("[]", "[]")


def test_a_regular_expression_is_made_when_it_is_used_and_then_as_fast():
    program = """
import re, trainmaster.spec.units as units
print([each for each in re._cache if "USD" in str(each[1])])
found = units._DOLLARS
print(found.fullmatch("$ 3")[1], found.fullmatch("3 usd")[2], "fullmatch" in vars(found))
"""
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert said.stdout == "[]\n3 3 True\n"
