"""`listed_items`: what WebHDFS says of a folder, one entry after the other."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import IO, Any, Final

_BLOCK_BYTES: Final = 1 << 20
_START: Final = re.compile(r'\s*\{\s*"FileStatuses"\s*:\s*\{\s*"FileStatus"\s*:\s*\[')
_BETWEEN: Final = re.compile(r"[\s,]*")


def listed_items(said: IO[bytes]) -> Iterator[Any]:
    r"""Reads an answer to ``LISTSTATUS``; of a large folder, all of it need not fit into memory.

    Raises:
        ValueError: it is no such answer, or it is cut off.

    >>> import io
    >>> list(listed_items(io.BytesIO(b'{"FileStatuses":{"FileStatus":[\n{"length":1},{"length":2}\n]}}')))
    [{'length': 1}, {'length': 2}]
    >>> list(listed_items(io.BytesIO(b'{"FileStatuses":{"FileStatus":[')))
    Traceback (most recent call last):
    ValueError: the listing is cut off
    """
    decoder = json.JSONDecoder()
    has_begun, rest = False, ""
    for block in codecs.iterdecode(iter(lambda: said.read(_BLOCK_BYTES), b""), "utf-8"):
        rest += block
        if not has_begun:
            if (start := _START.match(rest)) is None:
                raise ValueError("it is no listing")
            has_begun, rest = True, rest[start.end() :]
        at = 0
        while not rest.startswith("]", at := _end_of(rest, at)):
            try:
                item, at = decoder.raw_decode(rest, at)
            except json.JSONDecodeError:  # the rest of it comes with the next block
                break
            except RecursionError:
                raise ValueError("it is nested too deeply") from None
            yield item
        else:
            return
        rest = rest[at:]
        if len(rest) > _BLOCK_BYTES:  # each block would be read again with all that follow
            raise ValueError("an entry of the listing is none")
    raise ValueError("the listing is cut off")


def _end_of(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return at if found is None else found.end()
