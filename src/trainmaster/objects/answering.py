"""Whether the server of an object store says anything at all."""

from __future__ import annotations

import re

from trainmaster.objects.object_store import split_url

_SILENT = re.compile(r"timed? ?out|deadline", re.IGNORECASE)


def answers(url: str) -> bool:
    """Asks once, for seconds at most. Whatever it answers, also a refusal, is an answer.

    Args:
        url: of anything in the store.

    Returns:
        False if it was silent. A server that is not there is not: it is told of by who needs it.
    """
    scheme, rest = split_url(url)
    if scheme not in ("s3", "gs", "az"):
        return True
    import obstore

    from trainmaster.objects.obstore_backend import asked_once

    bucket, _, prefix = rest.partition("/")
    try:
        obstore.head(asked_once(scheme, bucket), f"{prefix.strip('/')}/answers".lstrip("/"))
    except Exception as error:  # noqa: BLE001 - every other error is an answer, or is told by who needs it
        return not _SILENT.search(str(error))
    return True
