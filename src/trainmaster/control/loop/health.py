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
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import TrainmasterError, one_line
from trainmaster.spec.serve import HealthCheck

#: A replica that starts is asked so often at least.
STARTING_EVERY_S: Final = 0.5
#: Of a check that takes so many times longer than it may nothing is known: threads may all be busy.
_LATE: Final = 3
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3})(?!\d)")
_MOST_LINE_BYTES: Final = 4096
#: How many ask at once.
_THREADS: Final = 8
_GOOD: Final = range(200, 400)

log = logging.getLogger(__name__)

#: Leads to a replica: host and port here, while inside ``with``.
Reach = Callable[[], AbstractContextManager[tuple[str, int]]]


@dataclass(slots=True)
class ProbeHistory:
    """Results of the health checks of one attempt of a replica.

    Attributes:
        since: when it was asked for the first time, Unix seconds.
        is_healthy: what the last one saw; None before the first.
        healthy_at: when it was healthy last; None if it never was.
        said: what the last one saw.
        asked_at: when the last one began.
        is_asking: one is under way.
        late_s: of a check that takes longer nothing is known.
    """

    since: float
    is_healthy: bool | None = None
    healthy_at: float | None = None
    said: str = ""
    asked_at: float = 0.0
    is_asking: bool = False
    late_s: float = _LATE * HealthCheck().timeout_s

    def silent_s(self, now: float) -> float:
        """For how long it has not been healthy, since it was; also while it lets a check wait."""
        is_late = self.is_asking and now - self.asked_at > self.late_s
        if self.healthy_at is None or (self.is_healthy and not is_late):
            return 0.0
        return now - self.healthy_at


class HealthChecks:
    """Asks replicas, in a few threads of its own. Close it.

    Args:
        clock: gives Unix seconds that never jump.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pool: ThreadPoolExecutor | None = None
        self._heard: dict[str, ProbeHistory] = {}
        self._lock = threading.Lock()

    def ask(self, attempt: str, reach: Reach, how: HealthCheck, *, was_healthy: bool) -> ProbeHistory:
        """Begin a check if one is due; what is known now.

        Args:
            attempt: of the replica.
            reach: leads to it.
            how: it is asked.
            was_healthy: it is known to have worked, as an earlier driver has recorded.
        """
        now = self._clock()
        with self._lock:
            heard = self._heard.get(attempt)
            if heard is None:
                heard = self._heard[attempt] = ProbeHistory(
                    now, healthy_at=now if was_healthy else None, late_s=_LATE * how.timeout_s
                )
            every_s = how.every_s if heard.is_healthy else min(how.every_s, STARTING_EVERY_S)
            if not heard.is_asking and now - heard.asked_at >= every_s:
                heard.is_asking, heard.asked_at = True, now
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="health")
                self._pool.submit(self._check, heard, reach, how)
        return heard

    def forget(self, attempt: str) -> None:
        """It is over."""
        with self._lock:
            self._heard.pop(attempt, None)

    def close(self) -> None:
        """Ask no more; what is under way is not waited for."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _check(self, heard: ProbeHistory, reach: Reach, how: HealthCheck) -> None:
        try:
            said = check(reach, how)
        except Exception as error:  # it is asked again: else it would never be healthy
            log.exception("a replica cannot be asked")
            said = f"{how.asks}: internal error: {error or type(error).__name__}"
        with self._lock:
            heard.is_asking, heard.is_healthy, heard.said = False, not said, said
            if not said:
                heard.healthy_at = self._clock()


def check(reach: Reach, how: HealthCheck) -> str:
    """Ask a replica once; empty if it is healthy, else what was seen."""
    try:
        with reach() as (host, port):
            status = _status(host, port, how)
    except TimeoutError:
        return f"{how.asks}: no answer within {how.timeout_s:g} s"
    except ConnectionRefusedError:
        return f"{how.asks}: nothing listens at its port"
    except OSError as error:
        return f"{how.asks}: {error or type(error).__name__}"
    except TrainmasterError as error:
        return f"{how.asks}: {one_line(error)}"
    is_good = status in _GOOD if how.status is None else status == how.status
    return "" if is_good else f"{how.asks}: status {status}"


def _request(how: HealthCheck) -> bytes:
    body = how.body.encode()
    kind = "application/json" if how.body[:1] in ("{", "[") else "text/plain; charset=utf-8"
    sent = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n" if how.asks.startswith("POST") else ""
    return f"{how.asks} HTTP/1.1\r\nHost: localhost\r\n{sent}Connection: close\r\n\r\n".encode() + body


def _status(host: str, port: int, how: HealthCheck) -> int:
    """Of its answer, of which no more is read; one that comes in drops is none."""
    until = time.monotonic() + how.timeout_s
    line = b""
    with socket.create_connection((host, port), how.timeout_s) as stream:
        stream.sendall(_request(how))
        while b"\n" not in line and len(line) < _MOST_LINE_BYTES:
            stream.settimeout(max(until - time.monotonic(), 0.001))
            if not (data := stream.recv(_MOST_LINE_BYTES)):
                break
            line += data
    found = _STATUS.match(line)
    if found is None:
        raise OSError("it has broken off" if not line else "what it answers is no HTTP")
    return int(found.group(1))
