"""Server-sent events as text; see https://html.spec.whatwg.org/multipage/server-sent-events.html."""

from __future__ import annotations

import json
from typing import Final

#: A comment after so long without news: proxies cut connections that are silent.
SILENT_S: Final = 15.0
STILL_HERE: Final = ": still here\n\n"
#: What a stream begins with: when a browser comes back after its connection was lost, in milliseconds.
RETRY: Final = "retry: 2000\n\n"
HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}


def event(kind: str, data: object, name: object) -> str:
    r"""One event.

    >>> event("told", "hello", 1)
    'id: 1\nevent: told\ndata: "hello"\n\n'
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)
    return f"id: {name}\nevent: {kind}\ndata: {text}\n\n"
