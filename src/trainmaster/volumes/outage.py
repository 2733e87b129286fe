"""Which words of an error say that a store does not answer now, and may later."""

from __future__ import annotations

import re
from typing import Final

#: It may be well a little later: nobody answers, or it says itself that it cannot just now.
_PASSING: Final = re.compile(
    r"error sending request|timed? ?out|no answer for|connection (refused|reset|aborted|was cut)"
    r"|no route to host|network is unreachable|temporary failure in name resolution|remote end closed"
    r"|(status code: |HDFS says |https?://\S+: |HTTP Error )(429|5\d\d)\b",
    re.IGNORECASE,
)
#: Nobody answers either where credentials are asked for as there are none, or to a foreign certificate.
_LASTING: Final = re.compile(r"169\.254\.|metadata\.google|certificate", re.IGNORECASE)


def is_away(words: str) -> bool:
    """Whether an error says that a store does not answer, or cannot do anything just now.

    >>> is_away("Cannot read s3://b/x: HTTP error: error sending request: ConnectionRefused.")
    True
    >>> is_away("Cannot read s3://b/x: Server returned non-2xx status code: 403 Forbidden.")
    False
    """
    return bool(_PASSING.search(words)) and not _LASTING.search(words)
