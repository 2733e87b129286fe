"""`ProfilePlace`: where profiling attempts happen. It goes when we do, be it by ``kill -9``.

As a program (``python -m trainmaster.control.measure.profile_place HOME DIRECTORY``) it is the guard: it
waits until the process that profiles is gone, and if that has not cleaned up it does so itself: nothing else
would end the members, which outlive their control process like those of a run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from trainmaster.control.task.layout import INPUTS, Home
from trainmaster.executors.base import Capacity, Phase
from trainmaster.spec.errors import ExecutorError

#: Members that are left get so long between SIGTERM and SIGKILL.
LEFTOVER_GRACE_S = 2.0
_END_WITHIN_S = 30.0
_DONE = b"."


class ProfilePlace:
    """A directory of its own below the home, held by this process.

    Args:
        home: the user's.
        name: unique.

    Attributes:
        home: like the user's, but all that is written by attempts lies in this directory. The cache is
            the same: an environment that ``setup`` makes serves the run too.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, home: Home, name: str) -> None:
        self.path = profiles_of(home.root) / name
        store_url = (self.path / "store").as_uri()
        self.home = replace(home, root=self.path, store_url=store_url, volumes_in=home.store_url)
        self._root = home.root
        with _only_one(home.root):
            self.path.mkdir()
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._guard = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(home.root), str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us
        )

    def __enter__(self) -> ProfilePlace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        clear(self._root, self.path)
        assert self._guard.stdin is not None
        with suppress(OSError):  # it was killed
            self._guard.stdin.write(_DONE)
            self._guard.stdin.flush()
        with suppress(OSError):
            self._guard.stdin.close()
        self._guard.wait()
        os.close(self._lock)


def profiles_of(root: Path) -> Path:
    """Where the profiling attempts of a home lie, one directory per call."""
    return root / "profiles"


def clear_leftovers(root: Path) -> None:
    """End and remove what was left by processes that are gone, and whose guards were killed too."""
    if not profiles_of(root).is_dir():
        return
    with _only_one(root):
        left = [path for path in profiles_of(root).iterdir() if path.is_dir() and not _is_held(path)]
    for path in left:
        clear(root, path)


def clear(root: Path, path: Path) -> None:
    """End all attempts of a profile, and remove its directory. Safe to repeat.

    Args:
        root: of the user's home, whose supervisor has started them.
        path: of the profile.
    """
    runs = path / "runs"
    attempts = [
        "/".join(place.relative_to(runs).parts[:1] + place.relative_to(runs).parts[2:])
        for place in runs.glob("*/tasks/*/*/*")
    ]
    if attempts:
        _end(root, attempts)

    for data in runs.glob(f"*/{INPUTS}"):
        from trainmaster.control.attempt.data_sources import withdraw_volumes

        withdraw_volumes(data)  # what is mounted could not be removed, and would stay
    for _ in range(3):  # the last words of a member may still be written
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return


def _end(root: Path, attempts: list[str]) -> None:
    from trainmaster.executors.local.executor import LocalExecutor

    executor = LocalExecutor(root)
    try:
        executor.open("profile-clear", Capacity(slots=1), {})
        deadline = time.monotonic() + _END_WITHIN_S
        asked = False
        while time.monotonic() < deadline:
            statuses = executor.observe(attempts)
            alive = [s.attempt for s in statuses if s.phase not in (Phase.EXITED, Phase.UNKNOWN)]
            if not alive:
                break
            for attempt in alive if not asked else ():
                executor.stop(attempt, LEFTOVER_GRACE_S)
            asked = True
            time.sleep(0.02)
        executor.forget([s.attempt for s in executor.observe(attempts) if s.phase is Phase.EXITED])
    except ExecutorError:  # no supervisor, so no members of its own either
        pass
    finally:
        executor.close()


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def _only_one(root: Path) -> Iterator[None]:
    """A new place is not taken for a left-over before it is locked."""
    profiles_of(root).mkdir(mode=0o700, exist_ok=True)
    with (profiles_of(root) / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _guard(arguments: list[str]) -> None:
    if sys.stdin.buffer.read() != _DONE:
        clear(Path(arguments[0]), Path(arguments[1]))


if __name__ == "__main__":
    _guard(sys.argv[1:])
