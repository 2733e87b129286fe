"""`begun`: work in a thread of its own, whose answer is waited for or not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
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
