"""What speaks with a Ray, without one: what is said when it cannot begin, and to whom a run lends it."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from trainmaster.spec.errors import MissingPartError, ProviderError, UsageError
from trainmaster.testing.waits import until
from trainmaster.transport.base import Target, UnreachableError
from trainmaster.transport.ray.bundles import RayConnection, _Process
from trainmaster.transport.ray.proxy import _BOOT, RayProxy
from trainmaster.transport.ray.sharing import ProxySocket, _told, shared_connection


@dataclass(frozen=True)
class Login:
    """A `RayLogin`: a Ray of this machine."""

    python: str
    file: Path
    variables: dict[str, str] = field(default_factory=dict)
    address: str = "auto"
    login: str = ""
    via: str = ""
    key_file: Path | None = None


def fake_ray(tmp_path: Path, init: str = "pass") -> Login:
    """A Ray whose library does so when it begins; each process that does is a line of `begun`."""
    (tmp_path / "ray.py").write_text(f"__version__ = '9'\ndef init(*_, **__):\n    {init}\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho >> {tmp_path}/begun\nPYTHONPATH={tmp_path} exec python3 "$@"\n')
    python.chmod(0o755)
    return Login(str(python), tmp_path / "ray.yaml")


@pytest.mark.parametrize(
    ("program", "kind", "words"),
    [
        ("import nothing_that_is_there", MissingPartError, "has no Ray"),
        (
            "raise RuntimeError('Version mismatch: The cluster was started with: Ray: 2.9.0')",
            UsageError,
            "of another version: .*2.9.0",
        ),
        ("raise OSError('refused')", ProviderError, "does not answer: refused"),
        (
            "raise type('AuthenticationError', (Exception,), {})('no token')",
            UsageError,
            "does not know us: no token",
        ),
        (
            "import os; os._exit(1)",
            ProviderError,
            "ended what spoke with it on this machine: it says nothing",
        ),
        (
            r"import os; os.write(2, b'[x C 1 2] a.cc:8: Check failed\n\n*** StackTrace\n x\n'); os._exit(1)",
            ProviderError,
            "Ray at auto ended what spoke with it on this machine: Check failed\n",
        ),
    ],
)
def test_what_is_said_when_it_cannot_begin(
    tmp_path: Path, program: str, kind: type[Exception], words: str
) -> None:
    """Before anything starts, with what to do."""
    proxy = RayProxy(fake_ray(tmp_path, program), tmp_path)
    with pytest.raises(kind, match=words) as caught:
        proxy.ask("versions")
    assert str(tmp_path / "ray.yaml") in str(getattr(caught.value, "hint", "")) or kind is ProviderError


def test_what_speaks_with_a_ray_begins_early_and_ends_when_nobody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next question begins a new one."""
    proxy = RayProxy(fake_ray(tmp_path), tmp_path)
    proxy.ask("versions")
    assert (tmp_path / "begun").read_text() == "\n"
    monkeypatch.setattr("trainmaster.transport.ray.proxy._IDLE_S", 0.02)
    line = proxy._line
    assert line is not None
    until(lambda: line.idle_s > 0, "an answer")
    proxy._end_idle(line)
    assert line.is_over
    assert proxy.ask("versions")[0] == "9"
    assert (tmp_path / "begun").read_text() == "\n\n"
    proxy.close()


def test_a_run_lends_what_speaks_with_its_ray(tmp_path: Path) -> None:
    """Others of the home begin no process of their own while it goes on; errors are as they are without."""
    login = fake_ray(tmp_path)
    running, beside, next_run = (RayProxy(login, tmp_path) for _ in range(3))
    running.share()
    assert [proxy.ask("versions")[0] for proxy in (running, beside)] == ["9", "9"]
    with pytest.raises(
        ProviderError, match=r"^Ray: AttributeError: 'RayProxyServer' object has no attribute 'fly'"
    ):
        beside.ask("fly")
    assert (tmp_path / "begun").read_text() == "\n"
    assert (tmp_path / ".ray").stat().st_mode & 0o777 == 0o700
    running.close()
    next_run.share()
    until(lambda: beside._line is None or beside._line.is_over, "the end of that run")
    assert beside.ask("versions")[0] == "9"  # the next one lends, which has to begin
    next_run.close()
    assert list((tmp_path / ".ray").iterdir()) == []
    until(lambda: beside._line is None or beside._line.is_over, "the end of the next run")
    assert beside.ask("versions")[0] == "9"
    beside.close()
    assert (tmp_path / "begun").read_text() == "\n" * 3


def test_a_python_that_is_not_there_is_told(tmp_path: Path) -> None:
    """In the shell's words."""
    login = replace(fake_ray(tmp_path), python="/nowhere/python")
    with pytest.raises(ProviderError, match=r"this machine does not start .*: .*/nowhere/python: not found"):
        RayProxy(login, tmp_path).ask("versions")


def test_an_event_loop_dials_nothing_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stream to a machine has one: it goes on meanwhile, also to end what a lost connection has left."""
    proxy = RayProxy(fake_ray(tmp_path, "import os; os._exit(1)"), tmp_path)
    connection = RayConnection(Target("m", "0123456789ab-r1-m.0"), proxy)
    begun, dialing = proxy._begun, list[threading.Thread]()
    monkeypatch.setattr(proxy, "_begun", lambda: dialing.append(threading.current_thread()) or begun())

    async def work() -> None:
        _Process(connection).close()
        with pytest.raises(UnreachableError, match="Ray at auto ended"):
            await connection.start("true")

    asyncio.run(work())
    until(lambda: len(dialing) == 2, "both")
    assert threading.main_thread() not in dialing


class SilentLine:
    """Takes what is asked, and answers nothing."""

    is_over = False

    def __init__(self) -> None:
        self.asked = list[list[Any]]()

    def send(self, _: str, args: tuple[Any, ...]) -> Future[Any]:
        """As `_Line` does."""
        self.asked.append(list(args[2:]))
        answer = Future[Any]()
        answer.set_running_or_notify_cancel()
        return answer


def test_a_command_that_is_given_up_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not asked for when a dial was slow, and closed when it was: it may begin later."""
    proxy, line, dialled = RayProxy(fake_ray(tmp_path), tmp_path), SilentLine(), threading.Event()
    connection = RayConnection(Target("m", "0123456789ab-r1-m.0"), proxy)
    monkeypatch.setattr("trainmaster.transport.ray.bundles._TIMEOUT_S", 0.01)
    monkeypatch.setattr(proxy, "_begun", lambda: dialled.wait() and line)
    with pytest.raises(UnreachableError):
        asyncio.run(connection.start("true"))
    dialled.set()
    until(lambda: proxy._line is line, "the end of the dial")
    with proxy._lock:  # the thread that has dialled lets go of it when it has asked
        assert line.asked == []
    with pytest.raises(UnreachableError):
        asyncio.run(connection.reach("localhost", 1))
    (asked, do, key, *_), closed = line.asked
    assert (asked, do) == ("call", "connect")
    assert closed == ["call", "close", key]


def test_who_checks_a_ray_takes_nothing_from_a_run(tmp_path: Path) -> None:
    """It asks through nobody, and lends only when it goes on; the run before lends as long as it does."""
    login = fake_ray(tmp_path)
    running, doctor, beside = (RayProxy(login, tmp_path) for _ in range(3))
    running.share()
    (file,) = (tmp_path / ".ray").iterdir()
    inode = file.stat().st_ino
    doctor.ask("versions")
    line = doctor._line
    assert line is not None
    assert line.is_shared
    doctor.go_alone()
    doctor.ask("versions")
    assert line.is_over
    assert doctor._line is not None
    assert not doctor._line.is_shared
    doctor.share()
    assert file.stat().st_ino == inode
    doctor.close()
    assert beside.ask("versions")[0] == "9"
    assert beside._line is not None
    assert beside._line.is_shared
    file.unlink()
    running.share()
    assert file.exists()
    running.close()
    assert not file.exists()
    beside.close()


def test_a_run_that_is_gone_without_a_word_is_followed(tmp_path: Path) -> None:
    """Its file stays, and nobody answers there."""
    file = tmp_path / "ray" / "file"
    file.parent.mkdir()
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(file))
    dead.close()
    shared = ProxySocket(file, MagicMock())
    shared.offer()
    found = shared_connection(file)
    assert found is not None
    found.close()
    shared.close()


def test_a_run_that_is_stopped_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system takes connections for it, and nobody answers."""
    monkeypatch.setattr("trainmaster.transport.ray.proxy._SHARED_BEGIN_S", 0.05)
    proxy = RayProxy(fake_ray(tmp_path), tmp_path)
    proxy._file.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(proxy._file))
        stopped.listen(1)
        assert proxy.ask("versions")[0] == "9"
    proxy.close()


def test_a_line_of_another_run_that_is_silent_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked next goes another way."""
    running, beside = (RayProxy(fake_ray(tmp_path), tmp_path) for _ in range(2))
    running.share()
    beside.ask("versions")
    line = beside._line
    assert line is not None
    monkeypatch.setattr(line, "send", lambda *_: Future[Any]())
    monkeypatch.setattr("trainmaster.transport.ray.proxy._ANSWER_S", 0.01)
    with pytest.raises(ProviderError, match="has not answered"):
        beside.ask("versions")
    assert line.is_over
    running.close()


def test_an_error_that_is_the_users_is_heard_as_it_is(tmp_path: Path) -> None:
    """Who may ask through a run that cannot begin dials itself."""
    login = fake_ray(tmp_path, "raise RuntimeError('Version mismatch: Ray: 2.9.0')")
    running, beside = (RayProxy(login, tmp_path) for _ in range(2))
    running.share()
    with pytest.raises(UsageError, match="of another version") as caught:
        beside.ask("versions")
    assert "Name a Python that has its version of Ray" in str(caught.value.hint)
    running.close()


def test_what_fails_in_any_way_is_answered() -> None:
    """Else who asked would wait."""
    failed = Future[Any]()
    failed.set_exception(KeyError("x"))
    assert _told(failed) == {"error": "KeyError: 'x'"}


def test_ray_finds_the_variables_of_the_settings(tmp_path: Path) -> None:
    """Not in a command line, which others see."""
    login = fake_ray(tmp_path, "import os; raise RuntimeError(os.environ['RAY_AUTH_TOKEN'])")
    with pytest.raises(UsageError, match="refuses: hush"):
        RayProxy(replace(login, variables={"RAY_AUTH_TOKEN": "hush"}), tmp_path).ask("versions")


def test_a_refusal_is_remembered_for_some_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan dials early, in a thread: who needs it next hears the same without another dial."""
    proxy = RayProxy(fake_ray(tmp_path, "import os; os._exit(1)"), tmp_path)
    for dials in (2, 2):  # of what ends without a word another one's errors are heard
        with pytest.raises(ProviderError, match=r"^Ray at auto ended"):
            proxy.ask("versions")
        assert (tmp_path / "begun").read_text() == "\n" * dials
    monkeypatch.setattr("trainmaster.transport.ray.proxy._REFUSED_S", 0.0)
    with pytest.raises(ProviderError, match=r"^Ray at auto ended"):
        proxy.ask("versions")
    assert (tmp_path / "begun").read_text() == "\n" * 4


def test_a_login_shell_of_any_kind_takes_the_command() -> None:
    """A csh takes no line break within quotes."""
    assert "\n" not in _BOOT
