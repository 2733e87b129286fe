"""What programs say is read as it comes; what they have begun ends with them."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from contextlib import suppress

from trainmaster.spec import processes
from trainmaster.spec.processes import said_by


def started(line):
    return subprocess.Popen(["bash", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_what_a_program_says_is_read_to_its_end_though_others_hold_its_pipes():
    """Of two pipes; what it leaves behind goes on and says more, which is not waited for."""
    said = [b"", b""]
    with started("printf 'y\\ny\\n' >&2; yes >&2 & echo $!; head -c 3000000 /dev/zero; echo end") as program:
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


def test_what_a_program_begins_while_it_is_ended_ends_too(monkeypatch):
    """The next command of a script, which starts when all were listed and none has been ended."""
    list_all, late = processes.begun_by, []

    def list_and_let_it_begin(pid):
        listed = list_all(pid)
        if not late:
            os.kill(pid, signal.SIGUSR1)
            late.append(os.pidfd_open(int(program.stdout.readline())))
        return listed

    script = "trap 'sleep 600 >/dev/null & echo $!; wait' USR1; echo ready; read -r _"
    with subprocess.Popen(
        ["bash", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as program:
        assert program.stdout.readline() == b"ready\n"
        monkeypatch.setattr(processes, "begun_by", list_and_let_it_begin)
        processes.end_begun_by(program.pid, signal.SIGTERM)
        assert program.wait() == -signal.SIGTERM
    try:
        with selectors.DefaultSelector() as ends:
            ends.register(late[0], selectors.EVENT_READ)
            assert ends.select(10), "what it began is there"
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(late[0], signal.SIGKILL)
        os.close(late[0])


def test_what_a_signal_does_not_reach_is_not_asked_again_for_all_that_it_begins(monkeypatch):
    """A program of another user, as by sudo, whose next command is there at each look."""
    monkeypatch.setattr(processes, "begun_by", lambda pid: [pid, *range(2**22 + 1, next(looks))])
    looks = iter(range(2**22 + 2, 2**22 + 100))
    with started("sleep 600") as program:
        processes.end_begun_by(program.pid, signal.SIGTERM)
        assert program.wait() == -signal.SIGTERM
    assert next(looks) == 2**22 + 4, "it was looked at twice"
