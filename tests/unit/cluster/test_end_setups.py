"""What still makes an environment on a host is ended, with what it begins meanwhile."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from trainmaster.cluster.node_files.files import end_setups_command
from trainmaster.control.attempt.setup import OF_VARIABLE
from trainmaster.testing.waits import until


def marked(mark: str) -> list[str]:
    """Processes with this in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            found += [path.parent.name] * (mark.encode() in path.read_bytes().split(b"\0"))
        except OSError:
            continue
    return found


def test_a_setup_that_begins_processes_all_the_time_is_ended_with_them(tmp_path: Path) -> None:
    for number in range(5):
        code = str(tmp_path / f"it's {number}")
        env = {**os.environ, OF_VARIABLE: code}
        begins = ["bash", "-c", "for n in {1..2000}; do sleep 20 & done; wait"]
        with subprocess.Popen(begins, env=env, start_new_session=True):
            until(lambda code=code: len(marked(f"{OF_VARIABLE}={code}")) > 3, "it begins some")
            subprocess.run(["sh", "-c", end_setups_command(code)], check=True)
            assert marked(f"{OF_VARIABLE}={code}") == []
