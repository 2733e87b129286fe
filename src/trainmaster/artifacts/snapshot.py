# ruff: noqa: PTH102, PTH115, PTH123, PTH211
# Names are any bytes and files are many: os functions on plain text are exact, and four times as fast.
"""Snapshots: the code of a run, frozen under the hash of its content.

``ROOT/<digest>/`` is a master copy that nobody writes to; every member gets a copy of its
own. Two runs of the same code share one master.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainmaster.artifacts.code_tree import CodeFile, CodeTree, scan_code
from trainmaster.artifacts.scratch import move_into_place, scratch_directory
from trainmaster.objects.errors import explained
from trainmaster.spec.errors import UsageError

_BLOCK_BYTES = 1 << 20
# A directory that is edited while it is read settles in a moment; one that never does is no code.
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Code, frozen.

    Attributes:
        digest: SHA-256 over the paths, executable bits and contents, in hexadecimal.
        path: the master copy.
        total_bytes: the size of its files.
        notes: what was left out that the user may miss.
    """

    digest: str
    path: Path
    total_bytes: int
    notes: tuple[str, ...] = ()


def take_snapshot(source: str, base: Path, root: Path, *, exclude: Sequence[Path] = ()) -> Snapshot:
    """Freezes the code that a recipe names.

    Safe to repeat after a crash, and from several processes at once.

    Args:
        source: a directory, a wheel (``*.whl``), or a git URL, with ``@ref`` if it is not the
            default branch.
        base: what a relative ``source`` is relative to.
        root: where snapshots are kept.
        exclude: directories that are left out, such as Trainmaster's own home.

    Raises:
        UsageError: there is no such code, it is over 100 MB, or it cannot be read.
        PublishError: the snapshot cannot be written.
    """
    from trainmaster.artifacts.code_sources import as_git, cloned, unpacked

    git = as_git(source)
    if git is not None or source.endswith(".whl"):
        with _writing(root), scratch_directory(root / "source") as scratch:
            if git is not None:
                cloned(git, scratch)
            else:
                unpacked(base / Path(source).expanduser(), scratch)
            # What a commit or a wheel holds is meant to be there, whatever .gitignore says.
            return _frozen(scratch, source, root, (), is_filtered=False)
    directory = _directory(source, base / Path(source).expanduser())
    return _frozen(directory, source, root, [*exclude, root], is_filtered=True)


def check_code(source: str, base: Path, *, exclude: Sequence[Path] = ()) -> None:
    """Refuses code that `take_snapshot` would refuse, as far as that shows without copying or downloading.

    Args:
        source: as for `take_snapshot`.
        base: what a relative ``source`` is relative to.
        exclude: directories that are left out.

    Raises:
        UsageError: there is no such code, or it is over 100 MB.
    """
    from trainmaster.artifacts.code_sources import as_git

    if as_git(source) is not None:
        return
    place = base / Path(source).expanduser()
    if not source.endswith(".whl"):
        scan_code(_directory(source, place), source, exclude, is_filtered=True)
    elif not place.is_file():
        raise UsageError(f"code: there is no wheel {place}.", "Build it first, or correct the name.")


def _directory(source: str, directory: Path) -> Path:
    if not directory.is_dir():
        raise UsageError(
            f"code: {source}: {'is no directory' if directory.exists() else 'there is no such directory'} "
            f"({directory}).",
            "Name a directory, a wheel (*.whl) or a git URL, such as https://github.com/me/project@main.",
        )
    return directory


def materialise(snapshot_path: Path, directory: Path) -> None:
    """Gives a member its own copy of a snapshot, which it may write to.

    The copy appears when it is complete; if there is one already, nothing happens.

    Args:
        snapshot_path: the master copy.
        directory: what the copy will be.

    Raises:
        UsageError: there is no such snapshot.
        PublishError: the copy cannot be written.
    """
    if _has_entries(directory):
        return
    if not snapshot_path.is_dir():
        raise UsageError(
            f"The code's snapshot {snapshot_path} is gone.", "Start a new run: this one cannot be resumed."
        )
    with _writing(directory), scratch_directory(directory) as scratch:
        _copy_tree(os.fspath(snapshot_path), os.fspath(scratch))
        move_into_place(scratch, directory)


def _frozen(
    directory: Path, source: str, root: Path, exclude: Sequence[Path], *, is_filtered: bool
) -> Snapshot:
    for _ in range(_TRIES):
        tree = scan_code(directory, source, exclude, is_filtered=is_filtered)
        try:
            hashes = [_hash(file) for file in tree.files]
            digest = _digest(tree, hashes)
            path = root / digest
            if not path.is_dir():
                with _writing(root), scratch_directory(root / "snapshot") as scratch:
                    _store(tree, hashes, os.fspath(scratch))
                    move_into_place(scratch, path)
            return Snapshot(digest, path, tree.total_bytes, tuple(tree.notes))
        except _ChangedError:
            continue
    raise UsageError(
        f"code: {source}: its files keep changing while they are read.",
        "Leave out what a running program writes there, in .gitignore.",
    )


class _ChangedError(Exception):
    """A file is no longer what it was a moment ago."""


class _writing:  # noqa: N801 - reads as a statement; a generator would cost more than the copy
    """Says what to do when a copy cannot be written."""

    def __init__(self, where: Path) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            raise explained(error, "write", str(self._where)) from error


def _hash(file: CodeFile) -> str:
    try:
        data = _read(file)
    except FileNotFoundError:
        raise _ChangedError from None
    except OSError as error:
        raise UsageError(
            f"code: {file.place} cannot be read: {error.strerror}.",
            "Change its permissions, or leave it out in .gitignore.",
        ) from error
    return hashlib.sha256(data).hexdigest()


def _read(file: CodeFile) -> bytes:
    # Whole: all of it together is below the limit.
    with open(file.place, "rb", buffering=0) as stream:
        return stream.read()


def _digest(tree: CodeTree, hashes: Sequence[str]) -> str:
    lines = [
        f"f\0{file.path}\0{file.is_executable:d}\0{content}"
        for file, content in zip(tree.files, hashes, strict=True)
    ]
    lines += [f"l\0{path}\0{target}" for path, target in tree.links]
    lines += [f"d\0{path}" for path in tree.folders]
    return hashlib.sha256("\0\0".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()


def _store(tree: CodeTree, hashes: Sequence[str], scratch: str) -> None:
    for folder in tree.folders:
        os.mkdir(f"{scratch}/{folder}", 0o755)
    for file, content in zip(tree.files, hashes, strict=True):
        try:
            data = _read(file)
        except FileNotFoundError:
            raise _ChangedError from None
        if hashlib.sha256(data).hexdigest() != content:
            raise _ChangedError
        # Read-only, against accidents: a master that changes would be a lie about its name.
        _create(f"{scratch}/{file.path}", data, 0o555 if file.is_executable else 0o444)
    for path, target in tree.links:
        os.symlink(target, f"{scratch}/{path}")


def _create(place: str, data: bytes, mode: int) -> None:
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)


def _has_entries(directory: Path) -> bool:
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is not None
    except FileNotFoundError:
        return False


def _copy_tree(source: str, target: str) -> None:
    with os.scandir(source) as entries:
        found = list(entries)
    for entry in found:
        place = f"{target}/{entry.name}"
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), place)
        elif entry.is_dir():
            os.mkdir(place, 0o755)
            _copy_tree(entry.path, place)
        else:
            _copy_file(entry.path, place)


def _copy_file(source: str, place: str) -> None:
    descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        mode = 0o755 if os.fstat(descriptor).st_mode & 0o100 else 0o644
        data = os.read(descriptor, _BLOCK_BYTES)
        target = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            while data:
                view = memoryview(data)
                while view:
                    view = view[os.write(target, view) :]
                # A short read is the end in all but rare cases; asking again would double the calls.
                data = os.read(descriptor, _BLOCK_BYTES) if len(data) == _BLOCK_BYTES else b""
        finally:
            os.close(target)
    finally:
        os.close(descriptor)
