"""Hears what goes over the network of a namespace, as anybody on the same wire could. Needs root."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

_RCVBUFFORCE = 33
_BUFFER_BYTES = 64 << 20
_NEWNET = 0x40000000
_IPV4 = 0x0800
_EVERYTHING = 3
_TCP = 6
_LOOK_S = 0.2
_ATTACH_FILTER = 26
_SOURCE_AT, _SINK_AT = 12, 16  # in the header of IPv4

#: One direction of a connection: address and port it comes from, address and port it goes to.
Flow = tuple[str, int, str, int]


@contextlib.contextmanager
def listening(namespace: Path | None = None, addresses: Sequence[str] = ()) -> Iterator[CapturedTraffic]:
    """Listen on all interfaces inside ``with``.

    Args:
        namespace: file of the network namespace; None for our own.
        addresses: whose traffic is heard, the kernel drops all else; empty for everybody's.
    """
    wire = _wire(namespace)
    if addresses:
        _hear_only(wire, addresses)
    heard = CapturedTraffic(wire)
    thread = threading.Thread(target=heard.listen, daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        heard.close()
        thread.join()


class CapturedTraffic:
    """What was heard.

    Attributes:
        flows: the bytes that were sent, in the order in which they came.
    """

    def __init__(self, wire: socket.socket) -> None:
        self.flows: dict[Flow, bytearray] = {}
        self._wire = wire
        self._wire.settimeout(_LOOK_S)
        self._is_over = False

    def listen(self) -> None:
        """Until `close`."""
        with self._wire:
            while True:
                try:
                    packet, sender = self._wire.recvfrom(1 << 17)
                except TimeoutError:
                    if self._is_over:
                        return
                    continue
                # What goes out of one interface has come in at another one, of the namespace or beyond.
                if sender[1] == _IPV4 and sender[2] != socket.PACKET_OUTGOING:
                    self._take(packet)

    def close(self) -> None:
        """End once nothing more comes."""
        self._is_over = True

    def where(self, secret: bytes) -> list[Flow]:
        """The connections in which something was to be read."""
        return [flow for flow, data in self.flows.items() if secret in data]

    def _take(self, packet: bytes) -> None:
        if packet[9] != _TCP:
            return
        total = struct.unpack_from("!H", packet, 2)[0] or len(packet)  # 0: larger than it can say
        head = (packet[0] & 15) * 4
        source, sink = struct.unpack_from("!HH", packet, head)
        data = packet[head + (packet[head + 12] >> 4) * 4 : total]
        if data:
            flow = (socket.inet_ntoa(packet[12:16]), source, socket.inet_ntoa(packet[16:20]), sink)
            self.flows.setdefault(flow, bytearray()).extend(data)


def _hear_only(wire: socket.socket, addresses: Sequence[str]) -> None:
    """Let the kernel drop what neither comes from nor goes to one of them (a filter of classic BPF)."""
    wanted = [struct.unpack("!I", socket.inet_aton(address))[0] for address in addresses]
    code = []
    for at in (_SOURCE_AT, _SINK_AT):
        code.append((0x20, 0, 0, at))  # load a word of the packet
        # where it is the address, go to the last one, which takes the packet whole
        code += [
            (0x15, 2 * (len(wanted) + 1) - len(code) - place, 0, word) for place, word in enumerate(wanted)
        ]
    code += [(0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
    wire.setsockopt(
        socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", len(code), ctypes.addressof(program))
    )


def _wire(namespace: Path | None) -> socket.socket:
    """Made by a thread of its own: which namespace it is in is each thread's own affair."""
    made: list[socket.socket] = []

    def make() -> None:
        if namespace is not None:
            with namespace.open("rb") as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NEWNET):
                    raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        # Of any kind: what is only for IPv4 is asked after a bridge has taken it.
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_EVERYTHING))
        wire.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, _BUFFER_BYTES)
        made.append(wire)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if not made:
        raise PermissionError("only root may listen to others")
    return made[0]


def may_listen() -> bool:
    """Whether this process may."""
    return os.geteuid() == 0
