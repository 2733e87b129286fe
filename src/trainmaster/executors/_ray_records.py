"""What the next gateway has to know, in Ray's own key-value store: where gangs run, what to end on return.

The store lives on the head, as long as the cluster does. No script and no environment gets there.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ray.experimental import internal_kv

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmaster.executors._wire import Message

_NAMESPACE = b"trainmaster"
_ATTEMPTS = "attempt/"
_FENCES = "fence/"
#: One thread, so that they stay in order: the store is asked over the network, and nobody waits for it.
_writer = ThreadPoolExecutor(1, thread_name_prefix="records")


def store(record: Message) -> None:
    """Where an attempt runs."""
    _put(_ATTEMPTS + record["attempt"], json.dumps(record))


def erase(attempt: str) -> None:
    """An attempt is over and forgotten."""
    _delete(_ATTEMPTS + attempt)


def load() -> Iterator[Message]:
    """All that were stored."""
    for key in _list(_ATTEMPTS):
        if data := internal_kv._internal_kv_get(key, namespace=_NAMESPACE):
            yield json.loads(data)


def fence(key: str, part: str) -> None:
    """Members on a node were declared lost; should it come back, they must not go on."""
    _put(f"{_FENCES}{key}/{part}", "{}")


def take_fences(key: str) -> list[str]:
    """What must be ended on a node that has come (back), once."""
    prefix = f"{_FENCES}{key}/"
    found = []
    for name in _list(prefix):
        found.append(name.decode().removeprefix(prefix))
        internal_kv._internal_kv_del(name, namespace=_NAMESPACE)
    return found


def _put(key: str, text: str) -> None:
    _writer.submit(
        internal_kv._internal_kv_put, key.encode(), text.encode(), overwrite=True, namespace=_NAMESPACE
    )


def _delete(key: str) -> None:
    _writer.submit(internal_kv._internal_kv_del, key.encode(), namespace=_NAMESPACE)


def _list(prefix: str) -> list[bytes]:
    keys = _writer.submit(internal_kv._internal_kv_list, prefix.encode(), namespace=_NAMESPACE)
    return list(keys.result())
