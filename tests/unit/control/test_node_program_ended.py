"""A node's program is told to end, twice: as when a login is lost while somebody cancels."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import signal, sys, time
from trainmaster.control import node_program, local_images

def remove(name, engine):
    print("removing", flush=True)
    time.sleep(0.5)
    print("removed", flush=True)

local_images._remove = remove
local_images._containers_of["c"] = None
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, node_program._ended)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_does_not_keep_it_from_ending(second: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "removing\n"
            process.send_signal(second)
            assert process.wait(10) == 128 + signal.SIGTERM
            assert process.stdout.read() == "removed\n", "once, and to its end"
        finally:
            process.kill()
