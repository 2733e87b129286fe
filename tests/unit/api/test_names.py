from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import trainmaster


def test_every_name_is_there_and_known_to_type_checkers():
    tree = ast.parse(Path(trainmaster.__file__).read_text())
    typed = {
        alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert (typed - {None}) | {"report", "__version__"} == set(trainmaster.__all__) == set(dir(trainmaster))
    for name in trainmaster.__all__:
        assert getattr(trainmaster, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = trainmaster.nothing
    assert Path(trainmaster.__file__).with_name("py.typed").exists()


def test_import_and_report_load_nothing_else():
    program = """
import sys
from trainmaster import report
print(sorted(name for name in sys.modules if name.startswith("trainmaster")))
print([name for name in ("json", "typing", "dataclasses", "pydantic", "numpy") if name in sys.modules])
"""
    command = [sys.executable, "-I", "-c", program]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert out.splitlines() == ["['trainmaster', 'trainmaster.metrics_file']", "[]"]


def test_where_only_report_is_the_rest_says_so(tmp_path: Path):
    package = tmp_path / "trainmaster"
    package.mkdir()
    own = Path(trainmaster.__file__).parent
    for name in ("__init__.py", "metrics_file.py"):
        (package / name).write_text((own / name).read_text())
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import trainmaster
trainmaster.report(step=1)
try:
    from trainmaster import run
except ImportError as error:
    print(error)
"""
    command = [sys.executable, "-I", "-S", "-c", program]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "Let the experiment's `setup` install trainmaster" in out
