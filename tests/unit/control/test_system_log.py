"""What the operating system of a machine said is kept beside an attempt's logs, and the user is told so."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest
from test_saving_without_nodes import Site, context

from trainmaster.control.attempt import saving
from trainmaster.control.attempt.system_log import LIMIT_BYTES, put_system_log, system_log_command
from trainmaster.control.decide.effects import EffectKind, Job, ObservedTask, Policy
from trainmaster.control.decide.saving import recovering
from trainmaster.control.decide.saving import saving as saved
from trainmaster.control.loop.run_state import Task
from trainmaster.db.changes import Note
from trainmaster.executors.base import GangStatus, Phase
from trainmaster.spec.states import EndReason, State


@pytest.fixture
def dmesg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that has killed somebody."""
    for name, words in (("dmesg", "Out of memory: Killed process 7 (python)"), ("journalctl", "of others")):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho '{words}'\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")


@pytest.mark.usefixtures("dmesg")
@pytest.mark.parametrize("reason", [EndReason.OOM, EndReason.NODE_LOST, EndReason.USER_ERROR])
def test_of_this_machine_only_what_the_kernel_says_and_only_where_it_tells_something(
    tmp_path: Path, reason: EndReason
) -> None:
    asked = replace(context(tmp_path, None), end_reason=reason)
    job = saving.recover(asked)
    kept = list(asked.place.directory.glob("system-*.log"))
    if reason is EndReason.USER_ERROR:
        assert (job.note, kept) == ("", [])
        return
    (path,) = kept
    assert "==> dmesg -T\nOut of memory: Killed process 7 (python)\n" in path.read_text()
    assert "of others" not in path.read_text(), "its journal is of all that its users do"
    assert job.note == (
        f"what the operating system said is kept in {path.name}: "
        "`trainmaster logs digits-7f3a --system` shows it"
    )


@pytest.mark.usefixtures("dmesg")
def test_a_machine_that_others_use_too_is_not_told_to_them(tmp_path: Path) -> None:
    asked = replace(context(tmp_path, None), end_reason=EndReason.OOM, is_foreign=True)
    assert saving.recover(asked).note == ""
    assert not list(asked.place.directory.glob("system-*.log"))


def test_a_site_keeps_those_of_its_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(has_model=False)
    asked = replace(context(tmp_path, site), end_reason=EndReason.NODE_LOST)
    monkeypatch.setattr(site, "keep_system_logs", lambda c: put_system_log(c.place, "i-07", "panic\n"))
    assert "system-i-07.log" in saving.recover(asked).note


def test_a_file_has_the_last_whole_lines(tmp_path: Path) -> None:
    place = context(tmp_path, None).place
    path = put_system_log(place, "../a b:22", "".join(f"line {number}\n" for number in range(50_000)))
    assert path.parent == place.directory
    assert path.name == "system-.._a_b_22.log"
    text = path.read_text()
    assert LIMIT_BYTES - 20 < len(text) <= LIMIT_BYTES
    assert text.startswith("line ")
    assert text.endswith("line 49999\n")


def test_of_which_machines_what_is_asked() -> None:
    rented, shared = system_log_command(is_rented=True), system_log_command(is_rented=False)
    assert "journalctl -b" in rented
    assert "sudo -n" in rented
    assert "dmesg" in shared
    assert not any(word in shared for word in ("journalctl", "sudo", "/var/log"))
    of_the_lab = system_log_command(is_rented=True, has_own_kernel=False)
    assert "/var/log" in of_the_lab
    assert not any(word in of_the_lab for word in ("journalctl", "dmesg"))


@pytest.mark.parametrize("state", [State.RECOVERING, State.SAVING])
def test_whoever_looks_at_the_run_is_told(state: State) -> None:
    """Whether another attempt follows or not."""
    task = Task("train", 0, state, 1, end_reason=EndReason.OOM)
    seen = ObservedTask(
        gang=GangStatus("r/train/0/1", Phase.EXITED),
        jobs={EffectKind.RECOVER: Job(done=True, note="what it said is kept")},
    )
    steps = recovering(task, seen, 9.0) if state is State.RECOVERING else saved(task, seen, Policy(), 9.0)
    assert [step.message for step in steps if isinstance(step, Note)] == ["what it said is kept"]
