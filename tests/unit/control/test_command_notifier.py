from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from contextlib import suppress

import pytest

from trainmaster.control.notes.notifier import CommandNotifier, make_notifier
from trainmaster.spec.errors import TrainmasterError, UsageError
from trainmaster.testing.notifier_contract import TASK, NotifierContract


class TestCommand(NotifierContract):
    @pytest.fixture
    def make(self, tmp_path):
        return lambda: make_notifier("command", f"cat >> {tmp_path}/told", os.environ)

    @pytest.fixture
    def told(self, tmp_path):
        return lambda: [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]

    @pytest.fixture
    def refusing(self):
        return CommandNotifier("cat; false", os.environ)

    @pytest.fixture
    def hanging(self):
        return CommandNotifier("sleep 60 | sleep 60", os.environ)


class TestWords(TestCommand):
    """As a chat gets them: a line for people."""

    tells_words = True

    @pytest.fixture
    def make(self, tmp_path):
        words = "{run} {experiment}/{task} {after} {reason}: {message!r}"
        code = f"import json, sys; print({words!r}.format(**json.load(sys.stdin)))"
        command = f"{sys.executable} -c {shlex.quote(code)} >> {tmp_path}/told"
        return lambda: make_notifier("command", command, os.environ)

    @pytest.fixture
    def told(self, tmp_path):
        return lambda: (tmp_path / "told").read_text().splitlines()


def test_its_last_words_are_told():
    command = "echo one >&2; echo no https://me:$PW@host >&2; exit 3"
    with pytest.raises(TrainmasterError, match=r"code 3: one\nno https://\*\*\*@host$"):
        CommandNotifier(command, {**os.environ, "PW": "secret"}).send(TASK, 10)


def test_a_command_that_reads_nothing_has_taken_it():
    CommandNotifier('test "$TRAINMASTER_MESSAGE_ID" = r-1.8.0', os.environ).send(TASK, 10)


def test_what_it_leaves_in_the_background_is_not_waited_for(tmp_path):
    """A background process keeps stderr open; ssh leaves such ones."""
    CommandNotifier(
        f"sleep 600 & echo $! > {tmp_path}/pid; yes >&2 & echo $! >> {tmp_path}/pid", os.environ
    ).send(TASK, 10)
    for pid in (tmp_path / "pid").read_text().split():
        with suppress(ProcessLookupError):  # nobody reads what it says
            os.kill(int(pid), signal.SIGKILL)


def test_much_that_it_says_is_not_kept():
    with pytest.raises(TrainmasterError, match=r"code 3: .{200,300}$"):
        CommandNotifier("head -c 10000000 /dev/zero | tr '\\0' x >&2; exit 3", os.environ).send(TASK, 60)


def test_an_unknown_name_is_refused():
    with pytest.raises(UsageError, match="there is no notifier 'comand'"):
        make_notifier("comand", "x", {})
