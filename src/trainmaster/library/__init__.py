"""A directory for PYTHONPATH: scripts of tasks ``import trainmaster`` from it where their Python has none."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
#: On this machine: what is found there is the Trainmaster that drives the run.
DIRECTORY: Final = str(_HERE)


def library_of_nodes() -> dict[str, str]:
    """The same for nodes, as files and their text: `trainmaster.report` and `trainmaster.inference` only."""
    own = _HERE.parent
    files = {
        "trainmaster/__init__.py": _HERE / "trainmaster/__init__.py",
        "trainmaster/_own/__init__.py": own / "__init__.py",
        "trainmaster/_own/metrics_file.py": own / "metrics_file.py",
    }
    files |= {f"trainmaster/_own/inference/{file.name}": file for file in (own / "inference").glob("*.py")}
    return {name: file.read_text(encoding="utf-8") for name, file in files.items()}
