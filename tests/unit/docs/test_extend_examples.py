"""The examples of docs/extend pass the contracts that their pages say they pass; what fails says why."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXTEND = Path(__file__).resolve().parents[3] / "docs/extend"
_FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```", re.DOTALL | re.MULTILINE)


_WRONG = """
import pytest
from climbing_sampler import ClimbingSampler

from trainmaster.testing.sampler_contract import SamplerContract


class Shouting(ClimbingSampler):
    name = "SHOUTING"


class TestShouting(SamplerContract):
    @pytest.fixture
    def sampler_class(self):
        return Shouting
"""


def test_examples_keep_their_contracts_and_what_does_not_is_told_why(tmp_path):
    """In one process: each of pytest takes two seconds of a core to begin."""
    for page in ("launcher.md", "sampler.md", "provider.md", "notifier.md"):
        files = dict(_FILE.findall((EXTEND / page).read_text()))
        assert len(files) == 2, page
        for name, text in files.items():
            assert len(text.splitlines()) <= 150, "a part is to be written in 150 lines"
            (tmp_path / name).write_text(text)
    (tmp_path / "test_wrong.py").write_text(_WRONG)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/tests"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout[-4000:]
    assert re.search(r"^1 failed, \d+ passed", said, re.MULTILINE), said
    assert "'SHOUTING' = <class 'test_wrong.Shouting'>.name" in said, "values are shown to plug-ins, too"
