"""Work beside the caller: `begun` in a thread that may be waited for, `begun_apart` in a process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def begun(work: Callable[[], T], name: str) -> Future[T]:
    """Begin work in a thread that does not keep the process from ending, as it may take minutes.

    Args:
        work: what it raises is raised where its answer is waited for.
        name: of the thread.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            answer.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return answer


def begun_apart(
    *words: str, environ: Mapping[str, str], log: Path = Path("/dev/null")
) -> subprocess.Popen[bytes]:
    """Begin a command of ours in a process that outlives this one.

    Args:
        *words: as ``trainmaster`` takes them.
        environ: of the process.
        log: the file that all it says is added to.
    """
    with log.open("ab") as said:
        return subprocess.Popen(
            # -P: a file called signal.py in the present folder is none of ours
            [sys.executable, "-P", "-m", "trainmaster", *words],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
            env=dict(environ),
        )
