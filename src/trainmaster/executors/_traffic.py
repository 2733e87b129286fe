"""Whose the TCP connections are, and what each member's have carried so far.

Totals only grow: a connection that is gone leaves in them what was last known of it.
"""

from __future__ import annotations

from trainmaster.executors._sockets import SocketReader, open_inodes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from trainmaster.executors._sockets import Connection

#: A connection that is in no dump any more may still be in a message that tells of its end.
_LOOKS_MISSED = 3


class _MemberConnection:
    """A connection of a member."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.sent_bytes = self.received_bytes = self.seen = self.trip_us = 0


class Traffic:
    """Follows the connections of members, which are named by the process ids of their roots."""

    def __init__(self, reader: SocketReader | None = None) -> None:
        self._reader = reader or SocketReader()
        self._known: dict[int, _MemberConnection] = {}
        self._foreign: set[int] = set()
        self._totals: dict[int, list[int]] = {}
        self._trips_us: dict[int, int] = {}
        self._looks = 0

    def look(self, roots: Mapping[int, int]) -> bool:
        """Look at all connections; False where the kernel does not tell.

        Args:
            roots: for each process of a member the member's root.
        """
        connections = self._reader.dump()
        if connections is None:
            return False
        self._looks += 1
        self._claim(connections, roots)
        self._count(connections)
        self._take_closed()
        if len(self._known) > len(connections):
            oldest = self._looks - _LOOKS_MISSED
            self._known = {cookie: each for cookie, each in self._known.items() if each.seen > oldest}
        return True

    def total(self, root: int) -> tuple[int, int]:
        """Bytes that a member has sent and received in the connections that were seen."""
        sent, received = self._totals.get(root, (0, 0))
        return sent, received

    def round_trip_ms(self, root: int) -> float | None:
        """Between its machine and those that it has connections to: the median; None if it has none.

        The kernel times the packets of each connection: nothing has to be sent, and no port be open, for it.
        """
        trips = sorted(each.trip_us for each in self._known.values() if each.root == root and each.trip_us)
        if trips:
            self._trips_us[root] = trips[len(trips) // 2]
        trip_us = self._trips_us.get(root)
        return None if trip_us is None else trip_us / 1000

    def last_total(self, root: int) -> tuple[int, int]:
        """The same for one that has just ended: with what its connections carried since the last look."""
        self._take_closed()
        return self.total(root)

    def keep(self, roots: Container[int]) -> None:
        """Forget all other members."""
        self._totals = {root: total for root, total in self._totals.items() if root in roots}
        self._trips_us = {root: trip for root, trip in self._trips_us.items() if root in roots}
        self._known = {cookie: each for cookie, each in self._known.items() if each.root in roots}

    def close(self) -> None:
        """Give the sockets back."""
        self._reader.close()

    def _claim(self, connections: Iterable[Connection], roots: Mapping[int, int]) -> None:
        """Find out whose the new ones are: the expensive part, so only if there are any."""
        unknown, foreign = [], set()
        for connection in connections:
            cookie, inode = connection[:2]
            if cookie in self._foreign:
                foreign.add(cookie)
            elif inode and cookie not in self._known:  # without an inode it is not accepted yet
                unknown.append((cookie, inode))
        if unknown:
            processes = open_inodes(roots)
            for cookie, inode in unknown:
                pid = processes.get(inode)
                if pid is None:
                    foreign.add(cookie)
                else:
                    self._known[cookie] = _MemberConnection(roots[pid])
        self._foreign = foreign

    def _take_closed(self) -> None:
        closed = self._reader.closed()
        self._count(closed)
        for connection in closed:
            self._known.pop(connection[0], None)

    def _count(self, connections: Iterable[Connection]) -> None:
        for cookie, _, sent_bytes, received_bytes, *trip_us in connections:
            known = self._known.get(cookie)
            if known is None:
                continue
            total = self._totals.setdefault(known.root, [0, 0])
            total[0] += max(0, sent_bytes - known.sent_bytes)
            total[1] += max(0, received_bytes - known.received_bytes)
            known.sent_bytes = max(sent_bytes, known.sent_bytes)
            known.received_bytes = max(received_bytes, known.received_bytes)
            known.trip_us = trip_us[0] if trip_us else 0
            known.seen = self._looks
