"""`fetch_url`: what a URL of data names, brought into a directory whole or not at all, within its limits."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import http.client
import os
import shutil
import urllib.error
import urllib.request
import zlib
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from trainmaster.artifacts.unpacking import ARCHIVE_SUFFIXES, UnpackLimits, unpack
from trainmaster.objects import ObjectStore
from trainmaster.objects.errors import (
    ObjectChangedError,
    StoreTrouble,
    UnreachableStoreError,
    error_of,
    trouble_of,
)
from trainmaster.spec.errors import (
    UsageError,
)
from trainmaster.spec.locking import locked

_WEB: Final = ("http", "https")
# Real data are seldom packed a hundredfold; what is smaller than this in the end does no harm.
_MOST_TIMES: Final = 100
_SMALL_BYTES: Final = 2 << 30
_RESERVE_BYTES: Final = 1 << 30
_READ_BYTES: Final = 1 << 20
_TIMEOUT_S: Final = 60.0


def fetch_url(
    url: str,
    directory: Path,
    *,
    sha256: str | None = None,
    size_limit_bytes: int | None = None,
    label: str = "",
) -> None:
    """Bring what a URL names into a directory, whole or not at all; once.

    ``http(s)://`` and ``file://`` name one file, which is unpacked if it is an archive (tar, zip); other
    schemes name all objects below a prefix of an object store.

    Args:
        url: what.
        directory: where.
        sha256: of the one file, in hexadecimal digits; None: it is taken as it comes.
        size_limit_bytes: most of it, before and after it is unpacked. None: as much as the disk has room for,
            and of an archive not more than a hundred times its own size (or 2 GiB).
        label: what the URL is called in messages, if secrets were filled in.

    Raises:
        UsageError: there is nothing, it is not what is meant, it is too large, or the archive is none.
        TrainmasterError: it cannot be read, or there is no room.
    """
    with locked(directory):
        if directory.is_dir():
            with contextlib.suppress(OSError):
                os.utime(directory)  # what removes those that nothing needs goes by their last use
            return
        draft = directory.with_name(f".{directory.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        try:
            if urlsplit(url).scheme in (*_WEB, "file"):
                _fetch_file(url, label or url, draft, sha256, size_limit_bytes)
            else:
                _fetch_objects(url, draft, size_limit_bytes)
            draft.rename(directory)
        except OSError as error:
            words = f"{label or url} cannot be brought here: {error}"
            raise error_of(trouble_of(error), words, "Is it there, and is there room?") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def url_directory(cache: Path, url: str, sha256: str | None = None) -> Path:
    """Where what a URL names lies, for all runs that name it; what was verified lies apart."""
    meant = f"{url}\0{sha256.lower()}" if sha256 else url
    return cache / "data" / hashlib.sha256(meant.encode()).hexdigest()[:20]


def _fetch_file(url: str, label: str, draft: Path, sha256: str | None, size_limit_bytes: int | None) -> None:
    name = Path(unquote(urlsplit(url).path)).name or "data"
    is_archive = name.endswith(ARCHIVE_SUFFIXES)
    place = draft / name
    if urlsplit(url).scheme == "file":
        source = Path(unquote(urlsplit(url).path))
        if source.is_dir():
            if sha256:
                raise UsageError(f"{label} is a directory, which has no sha256", "Leave `sha256` out.")
            shutil.copytree(source, draft, symlinks=True, dirs_exist_ok=True)
            return
        with source.open("rb") as file:
            _take(label, file, None if is_archive else place, sha256, room_bytes(draft, size_limit_bytes))
            if is_archive:
                file.seek(0)
                unpack(file, name, draft, _limits(draft, file, size_limit_bytes))
            else:
                shutil.copystat(source, place)
        return
    _download(url, label, place, sha256, size_limit_bytes)
    if is_archive:
        with place.open("rb") as file:
            place.unlink()  # the archive may hold a file of this name
            unpack(file, name, draft, _limits(draft, file, size_limit_bytes))


def _download(url: str, label: str, place: Path, sha256: str | None, size_limit_bytes: int | None) -> None:
    most_bytes = room_bytes(place.parent, size_limit_bytes)
    try:
        with open_web(url, _TIMEOUT_S) as answer:
            if answer.status not in (200, 203):  # nothing, or a part
                raise UsageError(f"{label}: {answer.status} {answer.reason}", "Look at the URL.")
            expected = answer.headers.get("Content-Length", "")
            expected_bytes = int(expected) if expected.isdecimal() else None
            if (expected_bytes or 0) > most_bytes:
                raise _too_large(label, most_bytes)
            if sha256 is None and _is_packed_on_the_way(answer, place.name):
                with gzip.open(answer) as content:
                    _take(label, content, place, None, most_bytes)
            else:
                _take(label, answer, place, sha256, most_bytes, expected_bytes)
    except urllib.error.HTTPError as error:
        error.close()
        words = f"{label}: {error.code} {error.reason}"
        if (trouble := trouble_of(error)) is StoreTrouble.UNREACHABLE:
            raise error_of(trouble, words, "It is safe to try again.") from error
        raise UsageError(words, "Look at the URL.") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UnreachableStoreError(
            f"{label}: the connection was cut, or changes bytes ({error})", "It is safe to try again."
        ) from error
    except http.client.HTTPException as error:  # a server that does not speak HTTP, or a URL that is none
        words = f"{label}: {error or type(error).__name__}"
        raise error_of(trouble_of(error), words, "Look at the URL.") from error


def _is_packed_on_the_way(answer: http.client.HTTPResponse, name: str) -> bool:
    """Whether a server sends something else than the file, as stores do with what was put there packed.

    Some say so of files that are themselves packed, as their names tell. With a ``sha256`` the bytes that
    come are meant.
    """
    encoding = answer.headers.get("Content-Encoding", "").strip().lower()
    return encoding in ("gzip", "x-gzip") and not name.endswith((".gz", ".tgz"))


def open_web(url: str, timeout_s: float, method: str = "GET") -> http.client.HTTPResponse:
    """Ask for an ``http(s)://`` URL; its user and password go in a header, and to no other host.

    Args:
        url: what.
        timeout_s: for each answer.
        method: ``GET``, or ``HEAD`` for the answer without the content.

    Raises:
        OSError: it cannot be had.
    """
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    plain = urlunsplit(parts._replace(netloc=host))
    request = urllib.request.Request(plain, method=method)  # noqa: S310 - http(s) only
    if user:
        word = base64.b64encode(unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {word}")
    answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout_s)  # noqa: S310
    return answer


def _take(
    url: str,
    source: BinaryIO | gzip.GzipFile,
    place: Path | None,
    sha256: str | None,
    most_bytes: int,
    expected_bytes: int | None = None,
) -> None:
    """Read a file to its end, counting and verifying; it is written to ``place``, if there is one."""
    if place is None and not sha256:
        return
    digest, size_bytes = hashlib.sha256(), 0
    with place.open("wb") if place else contextlib.nullcontext() as out:
        while block := source.read(_READ_BYTES):
            size_bytes += len(block)
            if size_bytes > most_bytes and out:
                raise _too_large(url, most_bytes)
            if sha256:
                digest.update(block)
            if out:
                out.write(block)
    if expected_bytes not in (None, size_bytes):
        raise UnreachableStoreError(f"{url}: the connection was cut", "It is safe to try again.")
    if sha256 and (found := digest.hexdigest()) != sha256.lower():
        raise UsageError(
            f"{url} is not what is meant: its sha256 is {found}, the recipe says {sha256.lower()}",
            "Somebody changed it, on the way or there. If it is the right one, correct `sha256`.",
        )


def room_bytes(directory: Path, size_limit_bytes: int | None) -> int:
    """How much may be written: other work on this disk keeps some room."""
    disk = shutil.disk_usage(directory)
    room_bytes = max(disk.free - min(disk.total // 20, _RESERVE_BYTES), 0)
    return room_bytes if size_limit_bytes is None else min(room_bytes, size_limit_bytes)


def _limits(draft: Path, archive: BinaryIO, size_limit_bytes: int | None) -> UnpackLimits:
    most_bytes = room_bytes(draft, size_limit_bytes)
    if size_limit_bytes is None:
        packed_bytes = os.fstat(archive.fileno()).st_size
        most_bytes = min(most_bytes, max(_MOST_TIMES * packed_bytes, _SMALL_BYTES))
    return UnpackLimits(most_bytes)


def _too_large(url: str, most_bytes: int) -> UsageError:
    return UsageError(
        f"{url} is larger than the {most_bytes:,} bytes that there may be",
        "That is `size_limit` in the recipe, or what the disk has room for.",
    )


def _fetch_objects(url: str, draft: Path, size_limit_bytes: int | None) -> None:
    store = ObjectStore(url)
    count = 0
    left_bytes = most_bytes = room_bytes(draft, size_limit_bytes)
    for info in store.list():
        target = Path(os.path.normpath(draft / info.key))
        if not target.is_relative_to(draft) or target == draft:
            raise UsageError(f"{store.url}: the object {info.key!r} would lie outside", "Rename it.")
        target.parent.mkdir(parents=True, exist_ok=True)
        written_bytes = 0
        with target.open("wb") as out:
            for block in store.blocks(info.key):
                written_bytes += len(block)
                if written_bytes > left_bytes:
                    raise _too_large(store.url, most_bytes)
                out.write(block)
        if written_bytes != info.size_bytes:
            raise ObjectChangedError(f"{store.url}/{info.key} changed while it was read", "Try again.")
        left_bytes -= written_bytes
        count += 1
    if count == 0:
        raise UsageError(f"{store.url}: there are no objects below", "Look at the URL.")
