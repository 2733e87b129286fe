"""The site of docs/ can be built, and each link and anchor in it leads somewhere: what `make docs` does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("material", reason="mkdocs-material comes with `make install`")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "architecture.html").read_text().count('class="mermaid"') == 3
    short = (tmp_path / "llms.txt").read_text()
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): \S", short, re.MULTILINE)
    assert len(links) > 60
    assert [each for each in links if not (tmp_path / each).is_file()] == []
    whole = (tmp_path / "llms-full.txt").read_text()
    assert "# Quick start" in whole
    assert "development/" not in re.findall(r"<!-- (\S+) -->", whole)
