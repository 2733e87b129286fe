"""Whose the TCP connections are, and what each member's have carried so far.

Totals only grow: a connection that is gone leaves in them what was last known of it.

How many bytes TCP connections have carried, from the kernel's own books (``TCP_INFO`` over netlink).

Two ways to ask: `SocketReader.dump` gives all connections of this network namespace with the inodes
by which ``/proc/PID/fd`` tells whose they are; `SocketReader.closed` gives the last word about those
that have ended since. Neither needs a privilege. Where the kernel refuses, there is just nothing.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

# ruff: noqa: PTH115, PTH208 - pathlib would slow down the supervisor's start


_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_INET_DIAG_INFO = 2
#: Multicast groups that tell of TCP sockets that are destroyed (SKNLGRP_INET_TCP_DESTROY, SKNLGRP_INET6_...).
_DESTROYED_GROUPS = (1 << 0) | (1 << 2)
#: All but TIME_WAIT, CLOSE, LISTEN and half-open ones: those carry nothing.
_STATES = 0xFFF & ~sum(1 << state for state in (3, 6, 7, 10))
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
#: Of ``inet_diag_msg``: the cookie, then the inode.
_COOKIE_AT, _INODE_AT, _MESSAGE_BYTES = 44, 68, 72
_ATTRIBUTE = struct.Struct("=HH")
_COUNTERS = struct.Struct("=QQ")
#: Of ``tcp_info``: ``tcpi_bytes_acked``, ``tcpi_bytes_received``.
_COUNTERS_AT = 120
#: ``tcpi_min_rtt``, microseconds, behind them; all ones where no packet was answered yet.
_TRIP_AT, _NO_TRIP = 148, 0xFFFFFFFF
#: ``tcpi_rtt``, smoothed: the shortest is that of five minutes, so a way that has become longer shows here
#: first. Beyond so many times that, and so many microseconds (answers may be put off for 40 ms), it counts.
_SMOOTHED_AT, _LONGER, _LONGER_US = 68, 3, 60_000
#: ``tcpi_busy_time``, microseconds: for which something was sent and not answered (since Linux 4.10).
_BUSY_AT = 168
#: Of ``inet_diag_msg``: the address here, then that of the other side.
_SOURCE_AT, _DESTINATION_AT, _ADDRESS_BYTES = 8, 24, 16
_MAPPED = bytes(10) + b"\xff\xff"
_RECEIVE_BYTES = 256 << 10
_EVENTS_BYTES = 1 << 20

#: Of one connection: its cookie (unique while the kernel runs), inode (0 when no process has it open),
#: bytes that the other side has acknowledged, bytes received, the shortest round trip of its packets, and for
#: how long it was busy sending, in microseconds; these are 0 unless the other side is another machine with a
#: private address.
Connection = tuple[int, ...]


class SocketReader:
    """Two netlink sockets, opened at the first use."""

    def __init__(self) -> None:
        self._asking: socket.socket | None = None
        self._listening: socket.socket | None = None
        self._refused = False

    def dump(self) -> list[Connection] | None:
        """All TCP connections of this network namespace, None where the kernel does not tell."""
        if self._refused:
            return None
        try:
            if self._asking is None:
                self._open()
            found: list[Connection] = []
            for family in (socket.AF_INET, socket.AF_INET6):
                found += self._dump(family)
        except (OSError, AttributeError):  # no such protocol, or a sandbox that forbids it
            self.close()
            self._refused = True
            return None
        return found

    def closed(self) -> list[Connection]:
        """Those that were closed since the last call (since the first `dump`), with their last counts."""
        found: list[Connection] = []
        while self._listening is not None:
            try:
                data = self._listening.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    self._listening.close()
                    self._listening = None
                continue  # some were lost; what was seen of them before stays
            found += parse(data)[0]
        return found

    def close(self) -> None:
        """Give the sockets back."""
        for each in (self._asking, self._listening):
            if each is not None:
                each.close()
        self._asking = self._listening = None

    def _open(self) -> None:
        self._asking = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
        self._asking.settimeout(1.0)  # it answers at once; the supervisor must not hang on it
        self._asking.bind((0, 0))
        listening = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _EVENTS_BYTES)
            listening.setblocking(False)
            listening.bind((0, _DESTROYED_GROUPS))
        except OSError:
            listening.close()  # then only what the dumps show counts
        else:
            self._listening = listening

    def _dump(self, family: int) -> Iterator[Connection]:
        assert self._asking is not None
        self._asking.send(request(family))
        done = False
        while not done:
            found, done = parse(self._asking.recv(_RECEIVE_BYTES))
            yield from found


def request(family: int) -> bytes:
    """The message that asks for all TCP connections of an address family."""
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), _STATES)
    flags = _NLM_F_REQUEST | _NLM_F_DUMP
    return _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, flags, 0, 0) + body


def parse(data: bytes) -> tuple[list[Connection], bool]:
    """The connections in what one ``recv`` gave, and whether it was the last of a dump.

    Raises:
        OSError: the kernel refuses.
    """
    found: list[Connection] = []
    position = 0
    while position + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, position)
        body, end = position + _HEADER.size, position + length
        if length < _HEADER.size or end > len(data):
            break  # torn; no such thing should come from the kernel
        if kind == _NLMSG_DONE:
            return found, True
        if kind == _NLMSG_ERROR:
            code = struct.unpack_from("=i", data, body)[0]
            raise OSError(-code, os.strerror(-code))
        if end - body >= _MESSAGE_BYTES and (counters := _counters(data, body + _MESSAGE_BYTES, end)):
            cookie = struct.unpack_from("=Q", data, body + _COOKIE_AT)[0]
            inode = struct.unpack_from("=I", data, body + _INODE_AT)[0]
            sent_bytes, received_bytes, trip_us, busy_us = counters
            if not _is_between_machines(data, body):
                trip_us = busy_us = 0
            found.append((cookie, inode, sent_bytes, received_bytes, trip_us, busy_us))
        position += (length + 3) & ~3
    return found, False


def _is_between_machines(data: bytes, body: int) -> bool:
    """Whether the other side is elsewhere, at a private address: stores on the internet are no members."""
    source = data[body + _SOURCE_AT : body + _SOURCE_AT + _ADDRESS_BYTES]
    other = data[body + _DESTINATION_AT : body + _DESTINATION_AT + _ADDRESS_BYTES]
    if source == other:
        return False
    if data[body] == socket.AF_INET6:
        if not other.startswith(_MAPPED):
            return other[0] & 0xFE == 0xFC
        other = other[len(_MAPPED) :]
    first, second = other[0], other[1]
    return (
        first == 10
        or (first == 172 and 16 <= second < 32)
        or (first == 192 and second == 168)
        or (first == 100 and 64 <= second < 128)
        or (first == 198 and 18 <= second < 20)
    )


def _counters(data: bytes, position: int, end: int) -> tuple[int, int, int, int] | None:
    """From the attributes of a message; None from a kernel that does not count (before 4.2)."""
    while position + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, position)
        if length < _ATTRIBUTE.size or position + length > end:
            break
        if kind == _INET_DIAG_INFO and length >= _ATTRIBUTE.size + _COUNTERS_AT + _COUNTERS.size:
            acked, received = _COUNTERS.unpack_from(data, position + _ATTRIBUTE.size + _COUNTERS_AT)
            trip_us = 0
            if length >= _ATTRIBUTE.size + _TRIP_AT + 4:
                trip_us = _trip_us(
                    *struct.unpack_from("=I", data, position + _ATTRIBUTE.size + _TRIP_AT),
                    *struct.unpack_from("=I", data, position + _ATTRIBUTE.size + _SMOOTHED_AT),
                )
            busy_us = 0
            if length >= _ATTRIBUTE.size + _BUSY_AT + 8:
                busy_us = struct.unpack_from("=Q", data, position + _ATTRIBUTE.size + _BUSY_AT)[0]
            return acked, received, trip_us, busy_us
        position += (length + 3) & ~3
    return None


def _trip_us(shortest_us: int, smoothed_us: int) -> int:
    """What a round trip takes now.

    >>> _trip_us(900, 1_000), _trip_us(900, 45_000), _trip_us(900, 600_000), _trip_us(_NO_TRIP, 0)
    (900, 900, 600000, 0)
    """
    if shortest_us == _NO_TRIP:
        return 0
    is_longer = smoothed_us > max(_LONGER * shortest_us, _LONGER_US)
    return smoothed_us if is_longer else shortest_us


def open_inodes(pids: Iterable[int]) -> dict[int, int]:
    """Process by inode of the sockets that these have open; one process of several that share it."""
    found: dict[int, int] = {}
    for pid in pids:
        directory = f"/proc/{pid}/fd/"
        try:
            names = os.listdir(directory)
        except OSError:
            continue  # gone, or another user's
        for name in names:
            try:
                target = os.readlink(directory + name)
            except OSError:
                continue  # closed meanwhile
            if target.startswith("socket:["):
                found[int(target[8:-1])] = pid
    return found


#: A connection that is in no dump any more may still be in a message that tells of its end.
_LOOKS_MISSED = 3


class _MemberConnection:
    """A connection of a member."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.sent_bytes = self.received_bytes = self.seen = self.trip_us = self.busy_us = 0


class Traffic:
    """Follows the connections of members, which are named by the process ids of their roots."""

    def __init__(self, reader: SocketReader | None = None) -> None:
        self._reader = reader or SocketReader()
        self._known: dict[int, _MemberConnection] = {}
        self._foreign: set[int] = set()
        self._totals: dict[int, list[int]] = {}
        self._trips_us: dict[int, int] = {}
        self._busy_us: dict[int, int] = {}
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

    def busy_s(self, root: int) -> float:
        """For how long a member was busy sending to other machines, summed over its connections."""
        return self._busy_us.get(root, 0) / 1e6

    def last_total(self, root: int) -> tuple[int, int]:
        """The same for one that has just ended: with what its connections carried since the last look."""
        self._take_closed()
        return self.total(root)

    def keep(self, roots: Container[int]) -> None:
        """Forget all other members."""
        self._totals = {root: total for root, total in self._totals.items() if root in roots}
        self._trips_us = {root: trip for root, trip in self._trips_us.items() if root in roots}
        self._busy_us = {root: busy for root, busy in self._busy_us.items() if root in roots}
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
        for cookie, _, sent_bytes, received_bytes, *more in connections:
            known = self._known.get(cookie)
            if known is None:
                continue
            total = self._totals.setdefault(known.root, [0, 0])
            total[0] += max(0, sent_bytes - known.sent_bytes)
            total[1] += max(0, received_bytes - known.received_bytes)
            known.sent_bytes = max(sent_bytes, known.sent_bytes)
            known.received_bytes = max(received_bytes, known.received_bytes)
            known.trip_us, busy_us = (*more, 0, 0)[:2]
            more_us = max(0, busy_us - known.busy_us)
            self._busy_us[known.root] = self._busy_us.get(known.root, 0) + more_us
            known.busy_us = max(busy_us, known.busy_us)
            known.seen = self._looks
