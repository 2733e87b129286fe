# ruff: noqa: PTH100, PTH115, PTH116, PTH118, PTH120
# Names are any bytes and files are many: os functions on plain text are exact, and four times as fast.
"""What lies in a directory at one moment, and whether that has changed since."""

import hashlib
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from trainmaster.artifacts.manifest import Kind
from trainmaster.dataclass import dataclass, field
from trainmaster.objects.errors import explained
from trainmaster.spec.errors import PublishError

# The kernel stamps files with the time of its last tick (1 to 10 ms ago): of two writes within one tick
# the second leaves no trace.
_TICK_NS = 10_000_000


class UnstableDirectory(PublishError):  # noqa: N818 - it is no error of the user: try again later
    """A directory changed while it was copied; nothing was published."""


class Stamp(NamedTuple):
    """What tells that a file has changed.

    For a directory only the inode counts: its time changes with every file in it.
    """

    size_bytes: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class Listing:
    """Everything in a directory at one moment; two that are equal mean that nothing has changed.

    Attributes:
        stamps: by relative path. Those of several parts lie below their prefixes.
    """

    stamps: Mapping[str, Stamp]

    def fingerprint(self) -> str:
        """Gives a short text that is equal for equal listings, to be kept across processes."""
        digest = hashlib.sha256()
        for path in sorted(self.stamps):
            line = f"{path}\0{self.stamps[path]!r}\0"
            digest.update(line.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A file, symbolic link or directory as it was seen; there is no link on the way to its place."""

    path: str
    place: str
    kind: Kind
    stamp: Stamp
    mode: int


@dataclass(slots=True)
class Tree:
    """What was seen in one directory, and what was passed over."""

    root: str
    nodes: list[TreeNode] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def parts_listing(parts: Mapping[str, Path]) -> Listing:
    """Lists the directories that :func:`publish` takes, as one.

    Raises:
        PublishError: one of them cannot be read.
    """
    return listing_of({prefix: scan(directory) for prefix, directory in parts.items()})


def listing_of(trees: Mapping[str, Tree]) -> Listing:
    """Gives the listing of trees that were scanned already."""
    stamps: dict[str, Stamp] = {}
    for prefix, tree in trees.items():
        for node in tree.nodes:
            # "prefix//path": files of two parts that collide in the artifact must both be watched.
            stamps[f"{prefix}//{node.path}" if prefix else node.path] = node.stamp
    return Listing(stamps)


def scan(directory: Path) -> Tree:
    """Looks at everything below a directory, reading no file.

    What vanishes meanwhile is left out: a second look will show it.

    Raises:
        PublishError: a directory cannot be read.
    """
    root = os.fspath(directory)
    tree = Tree(root)
    pending, top = [""], root
    while pending:
        folder = pending.pop()
        place = f"{top}/{folder}" if folder else top
        try:
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except NotADirectoryError as error:
            if folder:
                continue
            raise explained(error, "publish", root) from error
        except OSError as error:
            raise explained(error, "read", place) from error
        try:
            if not folder:
                top = real_place(descriptor)
            elif real_place(descriptor) != place:
                continue  # it is somewhere else by now, as if it had vanished
            with os.scandir(descriptor) as found:
                entries = list(found)
            for entry in entries:
                _see(tree, entry, f"{folder}/{entry.name}" if folder else entry.name, top, pending)
        except OSError as error:
            raise explained(error, "read", place) from error
        finally:
            os.close(descriptor)
        if folder and not entries:
            tree.nodes.append(_empty_directory(place, folder))
    tree.nodes.sort(key=lambda node: node.path)
    return tree


def real_place(descriptor: int) -> str:
    """Where what was opened lies, without links: of a name that somebody turns into a link, which of the two.

    A script may write where we read, and runs as another user, who may read less.
    """
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _see(tree: Tree, entry: "os.DirEntry[str]", path: str, top: str, pending: list[str]) -> None:
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return
    kind: Kind
    if stat.S_ISDIR(status.st_mode):
        pending.append(path)
        return
    if stat.S_ISREG(status.st_mode):
        kind = "file"
    elif stat.S_ISLNK(status.st_mode):
        kind = "symlink"
    else:
        tree.notes.append(f"left out: {path!r} is a {_special(status.st_mode)}")
        return
    stamp = Stamp(status.st_size, status.st_mtime_ns, status.st_ino)
    tree.nodes.append(TreeNode(path, f"{top}/{path}", kind, stamp, stat.S_IMODE(status.st_mode) & 0o777))


def _empty_directory(place: str, path: str) -> TreeNode:
    try:
        status = os.stat(place)
        stamp, mode = Stamp(0, 0, status.st_ino), stat.S_IMODE(status.st_mode) & 0o777
    except FileNotFoundError:
        stamp, mode = Stamp(0, 0, 0), 0o755
    return TreeNode(path, place, "directory", stamp, mode)


def _special(mode: int) -> str:
    if stat.S_ISSOCK(mode):
        return "socket"
    return "pipe" if stat.S_ISFIFO(mode) else "device"


def settle(trees: Mapping[str, Tree]) -> bool:
    """Waits out the clock tick in which a file was last written, so that the next write shows.

    Returns:
        Whether it had to wait; then the trees must be scanned again.
    """
    now_ns = time.time_ns()
    times_ns = [node.stamp.mtime_ns for tree in trees.values() for node in tree.nodes]
    youngest_ns = max((time_ns for time_ns in times_ns if time_ns <= now_ns), default=0)
    if now_ns - youngest_ns >= _TICK_NS:
        return False
    time.sleep((_TICK_NS - (now_ns - youngest_ns)) / 1e9)
    return True


def inward_target(tree: Tree, node: TreeNode) -> str | None:
    """Reads a symbolic link, made relative where it leads to its own directory by a way outside.

    Returns:
        The target; None if it leads outside by its text alone.

    Raises:
        OSError: it vanished.
    """
    target = os.readlink(node.place)
    parent = os.path.dirname(node.path)
    if not target.startswith("/") and not _climbs_out(parent, target):
        return target
    top = os.path.abspath(tree.root)
    absolute = os.path.normpath(os.path.join(top, parent, target))
    for root in (top, os.path.realpath(top)):
        if absolute == root or absolute.startswith(root + "/"):
            return os.path.relpath(absolute, os.path.join(root, parent))
    return None


def _climbs_out(parent: str, target: str) -> bool:
    return os.path.normpath(os.path.join(parent, target)).split("/")[0] == ".."
