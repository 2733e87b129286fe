"""`send`: what lies in directories of nodes goes from there to where an artifact will be, as one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Final

from trainmaster.artifacts import FileEntry, UnstableDirectory, Upload
from trainmaster.artifacts.publishing import FILES_PREFIX
from trainmaster.artifacts.sending import ToSend
from trainmaster.cluster.node_access import NodeAccess
from trainmaster.cluster.node_files.fetching import NodePart, WorkerOf, carry, look
from trainmaster.cluster.node_files.merging import Tree, merge_trees, moved
from trainmaster.cluster.node_files.trees import FILE, FOLDER, LINK, OUTWARD, TreeEntry
from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import PublishError

_DIGEST_CHARACTERS: Final = 16


@dataclass(frozen=True, slots=True)
class Source:
    """A directory of a node, and what it will be called in the artifact.

    Attributes:
        access: the node.
        directory: there.
        prefix: in the artifact; empty for its top.
    """

    access: NodeAccess
    directory: str
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Sent:
    """What was uploaded, to be committed.

    Attributes:
        trees: what lay in each directory.
        uploads: of each.
    """

    trees: list[Tree]
    uploads: list[Upload]


def send(
    of: WorkerOf,
    sources: Sequence[Source],
    uri: str,
    credentials: Mapping[str, str],
    *,
    base: Sequence[TreeEntry] = (),
    last: list[Tree] | None = None,
) -> Sent | None:
    """Upload what directories of nodes are together, each from its own node, at the same time.

    A second call with the same directories goes on where the first was cut off.

    Args:
        of: our program on a node.
        sources: what is to be sent.
        uri: where the artifact will be.
        credentials: see `store_environment`.
        base: what lay in all of them at first; see `merge_trees`.
        last: what lay there when it was sent before; if that is so still, nothing is sent.

    Returns:
        None if there is neither a file nor a link, or nothing new.

    Raises:
        UnstableDirectory: something changed meanwhile.
        PublishError: a link leads outside.
        StoreRefusedError: a node cannot use the store.
        ProviderError: a node cannot be reached.
    """
    trees = look(of, [(source.access, source.directory) for source in sources])
    if last is not None and trees == last:
        return None
    merged = merge_trees(
        [moved(tree, source.prefix) for tree, source in zip(trees, sources, strict=True)], base
    )
    if all(entry.kind == FOLDER for _, entry in merged):
        return None
    _require_inward(merged, sources)
    parts, folders = [], []
    for number, source in enumerate(sources):
        mine = tuple(_local(entry, source) for n, entry in merged if n == number and entry.kind == FILE)
        parts.append(NodePart(number, source.access, source.directory, mine))
        folders.append(_folder(uri, source, mine))
    uploaded: dict[int, list[FileEntry]] = {}

    def upload(part: NodePart, place: str) -> bool:
        source = sources[part.number]
        parent, _, name = source.directory.rpartition("/")
        wanted = [
            ToSend(
                f"{source.prefix}/{entry.path}" if source.prefix else entry.path,
                f"{place}/{entry.path}",
                entry.size,
                entry.mtime_ns,
                entry.inode,
                entry.mode,
            )
            for entry in part.entries
        ]
        journal = f"{parent}/.{name}.sent"
        folder = folders[part.number]
        uploaded[part.number] = of(part.access).send(uri, folder, journal, wanted, credentials)
        return True

    # A store takes its time: however little it is, the next one may come in between. What was sent
    # then stays: another driver may be sending the same, and its publisher clears up what is not named.
    if not carry(of, parts, trees, upload, is_frozen=True):
        where = ", ".join(dict.fromkeys(source.directory for source in sources))
        raise UnstableDirectory(
            f"{where}: files changed while they were uploaded.", "Nothing was published; try later."
        )
    return Sent(
        trees,
        [
            Upload(folder, (*uploaded.get(number, ()), *_others(merged, number)))
            for number, folder in enumerate(folders)
        ],
    )


def _require_inward(merged: Sequence[tuple[int, TreeEntry]], sources: Sequence[Source]) -> None:
    for number, entry in merged:
        if entry.kind == OUTWARD:
            access, path = sources[number].access, _local(entry, sources[number]).path
            raise PublishError(
                f"{access.target.shown}: {path!r}, which leads to {entry.target!r}, would lie, or lead, "
                f"outside of {sources[number].directory}.",
                "Copy the file in, or remove the link; nothing was published.",
            )


def _local(entry: TreeEntry, source: Source) -> TreeEntry:
    """As it is called in its own directory."""
    return entry._replace(path=entry.path.removeprefix(f"{source.prefix}/")) if source.prefix else entry


def _folder(uri: str, source: Source, entries: Sequence[TreeEntry]) -> str:
    """The same for the same files of the same node, so that a second try finds what the first has sent."""
    text = json.dumps([uri, source.access.id, source.directory, source.prefix, entries])
    return FILES_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARACTERS]


def _others(merged: Sequence[tuple[int, TreeEntry]], number: int) -> list[FileEntry]:
    """Links and empty folders: they have no bytes."""
    found = []
    for n, entry in merged:
        if n != number or entry.kind not in (LINK, FOLDER):
            continue
        if entry.kind == LINK:
            found.append(FileEntry(entry.path, "symlink", target=entry.target))
        else:
            found.append(FileEntry(entry.path, "directory", mode=entry.mode))
    return found
