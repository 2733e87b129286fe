"""`fetch`: a directory here becomes what it is on several nodes together."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from trainmaster.cluster.bootstrap.host_programs.answering import explain
from trainmaster.cluster.node_access import NodeAccess
from trainmaster.cluster.node_files.files import NodeFiles, each
from trainmaster.cluster.node_files.merging import Tree, merge_trees
from trainmaster.cluster.node_files.trees import FILE, LINK, TreeDraft, TreeEntry, TreeError, Unpacker
from trainmaster.cluster.node_files.worker_client import NodeWorker, OrderError
from trainmaster.control.task.job_context import NodeGoneError
from trainmaster.dataclass import dataclass
from trainmaster.objects.names import link_stays_inside
from trainmaster.spec.errors import ProviderError, TrainmasterError
from trainmaster.transport.base import CommandError

#: Of so much a copy takes long enough for the next checkpoint to come in between.
FREEZE_BYTES: Final = 16 << 20
# Left free on our own disk, whatever nodes say they have.
_RESERVE_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class NodePart:
    """What one node has to give of a directory.

    Attributes:
        number: differs from that of the others.
        access: the node.
        directory: there.
        entries: files in it.
    """

    number: int
    access: NodeAccess
    directory: str
    entries: tuple[TreeEntry, ...]

    @property
    def frozen(self) -> str:
        """Where its files have a second name while they are carried."""
        parent, _, name = self.directory.rpartition("/")
        return f"{parent}/.{name}.frozen"


#: Our program on a node.
WorkerOf = Callable[["NodeAccess"], NodeWorker]
#: Takes the files of a part from where they lie; False if they changed meanwhile.
Carry = Callable[[NodePart, str], bool]


def fetch(
    files: NodeFiles,
    sources: Sequence[tuple[NodeAccess, str]],
    target: Path,
    *,
    base: Sequence[TreeEntry] = (),
    limit_bytes: int | None = None,
) -> bool:
    """Make a directory here what several on nodes are together.

    Only what differs is sent. Until all is here and was seen not to have changed meanwhile, the directory
    stays as it is. Many bytes are frozen first (linked, where they lie), so that files that are replaced
    while they travel, as checkpoints are, do no harm; ones that are overwritten do.

    Args:
        files: of nodes.
        sources: nodes, and the directory on each.
        target: here.
        base: what lay in all of them at first; see `merge_trees`.
        limit_bytes: most bytes to send.

    Returns:
        False if something changed meanwhile.

    Raises:
        CommandError: something cannot be read, or leads outside, or is too much, or there is no room for it.
    """
    with files.workers() as of:
        for is_frozen_at in (FREEZE_BYTES, 0):
            is_whole = _fetch(of, sources, target, base, limit_bytes, is_frozen_at)
            if is_whole is not None:
                return is_whole
    return False


def _fetch(
    of: WorkerOf,
    sources: Sequence[tuple[NodeAccess, str]],
    target: Path,
    base: Sequence[TreeEntry],
    limit_bytes: int | None,
    freeze_bytes: int,
) -> bool | None:
    """The same, once; None if something changed that had not been frozen."""
    trees = look(of, sources)
    merged = merge_trees(trees, base)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _require_inward(target, [entry for _, entry in merged])
        draft = TreeDraft(str(target), [entry for _, entry in merged])
        if draft.is_same:
            return True
        missing = {entry.path: entry for entry in draft.missing()}
    except TreeError as error:
        raise CommandError(str(error), "Copy the file in, or remove the link.") from error
    size = sum(entry.size for entry in missing.values())
    if limit_bytes is not None and size > limit_bytes:
        raise CommandError(f"{target}: {size >> 20} MiB are too much to be fetched")
    if size > (free := shutil.disk_usage(target.parent).free) - _RESERVE_BYTES:
        raise CommandError(
            f"{target}: {size >> 20} MiB are to be fetched, and {free >> 20} MiB are free here",
            "Free some space, or use an object store that the nodes can reach.",
        )
    parts = [
        NodePart(number, access, directory, tuple(e for n, e in merged if n == number and e.path in missing))
        for number, (access, directory) in enumerate(sources)
    ]

    def receive(part: NodePart, place: str) -> bool:
        return _receive(of(part.access), draft, part, place)

    if not carry(of, parts, trees, receive, is_frozen=size >= freeze_bytes):
        # Small ones are not worth the detour; but where somebody saves all the time they never stand still.
        return None if size < freeze_bytes else False
    try:
        draft.exchange()
    except TreeError as error:
        raise CommandError(f"{target}: {error}") from error
    return True


def _receive(worker: NodeWorker, draft: TreeDraft, part: NodePart, place: str) -> bool:
    """Take files of a node into a draft; False if they changed meanwhile."""
    unpacker = Unpacker(draft.root, draft.wanted, f"part-{part.number}")
    shown = part.access.target.shown

    def take(data: bytes) -> None:
        try:
            unpacker.feed(data)
        except (TreeError, ValueError) as error:
            raise CommandError(f"{shown}: {error}") from error
        except OSError as error:
            raise CommandError(f"here: {explain(error, draft.target)}") from error

    try:
        worker.carry(place, part.entries, take)
    finally:
        unpacker.close()
    if not unpacker.complete:
        raise CommandError(f"{shown}: the files did not arrive whole")
    return not unpacker.changed


def _require_inward(target: Path, entries: Sequence[TreeEntry]) -> None:
    """Refuse links that lead outside by way of each other, which no look at one of them can tell."""
    links = {entry.path: entry.target for entry in entries if entry.kind == LINK}
    for path in links:
        if not link_stays_inside(path, links):
            raise TreeError(f"{path!r}, which leads to {links[path]!r}, would lead outside of {target}")


def look(of: WorkerOf, sources: Sequence[tuple[NodeAccess, str]]) -> list[Tree]:
    """What lies in directories of nodes that belong together.

    Raises:
        NodeGoneError: a node has lost what it had, with all around it.
        ProviderError: one cannot be reached.
    """
    found = each(sources, lambda source: of(source[0]).look(source[1]))
    trees = [tree for tree, _ in found]
    for (access, directory), (_, is_placed) in zip(sources, found, strict=True):
        # It may be empty, or removed by a script: what it lies in is there.
        if any(trees) and not is_placed:
            place = directory.rpartition("/")[0]
            raise NodeGoneError(
                f"{access.target.shown}: {place} is not there any more, and what was in it is lost"
            )
    return trees


def carry(
    of: WorkerOf, parts: Sequence[NodePart], trees: Sequence[Tree], take: Carry, *, is_frozen: bool
) -> bool:
    """Take files of several nodes as they were at one moment.

    Args:
        of: our program on a node.
        parts: one for each directory.
        trees: what lay in each.
        take: is called for several at the same time.
        is_frozen: they are linked first, where they lie, if their file system can do so.

    Returns:
        False if something changed meanwhile.
    """
    taken = _frozen(of, parts, trees, take) if is_frozen else None
    if taken is None:
        taken = _take(parts, take) and look(of, [(p.access, p.directory) for p in parts]) == trees
    return taken


def _take(parts: Sequence[NodePart], take: Carry, *, frozen: bool = False) -> bool:
    wanted = [part for part in parts if part.entries]
    return all(each(wanted, lambda part: take(part, part.frozen if frozen else part.directory)))


def _frozen(of: WorkerOf, parts: Sequence[NodePart], trees: Sequence[Tree], take: Carry) -> bool | None:
    """Freeze and take; False if something changed before it was frozen, None if it cannot be frozen."""

    def freeze(part: NodePart) -> Tree | None:
        paths = [entry.path for entry in part.entries]
        try:
            return of(part.access).freeze(part.directory, part.frozen, paths)
        except OrderError:
            return None

    def is_as_it_was(part: NodePart) -> bool:
        """Also when it is not asked: frozen names are taken away."""
        left = of(part.access).thaw(part.frozen)
        return [entry for entry in left if entry.kind == FILE] == sorted(part.entries)

    try:
        frozen = each(parts, freeze)
        # All was seen before the first is frozen, and is the same after: so it was there at one moment.
        is_taken = frozen == trees and _take(parts, take, frozen=True)
    except ProviderError:  # the next caller thaws: what cannot be reached is not waited for here
        raise
    except BaseException:
        with contextlib.suppress(TrainmasterError):  # else the next one does so
            each(parts, is_as_it_was)
        raise
    is_same = all(each(parts, is_as_it_was))
    return None if None in frozen else is_taken and is_same
