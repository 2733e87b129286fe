"""`CodeUploads`: code that is sent to a server, kept by its digest until a recipe names it."""

from __future__ import annotations

import hashlib
import re
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from trainmaster.artifacts.scratch import move_into_place, scratch_directory
from trainmaster.spec.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from trainmaster.control.layout import Home

#: As much code as a snapshot may have, and so much more for what a tar adds.
MAX_BYTES: Final = 100 << 20
MAX_FILES: Final = 100_000
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_BEGIN: Final = "wrong code"


class CodeUploads:
    """Directories below ``HOME/uploads/TEAM/code``, named by the SHA-256 of the tar that they came in.

    Args:
        home: of the server.
        team: whose they are: nobody learns what others have sent. None is the owner of the home.
    """

    def __init__(self, home: Home, team: str | None) -> None:
        self._root = home.root / "uploads" / (f"team-{team}" if team else "own") / "code"

    def has(self, digest: str) -> bool:
        """Whether it was sent already."""
        return bool(_DIGEST.fullmatch(digest)) and (self._root / digest).is_dir()

    def find(self, digest: str) -> Path:
        """Where it is.

        Raises:
            NotFoundError: it was never sent.
        """
        if not self.has(digest):
            raise NotFoundError(
                f"no code {digest[:64]} was sent", f"PUT /api/v1/code/{digest[:64]} with a tar first."
            )
        return self._root / digest

    def put(self, digest: str, packed: BinaryIO) -> bool:
        """Keep what a tar holds; safe to repeat, also at the same time.

        Args:
            digest: SHA-256 of the tar, 64 hexadecimal digits.
            packed: the tar, not compressed: what is small stays small.

        Returns:
            False if it was there already.

        Raises:
            UsageError: it is something else than the digest says, is too large, or would leave its directory.
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
        packed.seek(0)
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with scratch_directory(self._root / digest) as scratch:
            _unpack(packed, scratch)
            return move_into_place(scratch, self._root / digest)


def _unpack(packed: BinaryIO, into: Path) -> None:
    size = 0
    try:
        with tarfile.open(fileobj=packed, mode="r:") as archive:
            for number, member in enumerate(archive, 1):
                size += member.size  # a sparse file may claim more than was sent
                if size > MAX_BYTES or number > MAX_FILES:
                    limit = f"{MAX_BYTES >> 20} MB or {MAX_FILES:,} files"
                    raise UsageError(f"{_BEGIN}: unpacked it has more than {limit}", "Send data as a volume.")
                if not (member.isreg() or member.isdir()):
                    raise UsageError(
                        f"{_BEGIN}: {member.name!r} is neither a file nor a directory",
                        "Send files, not links: `tar --dereference -c`.",
                    )
                # Its filter is not enough by itself: until 3.11.13 chains of links led outside.
                archive.extract(member, into, filter="data")
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise UsageError(
            f"{_BEGIN}: no tar that can be unpacked: {error}", "Make it with `tar -c`, without compression."
        ) from error
