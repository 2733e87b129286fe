"""`pack`: the code of a recipe as the tar that a server takes: the same code is the same tar."""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from trainmaster.artifacts import take_snapshot
from trainmaster.artifacts.code_tree import not_sent_note
from trainmaster.control.checks.preflight import check_sent

if TYPE_CHECKING:
    from trainmaster.spec import Recipe


def pack(recipe: Recipe, packed: IO[bytes]) -> tuple[str, tuple[str, ...]]:
    """Write a recipe's code into a file, links as what they lead to.

    Returns:
        The SHA-256 of the tar, and what was left out that the user may miss.

    Raises:
        UsageError: there is no such code, it is over 100 MB, it cannot be read, or data are outside of it.
    """
    with tempfile.TemporaryDirectory(prefix="trainmaster-code-") as place:
        snapshot = take_snapshot(
            recipe.code,
            recipe.directory,
            Path(place),
            exclude=recipe.secret_files,
            include=recipe.include,
        )
        check_sent(recipe, snapshot.path)
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT, dereference=True) as archive:
            for path in sorted(snapshot.path.rglob("*")):
                archive.add(path, str(path.relative_to(snapshot.path)), recursive=False, filter=_plain)
    packed.seek(0)
    digest = hashlib.file_digest(packed, "sha256").hexdigest()  # type: ignore[arg-type]
    return digest, (*snapshot.notes, *filter(None, [not_sent_note(snapshot.not_sent)]))


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nothing of who packs it, and when."""
    if member.islnk():  # the second name of a file: servers take files only
        member.type = tarfile.REGTYPE
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member
