"""Health checks of replicas: one HTTP request each, in threads, whatever leads to the replica."""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from trainmaster.spec.errors import TrainmasterError, one_line

#: A replica that works is asked so often, one that starts more often.
EVERY_S: Final = 2.0
STARTING_EVERY_S: Final = 0.5
_TIMEOUT_S: Final = 5.0
#: Of a check that takes longer nothing is known: threads may all be busy.
_LATE_S: Final = 3 * _TIMEOUT_S
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3})(?!\d)")
_MOST_LINE_BYTES: Final = 4096
_THREADS: Final = 8
_GOOD: Final = range(200, 400)

log = logging.getLogger(__name__)

#: Leads to a replica: host and port here, while inside ``with``.
Reach = Callable[[], AbstractContextManager[tuple[str, int]]]


@dataclass(slots=True)
class Heard:
    """What the checks of one attempt of a replica have seen.

    Attributes:
        since: when it was asked for the first time, Unix seconds.
        is_healthy: what the last one saw; None before the first.
        healthy_at: when it was healthy last; None if it never was.
        said: what the last one saw.
        asked_at: when the last one began.
        is_asking: one is under way.
    """

    since: float
    is_healthy: bool | None = None
    healthy_at: float | None = None
    said: str = ""
    asked_at: float = 0.0
    is_asking: bool = False

    def silent_s(self, now: float) -> float:
        """For how long it has not been healthy, since it was; also while it lets a check wait."""
        is_late = self.is_asking and now - self.asked_at > _LATE_S
        if self.healthy_at is None or (self.is_healthy and not is_late):
            return 0.0
        return now - self.healthy_at


class HealthChecks:
    """Asks replicas, in a few threads of its own. Close it.

    Args:
        clock: gives Unix seconds that never jump.
        threads: how many ask at once.
    """

    def __init__(self, clock: Callable[[], float], threads: int = _THREADS) -> None:
        self._clock = clock
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._heard: dict[str, Heard] = {}
        self._lock = threading.Lock()

    def ask(self, attempt: str, reach: Reach, path: str, *, was_healthy: bool) -> Heard:
        """Begin a check if one is due; what is known now.

        Args:
            attempt: of the replica.
            reach: leads to it.
            path: to ask for.
            was_healthy: it is known to have worked, as an earlier driver has recorded.
        """
        now = self._clock()
        with self._lock:
            heard = self._heard.get(attempt)
            if heard is None:
                heard = self._heard[attempt] = Heard(now, healthy_at=now if was_healthy else None)
            every_s = EVERY_S if heard.is_healthy else STARTING_EVERY_S
            if not heard.is_asking and now - heard.asked_at >= every_s:
                heard.is_asking, heard.asked_at = True, now
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="health")
                self._pool.submit(self._check, heard, reach, path)
        return heard

    def forget(self, attempt: str) -> None:
        """It is over."""
        with self._lock:
            self._heard.pop(attempt, None)

    def close(self) -> None:
        """Ask no more; what is under way is not waited for."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _check(self, heard: Heard, reach: Reach, path: str) -> None:
        try:
            said = check(reach, path)
        except Exception as error:  # it is asked again: else it would never be healthy
            log.exception("a replica cannot be asked")
            said = f"GET {path}: internal error: {error or type(error).__name__}"
        with self._lock:
            heard.is_asking, heard.is_healthy, heard.said = False, not said, said
            if not said:
                heard.healthy_at = self._clock()


def check(reach: Reach, path: str) -> str:
    """Ask a replica once; empty if it is healthy, else what was seen."""
    try:
        with reach() as (host, port):
            status = _status(host, port, path)
    except TimeoutError:
        return f"GET {path}: no answer within {_TIMEOUT_S:g} s"
    except ConnectionRefusedError:
        return f"GET {path}: nothing listens at its port"
    except OSError as error:
        return f"GET {path}: {error or type(error).__name__}"
    except TrainmasterError as error:
        return f"GET {path}: {one_line(error)}"
    return "" if status in _GOOD else f"GET {path}: status {status}"


def _status(host: str, port: int, path: str) -> int:
    """Of its answer, of which no more is read; one that comes in drops is none."""
    until = time.monotonic() + _TIMEOUT_S
    line = b""
    with socket.create_connection((host, port), _TIMEOUT_S) as stream:
        stream.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        while b"\n" not in line and len(line) < _MOST_LINE_BYTES:
            stream.settimeout(max(until - time.monotonic(), 0.001))
            if not (data := stream.recv(_MOST_LINE_BYTES)):
                break
            line += data
    found = _STATUS.match(line)
    if found is None:
        raise OSError("it has broken off" if not line else "what it answers is no HTTP")
    return int(found.group(1))
