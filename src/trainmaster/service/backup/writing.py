"""`back_up`: a home and its database in one file, from below a server that goes on.

What of a home belongs into a backup, and in which order. Pure.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import secrets
import stat
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

import sqlalchemy as sa

from trainmaster import __version__
from trainmaster.artifacts.scratch import scratch_directory
from trainmaster.control.task.layout import Home
from trainmaster.dataclass import dataclass, field
from trainmaster.db import Database, copies
from trainmaster.db import tables as t
from trainmaster.db.engine import SCHEMA_REVISION
from trainmaster.service.driving.encryption import KEY_FILE_VARIABLE
from trainmaster.spec.errors import UsageError

#: Entries of an archive.
DATABASE: Final = "database"
HOME: Final = "home"
MANIFEST: Final = "manifest.json"
#: Of the manifest; another one is not read.
FORM: Final = 1

#: Processes of one machine, sockets and keys that are made again, and a lab with its hosts.
_OF_THIS_MACHINE: Final = ("supervisor", "servers", "drivers", "access", "profiles", "lab")
_LEFT_OUT: Final = re.compile(
    rf"(?:{'|'.join(_OF_THIS_MACHINE)})(?:/.*)?"
    r"|trainmaster\.db(?:-.*)?"
    r"|(?:.*/)?[^/]*\.lock"
    r"|(?:.*/)?\.[^/]*in-the-making-[^/]*(?:/.*)?"
    r"|(?:[^/]+/|(?:clusters|providers)/[^/]+/)?\.[^/]+\.[0-9a-f]{16}"  # a draft of `write_private`
    r"|(?:taken/[^/]+/)?lab"
    # Data that are mounted or fetched again, /tmp of members.
    r"|(?:taken/[^/]+/)?runs/[^/]+/inputs/(?![^/]*\.json$).*"
    r"|(?:taken/[^/]+/)?runs/[^/]+/tasks/[^/]+/\d+/\d+/tmp(?:/.*)?"
)
_HEAD: Final = re.compile(r"store/(?:.*/heads/[^/]*|.*/manifest\.json)")
_PARTS: Final = re.compile(r"store/.*/manifests/[^/]*")
#: So often it is looked for what has come in the place of what was pruned meanwhile.
_ROUNDS: Final = 3


def is_kept(path: str) -> bool:
    """Whether a path below a home belongs into a backup, and what is below it may."""
    return _LEFT_OUT.fullmatch(path) is None


def order(path: str) -> int:
    """Which files are listed first: what refers to others, as what it refers to was written before it.

    >>> order("store/volumes/pets/heads/000001.json"), order("store/volumes/pets/chunks/81/81c4")
    (0, 2)
    """
    return 0 if _HEAD.fullmatch(path) else 1 if _PARTS.fullmatch(path) else 2


#: A file that gets shorter while it is read is read so often.
_TRIES: Final = 5


@dataclass
class _BackupArchive:
    """What was put into it until now."""

    tar: tarfile.TarFile
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    directories: dict[str, int] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)

    def add(self, name: str, path: Path) -> None:
        """Put a file into it, as long as it is now: logs grow. One that is gone is left out."""
        for _ in range(_TRIES):
            try:
                # Not blocked by a pipe that somebody has just put there.
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            except FileNotFoundError:
                return
            except OSError:
                self.unreadable.append(name)
                return
            with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    return
                header = tarfile.TarInfo(name)
                header.size, header.mtime, header.mode = status.st_size, status.st_mtime, 0o600
                read = _Read(file)
                self.tar.addfile(header, read)
            if not read.is_short:
                mode = stat.S_IMODE(status.st_mode)
                self.files[name] = {"size": header.size, "sha256": read.hash.hexdigest(), "mode": mode}
                return
        self.files.pop(name, None)
        self.unreadable.append(name)


class _Read(io.RawIOBase):
    """A file with its hash; what it has lost meanwhile reads as zeros, so that the archive stays one."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.hash = hashlib.sha256()
        self.is_short = False

    def read(self, size: int = -1) -> bytes:
        found = self._file.read(size)
        self.is_short = self.is_short or len(found) < size
        found += bytes(max(0, size - len(found)))
        self.hash.update(found)
        return found


def back_up(home: Home, database: Database, file: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """Write a home and its database into a new file that only its owner can read.

    Args:
        home: which.
        database: of it.
        file: is not there yet; appears when it is whole.
        environ: the variables, which may name a key file.

    Returns:
        ``file``, ``files``, ``bytes``, ``at``, ``schema``, ``elsewhere`` and ``unreadable``.

    Raises:
        UsageError: the file is there already, or cannot be written.
        StoreError: the database cannot be used.
    """
    file = file.expanduser().absolute()
    if file.is_relative_to(home.root):
        raise UsageError(f"{file} lies in the home that is to be saved", "Name a file outside of it.")
    if os.path.lexists(file):
        raise _there(file)
    home.identity()  # a home that was just made has none yet
    try:
        with scratch_directory(file) as scratch:
            scratch.chmod(0o700)
            draft = scratch / "archive"
            at = time.time()
            # First: what rows refer to was written before them, so it is there when files are read.
            copies.save(database.engine, scratch / DATABASE)
            with (
                open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out,  # noqa: PTH123
                tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as tar,
            ):
                archive = _BackupArchive(tar)
                archive.add(DATABASE, scratch / DATABASE)
                _add_home(archive, home.root)
                manifest = {
                    "form": FORM,
                    "id": secrets.token_hex(16),
                    "version": __version__,
                    "schema": SCHEMA_REVISION,
                    "at": at,
                    "home": str(home.root),
                    "identity": home.identity(),
                    "database": database.engine.url.render_as_string(hide_password=True),
                    "elsewhere": _elsewhere(home, database, environ),
                    "unreadable": [each.removeprefix(f"{HOME}/") for each in archive.unreadable],
                    "files": archive.files,
                    "directories": archive.directories,
                    "links": archive.links,
                }
                _add_text(tar, MANIFEST, json.dumps(manifest))
            descriptor = os.open(draft, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.link(draft, file)  # unlike a rename it replaces nothing
    except FileExistsError:
        raise _there(file) from None
    except OSError as error:
        raise UsageError(
            f"{file} cannot be written: {error.strerror or error}", "Name one on a disk with room."
        ) from error
    return {
        "file": str(file),
        "files": len(archive.files),
        "bytes": file.stat().st_size,
        **{name: manifest[name] for name in ("at", "schema", "elsewhere", "unreadable")},
    }


def _there(file: Path) -> UsageError:
    return UsageError(f"{file} is there already", "Name a new file: `home-$(date +%F).tar.gz`.")


def _add_home(archive: _BackupArchive, root: Path) -> None:
    """All files. What refers to others is listed before these, and put in after them if it is still there.

    A checkpoint that is pruned loses its manifest first, so that one which is still there at the end has all
    its files in the backup. Each kind is listed again, as others may have come.
    """
    for number in range(_ROUNDS):
        heads = [each for each in _walk(root, None if number else archive) if order(each[0]) == 0]
        for kind in (1, 2):
            for path, place in _walk(root, None):
                name = f"{HOME}/{path}"
                is_new = name not in archive.files and name not in archive.unreadable
                if order(path) == kind and (number == 0 or (path.startswith("store/") and is_new)):
                    archive.add(name, place)
        if all(os.path.lexists(place) for _, place in heads):
            break
    for path, place in heads:
        archive.add(f"{HOME}/{path}", place)


def _walk(root: Path, notes: _BackupArchive | None) -> Iterator[tuple[str, Path]]:
    """Regular files below a home; directories and links are noted."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(root / folder) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
            mode = stat.S_IMODE((root / folder).stat().st_mode)
        except FileNotFoundError:  # removed meanwhile
            continue
        except OSError:
            if notes is not None:
                notes.unreadable.append(f"{HOME}/{folder}")
            continue
        if notes is not None and folder:
            notes.directories[folder] = mode
        for entry in found:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if not is_kept(path):
                continue
            if entry.is_symlink():
                if notes is not None:
                    try:
                        notes.links[path] = os.readlink(entry.path)  # noqa: PTH115 - as it is written
                    except OSError:
                        continue
            elif entry.is_dir(follow_symlinks=False):
                if not (path.startswith("runs/") and os.path.ismount(entry.path)):  # data, mounted
                    waiting.append(path)
            elif entry.is_file(follow_symlinks=False):
                yield path, Path(entry.path)


def _elsewhere(home: Home, database: Database, environ: Mapping[str, str]) -> list[str]:
    """What the rows refer to that is not in the home: object stores, and a key file."""
    stores = {row["store_url"] for row in database.read(sa.select(t.run.c.store_url).distinct())}
    own = f"file://{str(home.root).replace('%', '%25')}/"
    found = sorted(url for url in stores | {home.store_url} if not url.startswith(own))
    named = environ.get(KEY_FILE_VARIABLE)
    if named and not Path(named).expanduser().absolute().is_relative_to(home.root):
        found.append(named)
    return found


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode()
    header = tarfile.TarInfo(name)
    header.size, header.mode = len(data), 0o600
    tar.addfile(header, io.BytesIO(data))
