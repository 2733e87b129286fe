"""What the next gateway has to know, in Ray's own key-value store: where gangs run, what to end on return.

The store lives on the head, as long as the cluster does. No script and no environment gets there. A call
takes about as long as starting a process, so what comes while one is under way goes together into the next
entry, which is deleted when all that it tells of is forgotten.
"""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ray.experimental import internal_kv

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmaster.executors.wire import Message

_NAMESPACE = b"trainmaster"
_ENTRIES = "attempts/"
_FENCES = "fence/"
#: One thread, so that they stay in order: the store is asked over the network, without a wait for its answer.
_writer = ThreadPoolExecutor(1, thread_name_prefix="records")


class Records:
    """Where attempts run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, Message] = {}
        self._entry_of: dict[str, str] = {}
        self._alive: dict[str, set[str]] = {}
        self._count = 0

    def load(self) -> Iterator[Message]:
        """All that an earlier gateway has stored; perhaps also some that were forgotten since."""
        found: dict[str, Message] = {}
        for name in sorted(_list(_ENTRIES)):
            if data := internal_kv._internal_kv_get(name, namespace=_NAMESPACE):
                entry = name.decode()
                self._count = max(self._count, int(entry.removeprefix(_ENTRIES)))
                self._alive[entry] = set()
                for record in json.loads(data):
                    found[record["attempt"]] = record
                    self._put_down(record["attempt"], entry)
        yield from found.values()

    def store(self, record: Message) -> None:
        """Where an attempt runs now."""
        with self._lock:
            self._waiting[record["attempt"]] = record
            if len(self._waiting) == 1:
                _writer.submit(self._write)

    def erase(self, attempt: str) -> None:
        """An attempt is over and forgotten."""
        with self._lock:
            self._waiting.pop(attempt, None)
            self._cross_out(attempt)

    async def written(self) -> None:
        """Until all that was stored so far has got there."""
        await asyncio.wrap_future(_writer.submit(lambda: None))

    def _write(self) -> None:
        with self._lock:
            if not self._waiting:
                return
            records, self._waiting = self._waiting, {}
            self._count += 1
            entry = f"{_ENTRIES}{self._count:012d}"
            self._alive[entry] = set()
            for attempt in records:
                self._put_down(attempt, entry)
        text = json.dumps(list(records.values()))
        internal_kv._internal_kv_put(entry.encode(), text.encode(), overwrite=True, namespace=_NAMESPACE)

    def _put_down(self, attempt: str, entry: str) -> None:
        self._cross_out(attempt)
        self._entry_of[attempt] = entry
        self._alive[entry].add(attempt)

    def _cross_out(self, attempt: str) -> None:
        entry = self._entry_of.pop(attempt, None)
        if entry is None:
            return
        left = self._alive[entry]
        left.discard(attempt)
        if not left:
            del self._alive[entry]
            _delete(entry)


def fence(key: str, part: str) -> None:
    """Members on a node were declared lost; should it come back, they must not go on."""
    name = f"{_FENCES}{key}/{part}".encode()
    _writer.submit(internal_kv._internal_kv_put, name, b"{}", overwrite=True, namespace=_NAMESPACE)


def take_fences(key: str) -> list[str]:
    """What must be ended on a node that has come (back), once."""
    prefix = f"{_FENCES}{key}/"
    found = []
    for name in _list(prefix):
        found.append(name.decode().removeprefix(prefix))
        internal_kv._internal_kv_del(name, namespace=_NAMESPACE)
    return found


def _delete(key: str) -> None:
    _writer.submit(internal_kv._internal_kv_del, key.encode(), namespace=_NAMESPACE)


def _list(prefix: str) -> list[bytes]:
    keys = _writer.submit(internal_kv._internal_kv_list, prefix.encode(), namespace=_NAMESPACE)
    return list(keys.result())
