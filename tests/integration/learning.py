"""What the tests of frameworks share: is it installed, and did it learn?"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest


def needs(*modules: str) -> None:
    """Skip where a module is not installed; without importing it, which takes seconds."""
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


def put_digits(folder: Path) -> None:
    """The set of digits as ``digits.npz``: a process that imports scikit-learn for it takes two seconds."""
    needs("sklearn")
    place = Path(str(find_spec("sklearn").origin)).parent / "datasets" / "data" / "digits.csv.gz"
    rows = np.loadtxt(place, delimiter=",")
    np.savez(folder / "digits.npz", data=rows[:, :-1], target=rows[:, -1].astype(int))


def losses(log: str) -> list[float]:
    """All that a script printed as ``loss VALUE``; not the line ``loss = ...`` that a traceback shows."""
    return [float(found) for found in re.findall(r"loss ([\w.+-]+)", log)]


def check_it_learned(log: str, first: float = 2.0, last: float = 0.7) -> None:
    """The loss began above the one and ended below the other."""
    assert losses(log)[0] > first, log
    assert losses(log)[-1] < last, log
