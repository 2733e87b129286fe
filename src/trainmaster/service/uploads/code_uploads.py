"""`CodeUploads`: code that is sent to a server, kept by its digest until a recipe names it."""

from __future__ import annotations

import hashlib
import re
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from trainmaster.artifacts.scratch import move_into_place, scratch_directory
from trainmaster.artifacts.unpacking import TAR_SUFFIXES, TooLargeError, UnpackLimits, unpack
from trainmaster.control.task.layout import Home
from trainmaster.objects import ObjectStore
from trainmaster.spec.errors import NotFoundError, TrainmasterError, UsageError

#: As much code as a snapshot may have, and so much more for what a tar adds.
MAX_BYTES: Final = 100 << 20
MAX_FILES: Final = 100_000
#: What the code of a team takes at once.
QUOTA_BYTES: Final = 20 * 10**9
#: Code is kept for so long after it was sent, in seconds: a run has a copy of its own.
KEPT_S: Final = 30 * 86400.0
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_BEGIN: Final = "wrong code"
_BLOCK_BYTES: Final = 1 << 20


class TeamQuotaError(TrainmasterError):
    """A team has no room left (HTTP 507)."""


class CodeUploads:
    """Code of a team, named by the SHA-256 of the tar that it came in.

    The tar is in the object store, for every server; what it holds is unpacked below ``HOME/uploads``.

    Args:
        home: of the server.
        team: whose they are: teams do not learn what others have sent. None is the owner of the home.
    """

    def __init__(self, home: Home, team: str | None) -> None:
        owner = _owner(team)
        self._has_quota = team is not None
        self._root = home.root / "uploads" / owner / "code"
        self._store = ObjectStore(f"{home.store_url.rstrip('/')}/uploads/code/{owner}")

    def has(self, digest: str) -> bool:
        """Whether it was sent already."""
        return bool(_DIGEST.fullmatch(digest)) and self._store.exists(f"{digest}.tar")

    def find(self, digest: str) -> Path:
        """The directory with what it holds.

        Raises:
            NotFoundError: it was never sent.
        """
        place = self._root / digest
        if not self.has(digest):
            raise NotFoundError(
                f"no code {digest[:64]} was sent", f"PUT /api/v1/code/{digest[:64]} with a tar first."
            )
        if not place.is_dir():  # another server has taken it
            with tempfile.TemporaryFile() as packed:
                for block in self._store.blocks(f"{digest}.tar"):
                    packed.write(block)
                with self._unpacked(digest, packed) as scratch:
                    move_into_place(scratch, place)
        return place

    def put(self, digest: str, packed: BinaryIO) -> bool:
        """Keep a tar; safe to repeat, also at the same time.

        Args:
            digest: SHA-256 of the tar, 64 hexadecimal digits.
            packed: the tar, not compressed: what is small stays small.

        Returns:
            False if it was there already.

        Raises:
            UsageError: it is something else than the digest says, is too large, or would leave its directory.
            QuotaError: the team has no room left.
        """
        if not _DIGEST.fullmatch(digest):
            raise UsageError(
                f"{_BEGIN}: {digest[:64]!r} is no SHA-256", "Write 64 hexadecimal digits: those of the tar."
            )
        if self.has(digest):
            return False
        packed.seek(0)
        found = hashlib.file_digest(packed, "sha256").hexdigest()  # type: ignore[arg-type]
        if found != digest:
            raise UsageError(f"{_BEGIN}: its SHA-256 is {found}, not {digest}", "Send it once more, whole.")
        size_bytes = packed.seek(0, 2)
        self._check_room(size_bytes)
        with self._unpacked(digest, packed) as scratch:
            packed.seek(0)
            self._store.put_blocks(f"{digest}.tar", iter(lambda: packed.read(_BLOCK_BYTES), b""), size_bytes)
            move_into_place(scratch, self._root / digest)
        return True

    def add(self, file: Path, name: str) -> str:
        """Keep what an archive holds.

        Args:
            file: a tar (also compressed), a zip, a wheel, or one Python script.
            name: what it is called: says of which kind it is.

        Returns:
            Its digest, for a request to run it.

        Raises:
            UsageError: it is none of these, is too large, or holds what no archive should.
        """
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with scratch_directory(self._root / "received") as scratch:
            if name.endswith(".py"):
                shutil.copyfile(file, scratch / name.rpartition("/")[2])
            elif name.endswith((*TAR_SUFFIXES, ".zip", ".whl")):
                _unpack(file, name, scratch)
            else:
                raise UsageError(
                    f"{_BEGIN}: {name} is no archive",
                    "Send a wheel, a zip, a tar (also .gz, .bz2, .xz), or one script (.py).",
                )
            return self.add_directory(scratch)

    def add_directory(self, directory: Path) -> str:
        """Keep the files below a directory; gives their digest."""
        with tempfile.TemporaryFile() as packed:
            _pack(directory, packed)
            packed.seek(0)
            digest = hashlib.file_digest(packed, "sha256").hexdigest()
            self.put(digest, packed)
            return digest

    def _check_room(self, size_bytes: int) -> None:
        if not self._has_quota:
            return
        there = sum(each.size_bytes for each in self._store.list())
        if there + size_bytes > QUOTA_BYTES:
            raise TeamQuotaError(
                f"{size_bytes:,} bytes do not fit: code takes {there:,} of {QUOTA_BYTES:,}",
                f"Code goes by itself {KEPT_S / 86400:.0f} days after it was sent.",
            )

    @contextmanager
    def _unpacked(self, digest: str, packed: BinaryIO) -> Iterator[Path]:
        """What a tar holds, in a directory that goes unless it is moved."""
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with scratch_directory(self._root / digest) as scratch:
            packed.seek(0)
            _unpack(packed, "code.tar", scratch)
            for path in scratch.rglob("*"):
                if path.is_symlink():
                    raise UsageError(
                        f"{_BEGIN}: {str(path.relative_to(scratch))!r} is neither a file nor a directory",
                        "Send files, not links: `tar --dereference -c`.",
                    )
            yield scratch


def collect_code(home: Home, now: float, kept: Collection[tuple[str, str]] = ()) -> None:
    """Remove the code of all teams that was sent long ago; several servers may do so.

    Args:
        home: of the server.
        now: Unix seconds.
        kept: team (empty for the owner of the home) and digest of what workflows run again and again.
    """
    store = ObjectStore(f"{home.store_url.rstrip('/')}/uploads/code")
    needed = {f"{_owner(team or None)}/{digest}.tar" for team, digest in kept}
    old = (each.key for each in store.details() if now - each.modified_s > KEPT_S)
    store.delete([key for key in old if key not in needed])
    for place in (home.root / "uploads").glob("*/code/*"):
        with suppress(OSError):
            if now - place.stat().st_mtime > KEPT_S:
                shutil.rmtree(place)


def _owner(team: str | None) -> str:
    """The directory of a team's code."""
    return "own" if team is None else f"team-{team}"


def _unpack(archive: Path | BinaryIO, name: str, into: Path) -> None:
    try:
        unpack(archive, name, into, UnpackLimits(MAX_BYTES, MAX_FILES))
    except TooLargeError as error:
        limit = f"{MAX_BYTES >> 20} MB or {MAX_FILES:,} files"
        raise UsageError(f"{_BEGIN}: unpacked it has more than {limit}", "Send data as a volume.") from error
    except UsageError as error:
        raise UsageError(f"{_BEGIN}: {error.args[0]}", "Pack it again, or send a tar: `tar -c`.") from error


def _pack(directory: Path, into: BinaryIO) -> None:
    """The same files make the same tar; a link is what it leads to."""
    with tarfile.open(fileobj=into, mode="w") as archive:
        for path in sorted(directory.rglob("*")):
            member = tarfile.TarInfo(str(path.relative_to(directory)))
            real = path.resolve()
            if not real.is_relative_to(directory.resolve()) or (path.is_symlink() and not real.is_file()):
                raise UsageError(
                    f"{_BEGIN}: {member.name!r} is a link to no file in it",
                    "Leave it out, or send what it leads to.",
                )
            if real.is_dir():
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(member)
                continue
            status = real.stat()
            member.size, member.mode = status.st_size, 0o755 if status.st_mode & 0o100 else 0o644
            with real.open("rb") as file:
                archive.addfile(member, file)
