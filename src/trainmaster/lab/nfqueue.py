"""The kernel's packet queue (NFQUEUE) as far as the delay line needs it: netlink messages, read and written.

The kernel keeps the packets; user space gets their numbers and first bytes, and says what becomes of them.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from typing import Final

#: linux/netlink.h, linux/netfilter/nfnetlink_queue.h
_NETLINK_NETFILTER: Final = 12
_SUBSYSTEM_QUEUE: Final = 3
_PACKET: Final = _SUBSYSTEM_QUEUE << 8
_VERDICT: Final = _SUBSYSTEM_QUEUE << 8 | 1
_CONFIG: Final = _SUBSYSTEM_QUEUE << 8 | 2
_ERROR: Final = 2
_ATTR_HEADER, _ATTR_PAYLOAD, _ATTR_VERDICT = 1, 10, 2
_CONFIG_COMMAND, _CONFIG_PARAMETERS, _CONFIG_LENGTH, _CONFIG_MASK, _CONFIG_FLAGS = 1, 2, 3, 4, 5
_BIND: Final = 1
_COPY_PACKET: Final = 2
#: Packets as large as the cards make them stay whole.
_FLAG_GSO: Final = 4
_SO_RCVBUFFORCE: Final = 33
_SOL_NETLINK, _NO_ENOBUFS = 270, 5
_BUFFER_BYTES: Final = 8 << 20
#: The header of IPv4, where the sender's address is.
_COPIED_BYTES: Final = 20
QUEUED_PACKETS: Final = 20_000
ACCEPT: Final = 1
DROP: Final = 0


class PacketQueue:
    """A queue of the network namespace that this thread is in.

    Args:
        number: of the queue, as the rule of the packet filter names it.

    Raises:
        OSError: the kernel has no such queues.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
        try:
            self.socket.bind((0, 0))
            self.socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
            self.socket.setsockopt(_SOL_NETLINK, _NO_ENOBUFS, 1)
            self._configure(_CONFIG_COMMAND, struct.pack(">BBH", _BIND, 0, socket.AF_INET))
            self._configure(_CONFIG_PARAMETERS, struct.pack(">IB", _COPIED_BYTES, _COPY_PACKET))
            self._configure(_CONFIG_LENGTH, struct.pack(">I", QUEUED_PACKETS))
            flags = struct.pack(">I", _FLAG_GSO)
            self._configure(_CONFIG_MASK, flags, _CONFIG_FLAGS, flags)
        except OSError:
            self.socket.close()
            raise
        self.socket.setblocking(False)

    def receive(self) -> Iterator[tuple[int, bytes]]:
        """Number and sender (four bytes) of every packet that waits."""
        while True:
            try:
                data = self.socket.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                continue
            yield from packets(data)

    def judge(self, verdicts: list[tuple[int, int]]) -> None:
        """Let packets go, or drop them: (number, `ACCEPT` or `DROP`)."""
        for start in range(0, len(verdicts), 256):
            part = verdicts[start : start + 256]
            self.socket.send(b"".join(verdict(self._number, number, what) for number, what in part))

    def close(self) -> None:
        """Packets that wait are dropped by the kernel; new ones pass."""
        self.socket.close()

    def _configure(self, *attributes: int | bytes) -> None:
        pairs = list(zip(attributes[::2], attributes[1::2], strict=True))
        # With the flag for an answer: the kernel says whether it has such queues at all.
        self.socket.send(_message(_CONFIG, self._number, pairs, flags=5))
        answer = self.socket.recv(1 << 12)
        kind, code = struct.unpack_from("=H", answer, 4)[0], struct.unpack_from("=i", answer, 16)[0]
        if kind == _ERROR and code != 0:
            raise OSError(-code, "the kernel's packet queue refuses")


def verdict(queue: int, number: int, what: int) -> bytes:
    """The message that decides about one packet."""
    return _message(_VERDICT, queue, [(_ATTR_VERDICT, struct.pack(">II", what, number))], flags=1)


def packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and sender of the packets that some messages tell of."""
    place = 0
    while place + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, place)
        if kind == _PACKET:
            number, sender = None, b""
            at = place + 20
            while at + 4 <= place + length:
                size, attribute = struct.unpack_from("=HH", data, at)
                if attribute & 0x3FFF == _ATTR_HEADER:
                    number = struct.unpack_from(">I", data, at + 4)[0]
                elif attribute & 0x3FFF == _ATTR_PAYLOAD:
                    sender = data[at + 16 : at + 20]
                at += (size + 3) & ~3 or 4
            if number is not None:
                yield number, sender
        place += (length + 3) & ~3 or 16


def _message(kind: int, queue: int, attributes: list[tuple[int | bytes, int | bytes]], flags: int) -> bytes:
    body = struct.pack("=BBH", 0, 0, socket.htons(queue))
    for key, value in attributes:
        assert isinstance(key, int)
        assert isinstance(value, bytes)
        body += struct.pack("=HH", 4 + len(value), key) + value + b"\0" * (-len(value) % 4)
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 0, 0) + body
