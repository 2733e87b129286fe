"""Which of what members write their driver lacks: `Files`, beside the gangs of a cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from trainmaster.executors.gangs.copies import belongs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainmaster.executors.gangs.copies import Piece
    from trainmaster.executors.gangs.engine import Follow
    from trainmaster.executors.gangs.inbox import Inbox
    from trainmaster.executors.gangs.life import Gang, Part
    from trainmaster.executors.gangs.placement import LiveNode
    from trainmaster.executors.wire import Message


class Files:
    """Which driver lacks what.

    Args:
        parts: gangs and their parts, by the part's name, as they will be then.
        tell: has a part's node do something.
        announce: tells the driver of a gang's status.
        is_there: whether a part's node is alive.

    Attributes:
        inbox: of the driver that is served, None while there is none.
    """

    def __init__(
        self,
        parts: Mapping[str, tuple[Gang, Part]],
        tell: Callable[[Part, Message], None],
        announce: Callable[[Gang], None],
        is_there: Callable[[Part], bool],
    ) -> None:
        self.inbox: Inbox | None = None
        self._parts = parts
        self._tell = tell
        self._announce = announce
        self._is_there = is_there
        self._shared: dict[tuple[str, str, str], bool] = {}

    def probe(self, gang: Gang, part: Part) -> None:
        """Find out whether the driver sees the part's directory itself."""
        if part.shared is not None:
            return
        parent = _parent(gang.directory)
        known = self._shared.get((part.node_id, parent, str(gang.here)))
        if known is not None:
            self._set_shared(gang, part, known)
        else:
            self._tell(part, {"do": "probe", "directory": parent, "here": gang.here})

    def probed(self, node: LiveNode, shared: Mapping[str, bool]) -> None:
        """Whether directories on a node are the driver's own, by the directory above them."""
        for gang, part in list(self._parts.values()):
            parent = _parent(gang.directory)
            if part.node_id == node.node_id and part.shared is None and parent in shared:
                self._shared[node.node_id, parent, str(gang.here)] = shared[parent]
                self._set_shared(gang, part, shared[parent])

    def take_up(self, gang: Gang) -> None:
        """A driver that has taken over wants an attempt's files, or goes on behind what it has of them."""
        if self.inbox is None:
            return
        gang.here, have = self.inbox.mirror.follow(gang.attempt, gang.directory, gang.essential)
        gang.is_followed = True
        for part in gang.parts:
            # What ended before its node did is not lost; nothing more can be read there all the same.
            can_be_read = gang.here and part.lost_at is None and self._is_there(part)
            part.shared = None if can_be_read else True
            part.complete = part.shared is True
            part.have = {name: size for name, size in have.items() if belongs(name, part.members)}
            self.probe(gang, part)

    def wanted(self, node: LiveNode) -> Follow:
        """Whose files on a node the driver lacks."""
        return {
            name: (gang.directory, part.members, part.have)
            for name, (gang, part) in self._parts.items()
            if part.node_id == node.node_id
            and part.shared is False
            and not part.complete
            and part.status is not None
            and gang.is_followed
        }

    async def read_on(
        self, node: LiveNode, asked: Follow, pieces: Sequence[tuple[str, Piece]], behind: Sequence[str]
    ) -> None:
        """Pass pieces on to the driver; those parts that are behind have more."""
        own = [
            (gang.attempt, piece)
            for name, piece in pieces
            if (gang := self._parts.get(name, (None,))[0]) is not None and gang.is_followed
        ]
        broken: set[str] = set()
        if own and self.inbox is not None:
            broken = await asyncio.to_thread(self.inbox.mirror.take, node.key, own)
        for name, (file, offset, count, _) in pieces:
            gang, part = self._parts.get(name, (None, None))
            if gang is None or part is None or gang.attempt in broken:
                continue
            part.have[file] = offset + count
            for member in part.members:
                if file.startswith(f"{member}.log"):
                    self._tell_grew(gang, member)
        for name in asked:
            gang, part = self._parts.get(name, (None, None))
            if gang is None or part is None or name in behind:
                continue
            if gang.attempt in broken:
                if gang.is_followed:
                    self.take_up(gang)
                continue
            if part.over and not part.complete:
                part.complete = True
                self._announce(gang)

    def grew(self, written: Sequence[tuple[str, str]]) -> None:
        """Members wrote something; those whose files are copied are reported when the copy is there."""
        for name, member in written:
            gang, part = self._parts.get(name, (None, None))
            if gang is not None and part is not None:
                gang.wrote[member] = None
                if part.shared:
                    self._tell_grew(gang, member)

    def _set_shared(self, gang: Gang, part: Part, shared: bool) -> None:
        part.shared = shared
        if shared and not part.complete:
            part.complete = True
            self._announce(gang)
            for member in part.members:
                if member in gang.wrote:
                    self._tell_grew(gang, member)

    def _tell_grew(self, gang: Gang, member: str) -> None:
        if self.inbox is not None:
            self.inbox.grew(gang.attempt, member)


def _parent(directory: str) -> str:
    return directory.rpartition("/")[0] or "/"
