"""The examples of docs/extend pass the contracts that their pages say they pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXTEND = Path(__file__).resolve().parents[3] / "docs/extend"
_FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_examples_keep_their_contracts(tmp_path):
    """In one process: each of pytest takes two seconds of a core to begin."""
    for page in ("launcher.md", "sampler.md", "provider.md", "notifier.md"):
        files = dict(_FILE.findall((EXTEND / page).read_text()))
        assert len(files) == 2, page
        for name, text in files.items():
            assert len(text.splitlines()) <= 150, "a part is to be written in 150 lines"
            (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/tests"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
