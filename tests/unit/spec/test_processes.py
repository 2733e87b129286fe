"""What programs say is read as it comes."""

from __future__ import annotations

import os
import signal
import subprocess

from trainmaster.spec.processes import said_by


def started(line):
    return subprocess.Popen(["bash", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_what_a_program_says_is_read_to_its_end_though_others_hold_its_pipes():
    """Of two pipes; what it leaves behind goes on and says more, which is not waited for."""
    said = [b"", b""]
    with started("yes >&2 & echo $!; head -c 3000000 /dev/zero; echo end") as program:
        for which, piece in said_by(program, program.stdout, program.stderr, look_s=30):
            said[which] += piece
        assert program.returncode == 0
        left, _, rest = said[0].partition(b"\n")
        os.kill(int(left), signal.SIGKILL)
    assert (len(rest), rest[-4:]) == (3_000_004, b"end\n")
    assert said[1].startswith(b"y\ny\n")


def test_who_waits_for_a_program_that_says_nothing_is_asked_again():
    with started("sleep 600") as program:
        assert next(said_by(program, program.stdout, look_s=0)) == (0, b"")
        program.kill()
