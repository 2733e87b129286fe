"""What `trainmaster server` is while it serves."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

#: The real command, up to where it would listen.
COMMAND = """
import gc
from trainmaster.api import serving
from trainmaster.cli import main
serving.serve = lambda *_: print(gc.isenabled(), gc.get_threshold()[0] > 0)
main()
"""


def test_a_server_gives_back_what_requests_leave(tmp_path):
    """Its collector of garbage is seldom called, but on: a server without it grew with each request."""
    environ = {**os.environ, "TRAINMASTER_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", COMMAND, "server"]
    answer = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[-1] == "True True"
