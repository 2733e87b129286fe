# ruff: noqa: PTH100, PTH101, PTH103, PTH120, PTH123, PTH211
# Names are any bytes and files are many: os functions on plain text are exact, and four times as fast.
"""Bringing an artifact back: verified, and whole or not at all."""

import hashlib
import os
from pathlib import Path

from trainmaster.artifacts.manifest import DamagedArtifactError, FileEntry, Manifest
from trainmaster.artifacts.owner import Owner
from trainmaster.artifacts.publishing import stored_manifest
from trainmaster.artifacts.scratch import (
    exchange_into_place,
    is_occupied,
    move_into_place,
    occupied,
    scratch_directory,
)
from trainmaster.objects.errors import explaining
from trainmaster.objects.object_store import ObjectStore
from trainmaster.objects.parallel import each
from trainmaster.spec.errors import NotFoundError


def fetch(
    uri: str, directory: Path, *, verify: bool = True, overwrite: bool = False, owner: Owner | None = None
) -> Manifest:
    """Downloads an artifact into a directory that appears only when it is complete.

    Args:
        uri: the artifact.
        directory: where; absent or empty, or replaced in one step with ``overwrite``.
        verify: compare the SHA-256 of every file; sizes are compared in any case.
        overwrite: replace what is there.
        owner: whose it has to be; anybody's by default.

    Raises:
        ForeignArtifactError: it is another's.
        NotFoundError: there is no complete artifact.
        UsageError: the directory is not empty.
        PublishError: a file is missing or damaged, the manifest names something outside, the
            disk is full, or the store fails. Nothing was changed.
    """
    store = ObjectStore(uri)
    manifest = stored_manifest(store)
    if manifest is None:
        raise NotFoundError(
            f"{store.url}: there is no complete artifact.",
            "Look at the URI; `trainmaster models` shows those of all runs.",
        )
    if owner is not None:
        owner.require(manifest, store.url)
    target = Path(os.path.abspath(directory))
    if not overwrite and is_occupied(target):
        raise occupied(target)
    with explaining("write", str(target)), scratch_directory(target) as scratch:
        _fill(store, manifest, scratch, verify)
        if overwrite:
            exchange_into_place(scratch, target)
        elif not move_into_place(scratch, target):
            raise occupied(target)
    return manifest


def _fill(store: ObjectStore, manifest: Manifest, scratch: Path, verify: bool) -> None:
    """Writes everything below ``scratch``.

    The manifest was checked: no entry lies outside or below a link. Links come last even so.
    """
    root = os.fspath(scratch)
    folders = {os.path.dirname(entry.path) for entry in manifest.files}
    for folder in sorted(folders):
        os.makedirs(f"{root}/{folder}", exist_ok=True)
    files = [entry for entry in manifest.files if entry.kind == "file"]

    def write(entry: FileEntry) -> None:
        _write(store, entry, f"{root}/{entry.path}", verify)

    each(files, write, lambda entry: entry.size_bytes, store)
    for entry in manifest.files:
        if entry.kind == "symlink":
            os.symlink(entry.target, f"{root}/{entry.path}")
    for entry in reversed(manifest.files):
        if entry.kind == "directory":
            os.makedirs(f"{root}/{entry.path}", exist_ok=True)
            os.chmod(f"{root}/{entry.path}", entry.mode | 0o700)


def _write(store: ObjectStore, entry: FileEntry, path: str, verify: bool) -> None:
    digest = hashlib.sha256()
    size_bytes = 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600), "wb", buffering=0) as file:
        try:
            for block in store.blocks(entry.object):
                size_bytes += len(block)
                if size_bytes > entry.size_bytes:
                    break
                if verify:
                    digest.update(block)
                view = memoryview(block)
                while view:
                    view = view[file.write(view) :]
        except FileNotFoundError as error:
            raise DamagedArtifactError(
                f"{store.url}: {entry.path!r} is missing ({entry.object}).",
                "Somebody deleted it; publish again or use an earlier artifact. Nothing was changed.",
            ) from error
        if size_bytes != entry.size_bytes:
            more = "more than that" if size_bytes > entry.size_bytes else f"{size_bytes:,}"
            raise _damaged(store, entry, f"it should have {entry.size_bytes:,} bytes and has {more}")
        if verify and digest.hexdigest() != entry.sha256:
            raise _damaged(store, entry, f"its SHA-256 should be {entry.sha256} and is {digest.hexdigest()}")
        # Readable and writable for its owner whatever it was: it is theirs to change or delete.
        os.fchmod(file.fileno(), entry.mode | 0o600)
        os.utime(file.fileno(), ns=(entry.mtime_ns, entry.mtime_ns))


def _damaged(store: ObjectStore, entry: FileEntry, fault: str) -> DamagedArtifactError:
    return DamagedArtifactError(
        f"{store.url}: {entry.path!r} is damaged: {fault}.",
        "Fetch it again; if it stays, publish again or use an earlier artifact. Nothing was changed.",
    )
