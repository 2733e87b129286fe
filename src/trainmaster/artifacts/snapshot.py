# ruff: noqa: PTH102, PTH123, PTH211
# Names are any bytes and files are many: os functions on plain text are exact, and four times as fast.
"""Snapshots: the code of a run, frozen under the hash of its content.

``ROOT/<digest>/`` is a read-only master copy; every member gets a copy of its
own. Two runs of the same code share one master.
"""

import filecmp
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from trainmaster.artifacts.code_tree import CodeFile, CodeTree, NotSent, scan_code
from trainmaster.artifacts.scratch import is_occupied, made_whole, move_into_place, scratch_directory
from trainmaster.dataclass import dataclass
from trainmaster.objects.errors import explaining
from trainmaster.spec.errors import UsageError

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
        not_sent: what .gitignore leaves out.
    """

    digest: str
    path: Path
    total_bytes: int
    notes: tuple[str, ...] = ()
    not_sent: tuple[NotSent, ...] = ()


def take_snapshot(
    source: str, base: Path, root: Path, *, exclude: Sequence[Path] = (), include: Sequence[str] = ()
) -> Snapshot:
    """Freezes the code that a recipe names.

    Safe to repeat after a crash, and from several processes at once.

    Args:
        source: a directory, a wheel (``*.whl``), or a git URL, with ``@ref`` if it is not the
            default branch.
        base: what a relative ``source`` is relative to.
        root: where snapshots are kept.
        exclude: directories and files that are left out, such as Trainmaster's own home.
        include: patterns of what is taken of a directory although .gitignore leaves it out.

    Raises:
        UsageError: there is no such code, it is over 100 MB, or it cannot be read.
        PublishError: the snapshot cannot be written.
    """
    from trainmaster.artifacts.code_sources import as_git, cloned, unpacked

    git = as_git(source)
    if git is not None or source.endswith(".whl"):
        with explaining("write", str(root)), scratch_directory(root / "source") as scratch:
            if git is not None:
                cloned(git, scratch)
            else:
                unpacked(base / Path(source).expanduser(), scratch)
            # What a commit or a wheel holds is meant to be there, whatever .gitignore says.
            return _frozen(source, root, lambda: scan_code(scratch, source, (), is_filtered=False))
    directory = _directory(source, base / Path(source).expanduser())
    excluded = [*exclude, root]
    return _frozen(
        source, root, lambda: scan_code(directory, source, excluded, is_filtered=True, include=include)
    )


def check_code(
    source: str, base: Path, *, exclude: Sequence[Path] = (), include: Sequence[str] = ()
) -> CodeTree:
    """Refuses code that `take_snapshot` would refuse, as far as that shows without copying or downloading.

    Args:
        source: as for `take_snapshot`.
        base: what a relative ``source`` is relative to.
        exclude: directories that are left out.
        include: as for `take_snapshot`.

    Returns:
        What would be copied of a directory; nothing of a wheel or a repository.

    Raises:
        UsageError: there is no such code, or it is over 100 MB.
    """
    from trainmaster.artifacts.code_sources import as_git

    if as_git(source) is not None:
        return CodeTree()
    place = base / Path(source).expanduser()
    if not source.endswith(".whl"):
        return scan_code(_directory(source, place), source, exclude, is_filtered=True, include=include)
    if not place.is_file():
        raise UsageError(f"code: there is no wheel {place}.", "Build it first, or correct the name.")
    return CodeTree()


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
    if is_occupied(directory):
        return
    if not snapshot_path.is_dir():
        raise UsageError(
            f"The code's snapshot {snapshot_path} is gone.", "Start a new run: this one cannot be resumed."
        )
    with explaining("write", str(directory)), made_whole(directory) as scratch:
        shutil.copytree(snapshot_path, scratch, symlinks=True, copy_function=_copy_file, dirs_exist_ok=True)


def changed_since(snapshot_path: Path, source: str, base: Path) -> list[str]:
    """Files of a snapshot that its directory has not any more, or with other content.

    Args:
        snapshot_path: the master copy.
        source: as for `take_snapshot`; of a wheel or a repository nothing is known.
        base: what a relative ``source`` is relative to.
    """
    directory = base / Path(source).expanduser()
    if not directory.is_dir():
        return []
    files = (each for each in sorted(snapshot_path.rglob("*")) if each.is_file() and not each.is_symlink())
    return [
        str(name)
        for each in files
        if not _is_same(each, directory / (name := each.relative_to(snapshot_path)))
    ]


def _is_same(one: Path, other: Path) -> bool:
    try:
        return filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False


def _frozen(source: str, root: Path, scan: Callable[[], CodeTree]) -> Snapshot:
    for _ in range(_TRIES):
        tree = scan()
        try:
            hashes = [_hash(file) for file in tree.files]
            digest = _digest(tree, hashes)
            path = root / digest
            if not _taken(path):
                with explaining("write", str(root)), scratch_directory(root / "snapshot") as scratch:
                    _store(tree, hashes, os.fspath(scratch))
                    move_into_place(scratch, path)
            return Snapshot(digest, path, tree.total_bytes, tuple(tree.notes), tree.not_sent())
        except _ChangedError:
            continue
    raise UsageError(
        f"code: {source}: its files keep changing while they are read.",
        "Leave out what a running program writes there, in .gitignore.",
    )


def _taken(path: Path) -> bool:
    """Whether a snapshot is there; what removes those that nothing needs leaves it alone for a while then."""
    with suppress(PermissionError):  # another user's
        try:
            os.utime(path)
        except FileNotFoundError:
            return False
    return True


class _ChangedError(Exception):
    """A file is no longer what it was a moment ago."""


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
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        mode = 0o555 if file.is_executable else 0o444
        with open(os.open(f"{scratch}/{file.path}", flags, mode), "wb") as copy:
            copy.write(data)
    for path, target in tree.links:
        os.symlink(target, f"{scratch}/{path}")


def _copy_file(source: str, place: str) -> None:
    shutil.copyfile(source, place)
    if Path(source).stat().st_mode & 0o100:
        mode = Path(place).stat().st_mode
        Path(place).chmod(mode | (mode & 0o444) >> 2)
