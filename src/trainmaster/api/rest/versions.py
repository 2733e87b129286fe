"""Which clients a server speaks with: those of its own minor version and of the two before."""

from __future__ import annotations

import re
from typing import Final

from trainmaster import __version__
from trainmaster.spec.errors import TrainmasterError

HEADER: Final = b"trainmaster-version"
#: Minor versions of clients that are served beside the server's own.
_OLDER: Final = 2
_VERSION: Final = re.compile(r"(\d{1,4})\.(\d{1,4})(?:[.+a-z].*)?")


class ClientVersionError(TrainmasterError):
    """A client that this server does not speak with (HTTP 426)."""


def oldest_client(ours: str = __version__) -> str:
    """The oldest minor version that is served.

    >>> oldest_client("1.5.2"), oldest_client("0.1.0")
    ('1.3', '0.0')
    """
    major, minor = _parsed(ours) or (0, 0)
    return f"{major}.{max(0, minor - _OLDER)}"


def check_client(theirs: str, ours: str = __version__) -> None:
    """Refuse a client by what it says its version is; one that says nothing (or nonsense) is served.

    Raises:
        ClientVersionError: it is newer, or too old.

    >>> check_client("1.3.0", "1.5.2"), check_client("", "1.5.2")
    (None, None)
    """
    said, served = _parsed(theirs), _parsed(ours)
    if said is None or served is None:
        return
    if said > served:
        raise ClientVersionError(
            f"this client is {theirs}, newer than the server, which is {ours}",
            f"Update the server, or run: pip install 'trainmaster=={served[0]}.{served[1]}.*'",
        )
    if said < (served[0], served[1] - _OLDER):
        raise ClientVersionError(
            f"this client is {theirs}, and this server serves {oldest_client(ours)} to {ours}",
            f"Run: pip install 'trainmaster=={served[0]}.{served[1]}.*'",
        )


def _parsed(text: str) -> tuple[int, int] | None:
    found = _VERSION.fullmatch(text.strip())
    return (int(found[1]), int(found[2])) if found else None
