"""What `trainmaster server` is while it serves."""

import os
import platform
import subprocess
import sys

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

#: The real command, up to where it would listen.
COMMAND = """
import ctypes, gc, threading
from trainmaster.api import serving
from trainmaster.cli import main


def serve(*_):
    print(gc.isenabled(), gc.get_threshold()[0] > 0, flush=True)
    start = threading.Barrier(12)

    def answer():
        start.wait()
        kept = [bytearray(2000) for _ in range(2000)]
        start.wait()

    threads = [threading.Thread(target=answer) for _ in range(12)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_info"):
        libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
        libc.fflush(None)


serving.serve = serve
main()
"""


def test_a_server_gives_back_what_requests_leave(tmp_path):
    """Its collector of garbage is seldom called, but on, and its threads share what the allocator keeps.

    A server without the one grew with each request, and one without the other with each thread that answered.
    """
    environ = {**os.environ, "TRAINMASTER_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", COMMAND, "server"]
    answer = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    assert "True True" in answer.stdout.splitlines()
    if platform.libc_ver()[0] == "glibc":
        assert answer.stdout.count("<heap ") == 2
