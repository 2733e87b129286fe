"""A node's program is told to end, twice: as when a login is lost while somebody cancels."""

from __future__ import annotations

import gzip
import io
import signal
import subprocess
import sys

import pytest

from trainmaster.cluster.node_files import image_orders

PROGRAM = """
import os, signal, sys, time
from trainmaster.cluster.node_files import image_orders
from trainmaster.control.attempt import local_images

def say(word):
    os.write(1, word)  # a signal may come in the midst of a print

def remove(name, engine):
    say(b"removing\\n")
    time.sleep(0.5)
    say(b"removed\\n")

local_images._remove = remove
local_images._containers_of["c"] = None
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, image_orders._ended)
say(b"ready\\n")
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


def test_an_archive_comes_in_pieces_and_is_whole_or_cut() -> None:
    data = gzip.compress(bytes(100_000) + b"end", 0)
    pieces = [data[start : start + 777] for start in range(0, len(data), 777)]
    said = b"".join(b"%d\n%s" % (len(piece), piece) for piece in pieces) + b"0\n"
    source = io.BytesIO(said + b"the next order\n")
    with gzip.open(io.BufferedReader(image_orders._SentImage(source))) as archive:
        assert archive.read() == bytes(100_000) + b"end"
    assert source.read() == b"the next order\n"
    cut = io.BufferedReader(image_orders._SentImage(io.BytesIO(said[:5000])))
    with gzip.open(cut) as archive, pytest.raises(EOFError):
        archive.read()
