"""The server that forks calls of the command line: what it starts looks like a real start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_server import REAL_VARIABLE, SEEN_VARIABLE, TRAINMASTER, Command, Commands


@pytest.fixture(autouse=True)
def not_all_are_real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REAL_VARIABLE, raising=False)
    monkeypatch.delenv(SEEN_VARIABLE, raising=False)


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    """One that has seen all verbs of these tests."""
    commands = Commands()
    commands._seen |= {"status", "run", "--version"}
    yield commands
    commands.close()


def started(commands: Commands, tm: Any, *arguments: str, **how: object) -> Command:
    process = commands.start([TRAINMASTER, *arguments], env=tm.env, cwd=tm.work, **how)
    assert isinstance(process, Command)
    return process


def test_a_fork_shows_what_a_real_start_shows(
    commands: Commands, tm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tm.task("touch $NOTES/begun; sleep 60")
    seen = []
    for real in ("", "1"):
        monkeypatch.setenv(REAL_VARIABLE, real)
        process = commands.start(
            [TRAINMASTER, "run", recipe], env=tm.env, cwd=tm.work, start_new_session=True
        )
        assert isinstance(process, Command) is not bool(real)
        proc = Path(f"/proc/{process.pid}")
        tm.until((tm.notes / "begun").exists)  # Python has set its signals long ago
        (tm.notes / "begun").unlink()
        status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines())
        seen.append(
            {
                **{name: status[name] for name in ("Name", "Umask", "SigBlk", "SigIgn")},
                **{name: (proc / name).read_bytes() for name in ("cmdline", "environ")},
                **{name: (proc / name).readlink() for name in ("cwd", "exe")},
                "session": os.getsid(process.pid) == os.getpgid(process.pid) == process.pid,
            }
        )
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert seen[0] == seen[1]


def test_exit_codes_and_streams(commands: Commands, tm: Any) -> None:
    done = commands.run([TRAINMASTER, "status", "--json"], env=tm.env, timeout=60)
    assert (done.returncode, json.loads(done.stdout), done.stderr) == (0, {"runs": []}, "")
    done = commands.run([TRAINMASTER, "status", "nope"], env=tm.env, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no run 'nope'" in done.stderr


def test_a_reader_that_is_gone(
    commands: Commands, tm: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = []
    for real in ("", "1"):
        monkeypatch.setenv(REAL_VARIABLE, real)
        reader, writer = os.pipe()
        os.close(reader)
        with (tmp_path / "err").open("w+") as err:
            process = commands.start([TRAINMASTER, "status", "--json"], env=tm.env, stdout=writer, stderr=err)
            os.close(writer)
            code = process.wait(60)
            err.seek(0)
            seen.append((code, err.read()))
    assert seen[0] == seen[1]


def test_ctrl_c_and_waiting(commands: Commands, tm: Any) -> None:
    with (tm.root / "err").open("wb") as err:
        process = started(commands, tm, "run", str(tm.task("touch $NOTES/begun; sleep 60")), stderr=err)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    tm.until((tm.notes / "begun").exists)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    tm.until_quiet()


def test_what_is_read_at_a_start_makes_it_real(commands: Commands, tm: Any) -> None:
    for env in ({**tm.env, "PYTHONPATH": "/nowhere"}, {**tm.env, "LC_ALL": "C"}):
        process = commands.start([TRAINMASTER, "--version"], env=env, stdout=subprocess.DEVNULL)
        assert isinstance(process, subprocess.Popen)
        process.wait()


def test_what_another_session_has_started_for_real_is_forked(
    tm: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(SEEN_VARIABLE, str(tmp_path))
    kinds = []
    for _session in range(2):
        commands = Commands()
        process = commands.start([TRAINMASTER, "--version"], env=tm.env, stdout=subprocess.DEVNULL)
        kinds.append(type(process))
        process.wait()
        commands.close()
    assert kinds == [subprocess.Popen, Command]


def test_it_ends_with_a_user_that_is_killed() -> None:
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); import command_server as c\n"
        "c.commands._running(); print(c.commands._server.pid, flush=True); time.sleep(600)"
    )
    where = str(Path(__file__).parent)
    with subprocess.Popen([sys.executable, "-c", program, where], stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout
        server = int(user.stdout.readline())
        assert Path(f"/proc/{server}").exists()
        user.kill()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{server}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
