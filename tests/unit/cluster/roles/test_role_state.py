"""What a machine keeps of its roles, and how what was left is ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.cluster.roles.node_roles import RoleState, end_command, read_command, write_command
from trainmaster.control.checks.ansible import CALL_VARIABLE


def shell(command: str) -> str:
    return subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True).stdout


def test_a_role_that_was_begun_is_not_had_until_it_has_ended() -> None:
    state = RoleState().ended({"base": "1", "java": "1"})
    assert not state.lacks({"base": "1"})
    assert state.lacks({"base": "2"})
    begun = state.begun({"base": "2"}, "/tmp/tm-x")
    assert begun.lacks({"base": "1"})  # who goes back to the old one gets it again
    assert not begun.lacks({"java": "1"})
    assert not begun.ended({"base": "2"}).lacks({"base": "2", "java": "1"})


def test_the_file_is_replaced_and_read(tmp_path: Path) -> None:
    root = str(tmp_path / "it's ä root")
    assert RoleState.from_text(shell(read_command(root))) == RoleState()
    state = RoleState({"röles/base": "1"}, "/tmp/tm-x")
    for wanted in (RoleState(), state):
        shell(write_command(root, wanted))
        assert RoleState.from_text(shell(read_command(root))) == wanted


@given(st.text() | st.sampled_from(["[]", "3", '{"have": 3}', '{"have": {"a": []}, "call": 4}']))
def test_whatever_stands_there_can_be_read(text: str) -> None:
    RoleState.from_text(text).lacks({"a": "1"})


def test_what_a_call_left_is_ended_and_nothing_else() -> None:
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    variables = [{CALL_VARIABLE: "/tmp/tm-left"}, {CALL_VARIABLE: "/tmp/tm-other"}]
    running = [
        subprocess.Popen(command, env={**os.environ, **each}, stdout=subprocess.PIPE) for each in variables
    ]
    try:
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        shell(end_command("/tmp/tm-left"))
        assert running[0].wait() != 0
        assert running[1].poll() is None
    finally:
        for process in running:
            process.kill()
            process.communicate()
