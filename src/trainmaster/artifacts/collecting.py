# ruff: noqa: PTH115, PTH123
# Names are any bytes and files are many: os functions on plain text are exact, and four times as fast.
"""Turning what lies in several directories into the entries of one artifact, reading each file once."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from trainmaster.artifacts.manifest import FileEntry, Kind, check_entries
from trainmaster.artifacts.tree import (
    Tree,
    TreeNode,
    UnstableDirectory,
    inward_target,
    listing_of,
    real_place,
    scan,
    settle,
)
from trainmaster.dataclass import dataclass, field
from trainmaster.objects.errors import explaining
from trainmaster.objects.names import stays_inside
from trainmaster.objects.object_store import ObjectStore
from trainmaster.objects.parallel import each
from trainmaster.spec.errors import PublishError

_BLOCK_BYTES = 1 << 20


class UnfitError(PublishError):
    """What is to be published is at fault itself: it cannot be published, now or later."""


class VanishedError(Exception):
    """A file is no longer there, and its directory need not be stable."""


class Content:
    """The bytes of one file, hashed as they pass.

    Attributes:
        node: the file as it was seen.
    """

    def __init__(self, node: TreeNode, require_stable: bool) -> None:
        self.node = node
        self._require_stable = require_stable
        self._digest = hashlib.sha256()
        self._size_bytes = 0

    def blocks(self) -> Iterator[bytes]:
        """Reads the file once.

        Raises:
            UnstableDirectory: it is no longer the file that was seen.
            VanishedError: the same, where that is allowed.
            PublishError: it cannot be read.
        """
        with explaining("read", self.node.place):
            yield from self._read()

    def entry(self, path: str, key: str) -> FileEntry:
        """Describes what was read.

        Args:
            path: in the artifact.
            key: where the bytes are, relative to the artifact.
        """
        return FileEntry(
            path=path,
            size_bytes=self._size_bytes,
            sha256=self._digest.hexdigest(),
            mode=self.node.mode,
            # A file from before 1970 is an accident; the format has no place for it.
            mtime_ns=max(0, self.node.stamp.mtime_ns),
            object=key,
        )

    def _read(self) -> Iterator[bytes]:
        # Not following links and not waiting for a pipe's writer: the name may mean something else by now.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self.node.place, flags)
        except FileNotFoundError:
            raise self._changed("vanished") from None
        with open(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or real_place(descriptor) != self.node.place:
                raise self._changed("is no longer a file")
            if self._require_stable and status.st_ino != self.node.stamp.inode:
                raise self._changed("was replaced")
            limit_bytes = self.node.stamp.size_bytes if self._require_stable else status.st_size
            while self._size_bytes < limit_bytes:
                block = file.read(min(_BLOCK_BYTES, limit_bytes - self._size_bytes))
                if not block:
                    break
                self._size_bytes += len(block)
                self._digest.update(block)
                yield block
            if self._require_stable and (self._size_bytes < limit_bytes or file.read(1)):
                raise self._changed("grew or shrank")

    def _changed(self, what: str) -> Exception:
        if not self._require_stable:
            return VanishedError(self.node.place)
        return UnstableDirectory(
            f"{self.node.place} {what} while it was copied.", "Nothing was published; try later."
        )


@dataclass(slots=True)
class MergedPaths:
    """The paths taken so far; what comes first wins."""

    _kinds: dict[str, Kind] = field(default_factory=dict)
    _folders: set[str] = field(default_factory=set)

    def add(self, path: str, kind: Kind) -> bool:
        """Takes a path, unless it or something it cannot stand beside is taken."""
        if path in self._kinds or path in self._folders:
            return False
        parents = []
        parent = path.rpartition("/")[0]
        while parent and parent not in self._folders:
            if self._kinds.get(parent, "directory") != "directory":
                return False
            parents.append(parent)
            parent = parent.rpartition("/")[0]
        self._folders.update(parents)
        self._kinds[path] = kind
        return True


Taker: TypeAlias = Callable[[Content, str], FileEntry]
"""Reads the content that will be at a path of the artifact, once, and describes it."""


def scan_parts(parts: Mapping[str, Path], require_stable: bool) -> dict[str, Tree]:
    """Looks at all directories; if they must be stable, when a later change would show.

    Raises:
        PublishError: a prefix is none, or a directory cannot be read.
    """
    for prefix in parts:
        if prefix and not stays_inside(prefix):
            raise PublishError(f"{prefix!r} is no prefix in an artifact.", "Use names separated by single /.")
    trees = {prefix: scan(directory) for prefix, directory in parts.items()}
    if require_stable and settle(trees):
        trees = {prefix: scan(directory) for prefix, directory in parts.items()}
    return trees


def check_unchanged(trees: Mapping[str, Tree]) -> None:
    """Looks again.

    Raises:
        UnstableDirectory: something is no longer as it was.
    """
    again = {prefix: scan(Path(tree.root)) for prefix, tree in trees.items()}
    if listing_of(again) != listing_of(trees):
        raise UnstableDirectory(
            f"{roots(trees)}: its files changed while they were copied.", "Nothing was published; try later."
        )


def roots(trees: Mapping[str, Tree]) -> str:
    """Names the directories, for messages."""
    return ", ".join(tree.root for tree in trees.values())


def collect(
    trees: Mapping[str, Tree], take: Taker, store: ObjectStore, require_stable: bool
) -> tuple[FileEntry, ...]:
    """Gives the entries of the union of the trees, each file taken once, several at a time.

    Raises:
        UnstableDirectory: a file changed.
        PublishError: a link leads outside (before any file is taken), or ``take`` failed.
    """
    union = MergedPaths()
    entries: list[FileEntry] = []
    files: list[tuple[str, TreeNode]] = []
    for prefix, tree in trees.items():
        for node in tree.nodes:
            path = f"{prefix}/{node.path}" if prefix else node.path
            if not union.add(path, node.kind):
                continue
            if node.kind == "file":
                files.append((path, node))
            elif node.kind == "directory":
                entries.append(FileEntry(path, "directory", mode=node.mode))
            elif target := _target(tree, node, require_stable):
                entries.append(FileEntry(path, "symlink", target=target))
    check_entries(entries, roots(trees))
    contents = [(Content(node, require_stable), path) for path, node in files]
    entries += _taken(contents, take, store)
    return tuple(sorted(entries, key=lambda entry: entry.path))


def _target(tree: Tree, node: TreeNode, require_stable: bool) -> str | None:
    try:
        target = inward_target(tree, node)
    except OSError as error:
        if not require_stable:
            return None
        raise UnstableDirectory(
            f"{node.place} vanished while it was copied.", "Nothing was published; try later."
        ) from error
    if target is None:
        raise UnfitError(
            f"{node.place} is a symbolic link that leads outside, to {os.readlink(node.place)!r}.",
            "Copy the file in, or remove the link; nothing was published.",
        )
    return target


def _taken(contents: list[tuple[Content, str]], take: Taker, store: ObjectStore) -> list[FileEntry]:
    def one(item: tuple[Content, str]) -> FileEntry | None:
        try:
            return take(*item)
        except VanishedError:
            return None

    entries = each(contents, one, lambda item: item[0].node.stamp.size_bytes, store)
    return [entry for entry in entries if entry is not None]
