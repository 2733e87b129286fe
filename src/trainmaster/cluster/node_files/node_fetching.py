"""`fetch`: a directory here as it is on several nodes together."""

from __future__ import annotations

import contextlib
import shlex
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.cluster.bootstrap.guest.trees import FILE, LINK, Draft, TreeEntry, TreeError
from trainmaster.cluster.node_files.node_files import AT_ONCE, NodeFiles
from trainmaster.cluster.node_files.node_trees import Tree, merge_trees
from trainmaster.control.site_errors import NodeGoneError
from trainmaster.objects.names import link_stays_inside
from trainmaster.spec.errors import ProviderError, TrainmasterError
from trainmaster.transport.errors import CommandError

if TYPE_CHECKING:
    from trainmaster.cluster.node_access import NodeAccess

#: Of so much a copy takes long enough for the next checkpoint to come in between.
FREEZE_BYTES: Final = 16 << 20
# Left free on our own disk, whatever nodes say they have.
_RESERVE_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Part:
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


#: Takes the files of a part from where they lie; False if they changed meanwhile.
Carry = Callable[[Part, str], bool]


def fetch(
    files: NodeFiles,
    sources: Sequence[tuple[NodeAccess, str]],
    target: Path,
    *,
    base: Sequence[TreeEntry] = (),
    limit_bytes: int | None = None,
    freeze_bytes: int = FREEZE_BYTES,
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
        freeze_bytes: from so many on they are frozen.

    Returns:
        False if something changed meanwhile.

    Raises:
        CommandError: something cannot be read, or leads outside, or is too much, or there is no room for it.
    """
    trees = look(files, sources)
    merged = merge_trees(trees, base)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _require_inward(target, [entry for _, entry in merged])
        draft = Draft(str(target), [entry for _, entry in merged])
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
        Part(number, access, directory, tuple(e for n, e in merged if n == number and e.path in missing))
        for number, (access, directory) in enumerate(sources)
    ]

    def receive(part: Part, place: str) -> bool:
        return files.receive(draft, part.number, part.access, place, part.entries)

    if not carry(files, parts, trees, receive, is_frozen=size >= freeze_bytes):
        # Small ones are not worth the detour; but where somebody saves all the time they never stand still.
        return size < freeze_bytes and fetch(
            files, sources, target, base=base, limit_bytes=limit_bytes, freeze_bytes=0
        )
    try:
        draft.exchange()
    except TreeError as error:
        raise CommandError(f"{target}: {error}") from error
    return True


def _require_inward(target: Path, entries: Sequence[TreeEntry]) -> None:
    """Refuse links that lead outside by way of each other, which no look at one of them can tell."""
    links = {entry.path: entry.target for entry in entries if entry.kind == LINK}
    for path in links:
        if not link_stays_inside(path, links):
            raise TreeError(f"{path!r}, which leads to {links[path]!r}, would lead outside of {target}")


def look(files: NodeFiles, sources: Sequence[tuple[NodeAccess, str]]) -> list[Tree]:
    """What lies in directories of nodes that belong together.

    Raises:
        NodeGoneError: a node has lost what it had, with all around it.
        ProviderError: one cannot be reached.
    """
    with ThreadPoolExecutor(min(AT_ONCE, len(sources)), "look") as pool:
        trees = list(pool.map(lambda source: files.look(source[0], [source[1]])[0], sources))
        if any(trees):
            empty = [source for source, tree in zip(sources, trees, strict=True) if not tree]
            list(pool.map(lambda source: _require_place(files, *source), empty))
    return trees


def _require_place(files: NodeFiles, access: NodeAccess, directory: str) -> None:
    """See that a directory may be empty, or removed by a script: what it lies in is there."""
    place = directory.rpartition("/")[0]
    if files.shell(access, f"test -d {shlex.quote(place)}").code != 0:
        raise NodeGoneError(
            f"{access.target.shown}: {place} is not there any more, and what was in it is lost"
        )


def carry(
    files: NodeFiles, parts: Sequence[Part], trees: Sequence[Tree], take: Carry, *, is_frozen: bool
) -> bool:
    """Take files of several nodes as they were at one moment.

    Args:
        files: of nodes.
        parts: one for each directory.
        trees: what lay in each.
        take: is called for several at the same time.
        is_frozen: they are linked first, where they lie, if their file system can do so.

    Returns:
        False if something changed meanwhile.
    """
    taken = _frozen(files, parts, trees, take) if is_frozen else None
    if taken is None:
        taken = _take(parts, take) and look(files, [(p.access, p.directory) for p in parts]) == trees
    return taken


def _take(parts: Sequence[Part], take: Carry, *, frozen: bool = False) -> bool:
    wanted = [part for part in parts if part.entries]
    if not wanted:
        return True
    with ThreadPoolExecutor(min(AT_ONCE, len(wanted)), "take") as pool:
        return all(list(pool.map(lambda part: take(part, part.frozen if frozen else part.directory), wanted)))


def _frozen(files: NodeFiles, parts: Sequence[Part], trees: Sequence[Tree], take: Carry) -> bool | None:
    """Freeze and take; False if something changed before it was frozen, None if it cannot be frozen."""
    is_cut = False
    with ThreadPoolExecutor(min(AT_ONCE, len(parts)), "freeze") as pool:
        try:
            # All was seen before the first is frozen, and is the same after: so it was there at one moment.
            if list(pool.map(lambda part: _freeze(files, part), parts)) != trees:
                return False
            if not _take(parts, take, frozen=True):
                return False
            return all(pool.map(lambda part: _is_as_it_was(files, part), parts))
        except _CannotFreeze:
            return None
        except ProviderError:
            is_cut = True  # the next caller may do so: what cannot be reached is not waited for here
            raise
        finally:
            if not is_cut:
                list(pool.map(lambda part: _thaw(files, part), parts))


class _CannotFreeze(Exception):  # noqa: N818 - then it is done without
    """Files of a node cannot have a second name."""


def _freeze(files: NodeFiles, part: Part) -> Tree:
    try:
        return files.freeze(part.access, part.directory, part.frozen, [entry.path for entry in part.entries])
    except CommandError as error:
        raise _CannotFreeze from error


def _is_as_it_was(files: NodeFiles, part: Part) -> bool:
    """Whether frozen files are unchanged."""
    (tree,) = files.look(part.access, [part.frozen])
    return [entry for entry in tree if entry.kind == FILE] == sorted(part.entries)


def _thaw(files: NodeFiles, part: Part) -> None:
    with contextlib.suppress(TrainmasterError):  # the next one does so
        files.shell(part.access, f"rm -rf -- {shlex.quote(part.frozen)}")
