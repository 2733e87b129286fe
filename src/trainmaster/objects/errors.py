"""What goes wrong with object stores: an error's type says what; its message is for people.

* PublishError                    see `trainmaster.spec.errors`
  + ObjectStoreError              of no other kind here
    - UnreachableStoreError       no answer, or it says itself that it cannot just now: later it may
    - RefusingStoreError          credentials, permissions, certificates or names are not what it wants
    - FullStoreError              there is no room, or a quota is used up
    - MissingStoreError           the bucket or container is not there (of an object: FileNotFoundError)
    - DamagedObjectError          what is there is not what was written
    - ObjectChangedError          an object is no longer the one that was meant

Nodes answer with the kind beside the words. Only `obstore_errors` reads words: its library gives no more.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from http import HTTPStatus
from typing import ClassVar, Final

from trainmaster.spec.errors import PublishError


class StoreTrouble(StrEnum):
    """What is wrong with a store, or a file system; nodes answer with these words."""

    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    FULL = "full"
    MISSING = "missing"
    DAMAGED = "damaged"
    CHANGED = "changed"
    OTHER = "other"


class ObjectStoreError(PublishError):
    """An object store, or a file system, does not do what it should.

    A backend gives the bare reason, without a full stop, and a hint; `ObjectStore` says of what it is.

    Attributes:
        trouble: the same as the type, as a word.
        url: of the store or object; empty until it is known.
    """

    trouble: ClassVar[StoreTrouble] = StoreTrouble.OTHER

    def __init__(self, message: str, hint: str = "", url: str = "") -> None:
        super().__init__(message, hint)
        self.url = url


class UnreachableStoreError(ObjectStoreError):
    """It does not answer, or says itself that it cannot just now: later it may."""

    trouble = StoreTrouble.UNREACHABLE


class RefusingStoreError(ObjectStoreError):
    """Credentials, permissions, certificates or names are not what it wants."""

    trouble = StoreTrouble.REFUSED


class FullStoreError(ObjectStoreError):
    """There is no room, or a quota is used up."""

    trouble = StoreTrouble.FULL


class MissingStoreError(ObjectStoreError):
    """The bucket or container is not there."""

    trouble = StoreTrouble.MISSING


class DamagedObjectError(ObjectStoreError):
    """What is there is not what was written."""

    trouble = StoreTrouble.DAMAGED


class ObjectChangedError(ObjectStoreError):
    """An object is no longer the one that was meant: its ETag is another."""

    trouble = StoreTrouble.CHANGED


ERRORS: Final = {
    kind.trouble: kind
    for kind in (
        ObjectStoreError,
        UnreachableStoreError,
        RefusingStoreError,
        FullStoreError,
        MissingStoreError,
        DamagedObjectError,
        ObjectChangedError,
    )
}

_TRY_AGAIN: Final = "Try again; if it stays, look at the store itself."
#: What to do about a network that does not lead there.
NETWORK_HINT: Final = (
    "Check the network and the address (AWS_ENDPOINT_URL, GOOGLE_BASE_URL or "
    "AZURE_STORAGE_ENDPOINT, where one is set), then try again: nothing half-written is visible."
)
_NETWORK: Final = frozenset(
    {
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.EHOSTUNREACH,
        errno.EHOSTDOWN,
        errno.ENETUNREACH,
        errno.ENETDOWN,
        errno.ETIMEDOUT,
        errno.EPIPE,
    }
)
_BY_ERRNO: Final = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        (StoreTrouble.FULL, "Free some space there, or use another place."),
    ),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM),
        (StoreTrouble.REFUSED, "Change the permissions there, or use another directory."),
    ),
    errno.EROFS: (StoreTrouble.REFUSED, "It can only be read; use another TRAINMASTER_STORE."),
    errno.ENAMETOOLONG: (StoreTrouble.REFUSED, "Use a shorter path for the store."),
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EEXIST),
        (
            StoreTrouble.REFUSED,
            "A file is where a directory is needed; move it away or use another path.",
        ),
    ),
    **dict.fromkeys(_NETWORK, (StoreTrouble.UNREACHABLE, NETWORK_HINT)),
    errno.EAGAIN: (StoreTrouble.UNREACHABLE, _TRY_AGAIN),
}
_TOO_MANY_REQUESTS: Final = 429
_SERVER_ERRORS: Final = range(500, 600)


def trouble_of(error: BaseException) -> StoreTrouble:
    """What an error says is wrong with a store, a file system, or a web server that data come from.

    >>> trouble_of(OSError(errno.ENOSPC, "No space left on device"))
    <StoreTrouble.FULL: 'full'>
    >>> trouble_of(PublishError("what is to be published is not fit for it"))
    <StoreTrouble.OTHER: 'other'>
    """
    if isinstance(error, ObjectStoreError):
        return error.trouble
    # Imported on errors only: they cost start-up time.
    from http.client import IncompleteRead
    from urllib.error import HTTPError, URLError

    if isinstance(error, HTTPError):
        return trouble_of_status(error.code)
    if isinstance(error, URLError) and isinstance(error.reason, BaseException):
        return trouble_of(error.reason)
    if isinstance(error, TimeoutError | ConnectionError | IncompleteRead):
        return StoreTrouble.UNREACHABLE
    if isinstance(error, socket.gaierror):  # any other says that there is no such name
        return StoreTrouble.UNREACHABLE if error.errno == socket.EAI_AGAIN else StoreTrouble.OTHER
    if isinstance(error, OSError) and error.errno in _BY_ERRNO:
        return _BY_ERRNO[error.errno][0]
    return StoreTrouble.OTHER


def url_of(error: BaseException) -> str:
    """Of which store or object an error speaks; empty if that is not known."""
    return error.url if isinstance(error, ObjectStoreError) else ""


def trouble_of_status(status: int) -> StoreTrouble:
    """What an HTTP status says.

    >>> [trouble_of_status(status).value for status in (403, 404, 429, 503, 507)]
    ['refused', 'missing', 'unreachable', 'unreachable', 'full']
    """
    if status == HTTPStatus.INSUFFICIENT_STORAGE:
        return StoreTrouble.FULL
    if status == _TOO_MANY_REQUESTS or status in _SERVER_ERRORS:
        return StoreTrouble.UNREACHABLE
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return StoreTrouble.REFUSED
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        return StoreTrouble.MISSING
    return StoreTrouble.OTHER


def error_of(trouble: str, message: str, hint: str = "", url: str = "") -> ObjectStoreError:
    """The error of a word."""
    return ERRORS[known_trouble(trouble)](message, hint, url)


def known_trouble(word: str) -> StoreTrouble:
    """What a word means that a node has answered; an unknown one, or none, is of no kind.

    >>> known_trouble("full"), known_trouble("")
    (<StoreTrouble.FULL: 'full'>, <StoreTrouble.OTHER: 'other'>)
    """
    return StoreTrouble(word) if word in ERRORS else StoreTrouble.OTHER


def explained(error: Exception, verb: str, where: str) -> ObjectStoreError:
    """Gives what to raise for what a backend, or the file system, has raised.

    Args:
        error: what was raised.
        verb: what was being done, as in "cannot VERB WHERE".
        where: a URL or a path.
    """
    kind, hint = trouble_of(error), _TRY_AGAIN
    if isinstance(error, ObjectStoreError):
        reason, hint = str(error.args[0]), error.hint or hint
    elif isinstance(error, OSError) and error.errno is not None:
        reason = error.strerror or type(error).__name__
        _, hint = _BY_ERRNO.get(error.errno, (kind, hint))
    else:
        reason = str(error) or type(error).__name__
        if kind is StoreTrouble.UNREACHABLE:
            hint = NETWORK_HINT
    if kind is StoreTrouble.CHANGED:
        return ObjectChangedError(f"{where} is not the object it was.", hint, where)
    return ERRORS[kind](f"Cannot {verb} {where}: {reason.rstrip('.')}.", hint, where)


@contextmanager
def explaining(verb: str, where: str) -> Iterator[None]:
    """What the file system refuses within is raised as `explained` tells it."""
    try:
        yield
    except OSError as error:
        raise explained(error, verb, where) from error
