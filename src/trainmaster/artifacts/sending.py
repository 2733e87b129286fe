"""What a node does with an object store: its part of an artifact goes there, a whole one comes back.

Another machine commits: :class:`Sender` only puts bytes where an artifact will be.
What was sent is noted in a journal beside the files, so that after a cut it is not sent again.
"""

import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from trainmaster.artifacts.collecting import Content
from trainmaster.artifacts.fetching import fetch
from trainmaster.artifacts.manifest import FileEntry, Manifest, entry_of
from trainmaster.artifacts.publishing import stored_manifest
from trainmaster.artifacts.tree import Stamp, TreeNode, scan
from trainmaster.objects.names import object_key
from trainmaster.objects.object_store import ObjectStore
from trainmaster.objects.parallel import each
from trainmaster.spec.plain_json import parsed_json


class ToSend(NamedTuple):
    """A file that is to be sent.

    Attributes:
        path: what it will be called in the artifact.
        place: where it lies.
        size_bytes, mtime_ns, inode, mode: as it was seen; if it is another one by now, nothing is sent.
    """

    path: str
    place: str
    size_bytes: int
    mtime_ns: int
    inode: int
    mode: int


class Sender:
    """Sends a node's part of an artifact.

    Args:
        uri: where the artifact will be.
        folder: for this part alone, below the URI; the same for the same files, else nothing is found again.
        journal: a file that notes what was sent.
    """

    def __init__(self, uri: str, folder: str, journal: Path) -> None:
        self._store = ObjectStore(uri)
        self._folder = folder
        self._journal = journal
        self._lock = threading.Lock()

    def send(self, files: Iterable[ToSend]) -> list[FileEntry]:
        """Send files, several at a time, as many as memory allows; what lies there already is not sent again.

        Returns:
            What a manifest will say of them, in no order.

        Raises:
            UnstableDirectory: one is no longer as it was seen.
            PublishError: one cannot be read, or the store fails.
        """
        files = list(files)
        sent = self._sent()
        missing = [file for file in files if file.path not in sent]
        if not sent:  # one that was given up may still write into the old one
            self._journal.unlink(missing_ok=True)
        with self._journal.open("a", encoding="utf-8") as journal:
            if not sent:
                journal.write(json.dumps([self._store.url, self._folder]) + "\n")

            def one(file: ToSend) -> FileEntry:
                node = TreeNode(
                    file.path,
                    file.place,
                    "file",
                    Stamp(file.size_bytes, file.mtime_ns, file.inode),
                    file.mode,
                )
                content = Content(node, require_stable=True)
                key = f"{self._folder}/{object_key(file.path)}"
                self._store.put_blocks(key, content.blocks(), file.size_bytes)
                entry = content.entry(file.path, key)
                with self._lock:
                    journal.write(json.dumps(entry_list(entry)) + "\n")
                    journal.flush()
                return entry

            made = each(missing, one, lambda file: file.size_bytes, self._store)
        return [*made, *(sent[file.path] for file in files if file.path in sent)]

    def _sent(self) -> dict[str, FileEntry]:
        """What the journal says of this very upload, as far as the store has it."""
        try:
            head, *lines = self._journal.read_text(encoding="utf-8").splitlines()
            if parsed_json(head) != [self._store.url, self._folder]:
                return {}
        except (FileNotFoundError, ValueError):
            return {}
        sizes = {info.key: info.size_bytes for info in self._store.list(self._folder)}
        found = {}
        for line in lines:
            try:
                entry = listed_entry(parsed_json(line))
            except (ValueError, TypeError):  # the last one, cut off
                continue
            if sizes.get(entry.object) == entry.size_bytes:
                found[entry.path] = entry
        return found


def bring_back(uri: str, directory: Path) -> Manifest:
    """Make a directory what an artifact is, whole or not at all; nothing is fetched if it is so already.

    Raises:
        NotFoundError: there is no complete artifact.
        PublishError: it is damaged, or the store fails.
    """
    manifest = stored_manifest(ObjectStore(uri))
    if manifest is not None and _is_there(manifest, directory):
        return manifest
    directory.parent.mkdir(parents=True, exist_ok=True)
    return fetch(uri, directory, overwrite=True)


def reach(uri: str) -> None:
    """Ask what lies at a URI, which may be nothing: keys for a part of a bucket are good for that.

    Raises:
        PublishError: the store cannot be reached, or does not let us in.
    """
    next(iter(ObjectStore(uri).list("")), None)


def entry_list(entry: FileEntry) -> list[str | int]:
    """A file's entry as JSON takes it."""
    return [entry.path, entry.size_bytes, entry.sha256, entry.mode, entry.mtime_ns, entry.object]


def listed_entry(said: list[str | int]) -> FileEntry:
    """The reverse of :func:`entry_list`.

    Raises:
        ValueError: it is something else.

    >>> entry = FileEntry("a", size_bytes=3, sha256="0" * 64, object="files-1/a")
    >>> listed_entry(entry_list(entry)) == entry
    True
    """
    try:
        path, size_bytes, sha256, mode, mtime_ns, key = said
        times = {"mtime_ns": max(0, mtime_ns), "mode": mode & 0o777}  # type: ignore[operator]
        return entry_of({"path": path, "size_bytes": size_bytes, "sha256": sha256, "object": key, **times})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{said!r} describes no file") from error


def _is_there(manifest: Manifest, directory: Path) -> bool:
    """Whether a directory is an artifact, as far as sizes and times tell: `fetch` sets both."""
    if not directory.is_dir():
        return False
    there = {
        node.path: (node.kind, *(node.stamp[:2] if node.kind == "file" else (0, 0)))
        for node in scan(directory).nodes
    }
    wanted = {
        entry.path: (entry.kind, entry.size_bytes, entry.mtime_ns)
        if entry.kind == "file"
        else (entry.kind, 0, 0)
        for entry in manifest.files
    }
    links = [entry for entry in manifest.files if entry.kind == "symlink"]
    return there == wanted and all(os.readlink(directory / entry.path) == entry.target for entry in links)  # noqa: PTH115
