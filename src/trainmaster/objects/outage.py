"""Which words of an error say that a store does not answer now, and may later."""

from __future__ import annotations

import re
from typing import Final

#: It may be well a little later: nobody answers, or it says itself that it cannot just now.
_PASSING: Final = re.compile(
    r"error sending request|timed? ?out|no answer for|connection (refused|reset|aborted|was cut)"
    r"|no route to host|network is unreachable|temporary failure in name resolution|remote end closed"
    r"|error decoding response body|request or response body error"
    r"|(status code: |HDFS says |URL |HTTP Error )(429|5\d\d)\b",
    re.IGNORECASE,
)
#: Nobody answers either where credentials are asked for as there are none, or to a foreign certificate.
_NO_KEYS: Final = re.compile(r"169\.254\.|metadata\.google", re.IGNORECASE)
_LASTING: Final = re.compile(r"certificate", re.IGNORECASE)
#: Somebody may have called a file "timeout".
_NAMES: Final = re.compile(r"\b\w+://\S+|(?<!\w)'[^']*'")


def is_away(words: str) -> bool:
    """Whether an error says that a store does not answer, or cannot do anything just now.

    >>> is_away("Cannot read s3://b/x: HTTP error: error sending request: ConnectionRefused.")
    True
    >>> is_away("Cannot read s3://b/x: Server returned non-2xx status code: 403 Forbidden.")
    False
    >>> is_away("s3://b/timeout/3: 'certificate' is damaged: its SHA-256 is another.")
    False
    """
    said = _NAMES.sub("URL", words)
    return bool(_PASSING.search(said)) and not _LASTING.search(said) and not _NO_KEYS.search(words)
