"""`RecipeReaders`: reads what strangers send within limits, so that no recipe takes what others need."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from trainmaster.service.driving import recipe_worker
from trainmaster.service.driving.recipe_worker import too_large
from trainmaster.service.users.caller import TooOftenError
from trainmaster.service.users.rates import Rates
from trainmaster.spec import Recipe
from trainmaster.spec.errors import Mistake, RecipeError, RunError, UsageError

MAX_BYTES: Final = 100 << 10
#: Recipes that are read at once by the processes of one server.
_AT_ONCE: Final = 2
#: So many of a user, and of all, are read or wait for it: those that wait have a thread of the server each.
_OF_USER: Final = 3
_OF_ALL: Final = 12
#: What recipes of a user may take of a core in the long run, and after a pause in seconds of CPU.
_CPU_SHARE: Final = 0.2
_CPU_BURST_S: Final = 5.0


class RecipeReaders:
    """Has recipes read by other processes, one at a time for each user.

    Args:
        workers: those processes.
        cpu: the CPU time that users may take.
    """

    def __init__(self, workers: Workers | None = None, cpu: Rates | None = None) -> None:
        self._workers = workers or _WORKERS
        told = f"{_CPU_SHARE:g} s of CPU a second for your recipes"
        self._cpu = cpu or Rates(_CPU_SHARE, _CPU_BURST_S, told=told)
        self._asked: Counter[str] = Counter()
        self._turns: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def read(self, text: str, directory: str, provider: str | None, user: str | None) -> Recipe:
        """Read a recipe.

        Args:
            text: its YAML.
            directory: where ``code`` and other relative paths start.
            provider: replaces the recipe's.
            user: who asked for it; None for the server itself, which goes on with what was asked before.

        Raises:
            RecipeError: with all mistakes.
            UsageError: it is larger than a server takes.
            TooOftenError: the user has recipes that are read, or had too many.
        """
        asked = {"text": text, "directory": directory, "provider": provider}
        found = _checked(self._answer(text, asked, user))
        return Recipe.model_validate_json(found["recipe"])

    def convert(self, source: str, file: str, user: str) -> dict[str, Any]:
        """A recipe of a file of another tool, as ``trainmaster convert --json`` has it; of nothing beside it.

        Args:
            source: what stands in the file.
            file: its name.
            user: who asked for it.

        Raises:
            UsageError: it is of no kind that is known, or no recipe can say it.
            TooOftenError: as of `read`.
        """
        made: dict[str, Any] = _checked(self._answer(source, {"convert": source, "file": file}, user))["made"]
        return made

    def options(self, source: str, path: str, user: str) -> list[dict[str, Any]]:
        """What a script takes on its command line, as `ScriptOption` has it; nothing of it is run.

        Args:
            source: its text.
            path: where it lies, beside Hydra's configuration; empty looks at nothing but the text.
            user: who asked for it.

        Raises:
            RecipeError: it takes too much to read.
            TooOftenError: as of `read`.
        """
        asked = {"options": source, "path": path}
        made: list[dict[str, Any]] = _checked(self._answer(source, asked, user))["made"]
        return made

    def _answer(self, text: str, asked: Mapping[str, Any], user: str | None) -> dict[str, Any]:
        if len(text.encode()) > MAX_BYTES:
            return too_large(f"more than {MAX_BYTES >> 10} KiB, which is all that a server takes")
        line = json.dumps(asked).encode()
        if user is None:
            return _found(self._workers.ask(line)[0])
        self._cpu.take(user, 0)
        with self._turn(user):
            answer, cpu_s = self._workers.ask(line)
            self._cpu.charge(user, cpu_s)
        return _found(answer)

    @contextmanager
    def _turn(self, user: str) -> Iterator[None]:
        """Wait until no other recipe of the user is read."""
        with self._lock:
            if self._asked[user] >= _OF_USER or self._asked.total() >= _OF_ALL:
                raise TooOftenError("other recipes are read at this moment", 1)
            self._asked[user] += 1
            turn = self._turns.setdefault(user, threading.Lock())
        try:
            with turn:
                yield
        finally:
            with self._lock:
                self._asked[user] -= 1
                if not self._asked[user]:
                    del self._asked[user], self._turns[user]


class Workers:
    """The processes that read recipes. Each is started when it is needed, and ends with this process."""

    def __init__(self) -> None:
        self._idle: list[subprocess.Popen[bytes]] = []
        self._places = threading.BoundedSemaphore(_AT_ONCE)

    def ask(self, asked: bytes) -> tuple[bytes, float]:
        """The answer, empty if the recipe took more than it may, and its CPU time in seconds.

        Raises:
            RunError: the process ends whenever it is asked.
        """
        with self._places:
            for _ in range(_AT_ONCE + 1):  # all that were there may have been killed
                worker = self._idle.pop() if self._idle else _started()
                if answer := _answered(worker, asked):
                    self._idle.append(worker)
                    cpu_s, _, whole = answer.rstrip(b"\n").partition(b" ")
                    return whole, float(cpu_s)
                worker.kill()
                worker.communicate()
        raise RunError("the process that reads recipes has ended", "The server's log says why.")

    def close(self) -> None:
        """End them."""
        while self._idle:
            self._idle.pop().communicate()


#: One process has one set of them, however many servers tests make in it.
_WORKERS: Final = Workers()
atexit.register(_WORKERS.close)


def _started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # -P: a file called signal.py in the present folder is none of ours
        [sys.executable, "-P", "-m", recipe_worker.__name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _answered(worker: subprocess.Popen[bytes], asked: bytes) -> bytes:
    """A line, empty if the process is over."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        worker.stdin.write(asked + b"\n")
        worker.stdin.flush()
    except OSError:
        return b""
    return worker.stdout.readline()


def _found(answer: bytes) -> dict[str, Any]:
    if not answer:
        return too_large("more than a server takes the time or memory to read")
    found: dict[str, Any] = json.loads(answer)
    return found


def _checked(found: dict[str, Any]) -> dict[str, Any]:
    """What was read.

    Raises:
        RecipeError, UsageError: as it was read.
    """
    if "mistakes" in found:
        raise RecipeError(found["file"], [Mistake(*each) for each in found["mistakes"]])
    if "wrong" in found:
        raise UsageError(found["wrong"], found["hint"])
    return found
