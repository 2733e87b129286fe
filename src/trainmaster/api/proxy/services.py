"""`ServiceProxy`: which replica a request to a service goes to, and the requests that are in flight here."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from trainmaster.api.proxy.admissions import Admissions, RequestRefusedError
from trainmaster.api.proxy.grants import Openings
from trainmaster.api.proxy.headers import CONNECT_S, SERVICES, UpstreamTarget
from trainmaster.api.proxy.upstream import Upstream
from trainmaster.dataclass import dataclass
from trainmaster.service.endpoints.endpoints import REPORT_S, TARGETS_VALID_S
from trainmaster.service.endpoints.endpoints import ReadyReplica as Replica
from trainmaster.spec.errors import StoreError, TrainmasterError

if TYPE_CHECKING:
    from trainmaster.service.endpoints.endpoint_access import EndpointAccess

#: The service, a token, and the team that was asked for.
Key = tuple[str, str, str]
MOST_BODY_BYTES: Final = 64 << 20
#: Servers close what is idle, some after five seconds; before that we do.
_IDLE_S: Final = 2.0
_MOST_IDLE: Final = 64
#: A replica that did not let us in is asked last for so long.
_AVOIDED_S: Final = 2.0
#: Requests of so many seconds are measured, the newest of them.
WINDOW_S: Final = 60.0
_MOST_MEASURED: Final = 20_000


@dataclass(slots=True)
class _Load:
    """Requests in flight with a replica, now and on the average since it was reported."""

    now: int = 0
    reported: int = 0
    busy_s: float = 0.0
    since: float = 0.0
    changed: float = 0.0
    turn: int = 0

    def change(self, by: int, at: float) -> None:
        self.busy_s += self.now * (at - self.changed)
        self.now, self.changed = self.now + by, at

    def average(self, at: float) -> int:
        """Since the last time; requests that are shorter than that count, too."""
        self.change(0, at)
        mean = self.busy_s / (at - self.since) if at > self.since else self.now
        self.busy_s, self.since = 0.0, at
        return math.ceil(mean - 1e-6)


class ServiceProxy(Admissions[Key, Sequence[Replica]]):
    """The way to services.

    Args:
        gate: lets in.
        clock: monotonic seconds.
        body_bytes: larger bodies are refused.
    """

    def __init__(
        self,
        gate: EndpointAccess,
        *,
        clock: Callable[[], float] = time.monotonic,
        body_bytes: int = MOST_BODY_BYTES,
    ) -> None:
        super().__init__(clock, TARGETS_VALID_S)
        self.gate, self.body_bytes = gate, body_bytes
        self._loads: dict[str, _Load] = {}
        self._avoided: dict[str, float] = {}
        self._idle: dict[UpstreamTarget, list[Upstream]] = {}
        self._openings = Openings()
        self._turn = 0
        self._measured: dict[tuple[str, str], deque[tuple[float, float, bool]]] = {}
        self._lock = threading.Lock()  # of what is measured: pages ask in threads

    def ask(self, key: Key) -> Sequence[Replica]:
        """The replicas, for a caller that may ask them."""
        return self.gate.targets(*key)

    def words(self, key: Key) -> str:
        """Its name."""
        return f"the service {key[0]}"

    def goes_on(self, before: Sequence[Replica], now: Sequence[Replica]) -> bool:
        """What a replica that drains has begun, it ends."""
        return True

    async def turned_away(self, key: Key) -> RequestRefusedError:
        """The answer while no replica takes requests."""
        with suppress(TrainmasterError):
            await asyncio.to_thread(self.gate.turned_away, *key)
        return RequestRefusedError(503, f"no replica of {key[0]} is ready", [("retry-after", "2")])

    # --- which one ------------------------------------------------------------------------------------

    def pick(self, found: Sequence[Replica], tried: Collection[str]) -> Replica | None:
        """The least busy one that was not tried; None if all were."""
        now = self._clock()

        def busy(each: Replica) -> tuple[bool, int, int]:
            load = self._loads.get(each.replica) or _Load()
            others = max(0, each.in_flight - load.reported)
            return self._avoided.get(each.replica, 0.0) > now, load.now + others, load.turn

        return min((each for each in found if each.replica not in tried), key=busy, default=None)

    def avoid(self, replica: Replica) -> None:
        """It did not let us in."""
        self._avoided[replica.replica] = self._clock() + _AVOIDED_S

    @contextmanager
    def using(self, name: str, replica: Replica) -> Iterator[Callable[[bool], None]]:
        """Count a request; what is given is called when it was answered, with whether well."""
        began = self._clock()
        load = self._loads.setdefault(replica.replica, _Load(since=began, changed=began))
        self._turn += 1
        load.turn = self._turn
        load.change(1, began)

        def answered(is_well: bool) -> None:
            with self._lock:
                kept = self._measured.setdefault((replica.run, name), deque(maxlen=_MOST_MEASURED))
                kept.append((self._clock(), self._clock() - began, is_well))

        try:
            yield answered
        finally:
            load.change(-1, self._clock())

    def in_flight(self, replica: str) -> int:
        """Requests that a replica has from here."""
        load = self._loads.get(replica)
        return 0 if load is None else load.now

    def measured(self, run: str, name: str) -> dict[str, Any]:
        """Of the last `WINDOW_S` at this server; threads may ask.

        Returns:
            ``requests_per_s``, ``errors_per_s``, and ``p50_s`` and ``p95_s`` (None without requests).
        """
        end = self._clock() - WINDOW_S
        with self._lock:
            recent = [each for each in self._measured.get((run, name), ()) if each[0] >= end]
        took = sorted(each[1] for each in recent)
        errors = sum(not each[2] for each in recent)
        return {
            "requests_per_s": len(recent) / WINDOW_S,
            "errors_per_s": errors / WINDOW_S,
            "p50_s": took[len(took) // 2] if took else None,
            "p95_s": took[int(len(took) * 0.95)] if took else None,
        }

    # --- connections ----------------------------------------------------------------------------------

    def target(self, name: str, replica: Replica, connect_s: float = CONNECT_S) -> UpstreamTarget:
        """Where it listens; to get there takes no longer than so."""

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await self._openings.open(replica.replica, partial(self.gate.connect, replica))

        version = [] if replica.version is None else [(b"trainmaster-model", replica.version.encode())]
        return UpstreamTarget(
            name, replica.port, base=SERVICES, replica=replica.replica,
            connect=None if replica.is_here else connect, connect_s=connect_s, answers=tuple(version),
        )  # fmt: skip

    def take(self, target: UpstreamTarget) -> Upstream | None:
        """A connection that is open and idle."""
        kept = self._idle.get(target, [])
        while kept:
            upstream = kept.pop()
            if upstream.is_idle and time.monotonic() - upstream.used_at < _IDLE_S:
                return upstream
            upstream.writer.close()
        return None

    def keep(self, upstream: Upstream) -> None:
        """Another request may have this connection."""
        kept = self._idle.setdefault(upstream.target, [])
        if not upstream.is_idle or len(kept) >= _MOST_IDLE:
            upstream.writer.close()
            return
        upstream.used_at = time.monotonic()
        kept.append(upstream)

    def close(self) -> None:
        """End what is idle."""
        for kept in self._idle.values():
            for each in kept:
                each.writer.close()
        self._idle.clear()

    # --- telling --------------------------------------------------------------------------------------

    async def tell(self) -> None:
        """Write down, for ever, what is in flight."""
        while True:
            await asyncio.sleep(REPORT_S)
            await self.tell_once()

    async def tell_once(self) -> None:
        """Write down what is in flight, where that is something or has changed; forget what is over."""
        now = self._clock()
        counts = {replica: max(load.now, load.average(now)) for replica, load in self._loads.items()}
        wanted = {each: count for each, count in counts.items() if count or self._loads[each].reported}
        if wanted:
            with suppress(StoreError):  # it is told again
                await asyncio.to_thread(self.gate.report, wanted)
                for each, count in wanted.items():
                    self._loads[each].reported = count
        self._loads = {
            key: load for key, load in self._loads.items() if load.now or load.reported or load.busy_s
        }
        self._avoided = {key: until for key, until in self._avoided.items() if until > now}
        for target, kept in list(self._idle.items()):
            old = [idle for idle in kept if time.monotonic() - idle.used_at >= _IDLE_S]
            for upstream in old:
                upstream.writer.close()
                kept.remove(upstream)
            if not kept:
                del self._idle[target]
        with self._lock:
            for key, times in list(self._measured.items()):
                if times[-1][0] < now - WINDOW_S:
                    del self._measured[key]
