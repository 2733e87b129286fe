"""The program of a Slurm node: what it takes for left by a run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from trainmaster.providers.slurm import scripts


def left_here(directory: Path) -> list[str]:
    """The processes that the node's program finds."""
    found = re.search(r"^left_here\(\) .*?^}", scripts._text("node.sh"), re.DOTALL | re.MULTILINE)
    assert found
    words = ["bash", "-c", f"dir=$1\n{found[0]}\nleft_here", "bash", str(directory)]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()


def test_what_a_run_has_left_is_found_and_the_search_itself_is_not(tmp_path: Path) -> None:
    # The search's own shell here has the directory as a word, but without the slash.
    assert left_here(tmp_path) == []
    (tmp_path / "log").touch()
    with subprocess.Popen(["tail", "-f", tmp_path / "log"], stderr=subprocess.DEVNULL) as running:
        try:
            assert left_here(tmp_path) == [str(running.pid)]
        finally:
            running.kill()
