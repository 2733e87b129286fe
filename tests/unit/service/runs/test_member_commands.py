"""`MemberCommand`: ends with the process that it is for."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from multiprocessing.connection import wait

import pytest

#: Starts a command, says its number, and is killed.
SERVER = """
import asyncio, os, signal
from trainmaster.service.runs.member_commands import MemberCommand
from trainmaster.service.shells import MemberShell
async def work():
    running = MemberCommand(MemberShell(("/bin/sh", "-c", "echo $$; exec sleep 600"), "", dict(os.environ)))
    await running.start()
    async for _, said in running.read(100):
        os.write(1, said)
        os.read(0, 1)
asyncio.run(work())
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="there is no `setpriv`")
def test_a_command_without_a_terminal_ends_with_a_server_that_is_killed():
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=pipe, stdout=pipe) as server:
        command = int(server.stdout.readline())
        watched = os.pidfd_open(command)
        try:
            server.kill()
            assert wait([watched], 60)
        finally:
            if not wait([watched], 0):
                signal.pidfd_send_signal(watched, signal.SIGKILL)
            os.close(watched)
