"""Reading the kernel's books of TCP connections: what it once answered (Linux 6.18), and what it says now."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import struct
import zlib

import pytest

from trainmaster.executors.supervisor import traffic
from trainmaster.executors.supervisor.traffic import SocketReader, open_inodes, parse, request


def recorded(text):
    return zlib.decompress(base64.b64decode(text))


# Two connections on 127.0.0.1 and ::1. Over the first 1000 bytes went there and 200 back, over the
# second 3000 went there; then that one's reader was closed. Last: a request that is too short.
V4 = recorded(
    "eNqbwcjAIMLAxAACuzMZGJiA/KnlRzPqGRgYGZAAOh8E5EQYsIIFr/UZWBk4wGwOBn4wzcMgCjeAjUGMIQhIyzAyQcTYVzE+"
    "kGFmcJgDZDcwMLxgZiAK/P/PwCArxMggBGRzgfn/67mB9On/ED7IHBAbBA6d+5EIVQMGJ6BmwOwChQALVAxEMzLAPOzxghGP"
    "G5ig9Am8LgUFMiMDKWAGlng5mjG1nJh4kccRL/MpiZcuBgYJJuLj5ToQSwPZ/FjiBQSuQ+MlRZLHmR0pXl4yo4YnKC5gyYET"
    "KV5Cr35/yUBEvOBNSyKIWCYWAADuP0mq"
)
DONE = recorded("eNoTYWBgYGZgYgCB3ZlgigEACqcBPg==")
V6 = recorded(
    "eNqbwcjAIMLAxAACuzMZGLiA/G0L5goyoAJGbHwFEQasYNFrfQZWBg4wm4OBH0zzMIjCDWFjEGMQAtIyjEwQMfZVjA9kmCGS"
    "RxgYJJgYiASMDEf+MzBwg81kYPj//389iL0DKAY1DSwPAgZs7w4IQNSAwU5uVJNA6mHWsiB70mHda3zOgcnt4MajqIMRSxDi"
    "BzOwxMtcwW0LiIkXRRzxspiMeHHgZWZwmANkNxDwI5oz/FoYGTihYQmKFy60eNkBjZfJvu8tJZDihQEtPBkZEHo4SQhFRmJV"
    "dZAWLwAG7DyM"
)
CLOSED = recorded(
    "eNqrYWRgEGFAAC52Boa5gtsWMKACRmx8RREGnICVgYuBDUjLMDIxsIME2FcxPpBhZnCYA2Q3MDDs4MaujwWNBlnl18LI4AG0"
    "sZGJgeH////1IK07/jMwMENVgNggMNn3vaUEA1gNGMAcDbOLCclcTiRPfdc4DKYX8GN3ExMDMQBoWgcjAykAAFPdHZI="
)
REFUSED = recorded("eNrTYGBgYGKAgN2ZDAyv/v//LwJkizAwMkOFGZjYGBgAgQQFag==")


def test_a_recorded_dump():
    found, done = parse(V4)
    assert not done
    assert sorted(counters for _, _, *counters, _, _ in found) == [[200, 1000], [1001, 200]], (
        "the SYN counts as one"
    )
    assert len({cookie for cookie, *_ in found}) == len({inode for _, inode, *_ in found}) == 2
    found, done = parse(V6)
    assert sorted(counters for _, _, *counters, _, _ in found) == [[0, 3000], [3001, 0]]
    assert parse(DONE) == ([], True)
    assert len(parse(V4 + V6 + DONE)[0]) == 4


@pytest.mark.parametrize(
    ("other", "is_member"),
    [
        ("10.1.2.3", True),
        ("172.31.0.9", True),
        ("198.18.128.5", True),  # hosts of the lab
        ("192.168.7.1", True),
        ("100.64.0.1", True),
        ("127.0.0.1", False),  # the same machine
        ("52.95.110.1", False),  # a store on the internet
        ("172.32.0.9", False),
        ("198.20.0.9", False),
    ],
)
def test_round_trips_are_told_of_connections_to_other_machines(other, is_member):
    body = 16  # behind the header of the message
    message = bytearray(V4)
    message[body + 24 : body + 28] = socket.inet_aton(other)
    trips = [trip_us for *_, trip_us, _ in parse(bytes(message))[0]]
    assert (trips[0] > 0) is is_member
    assert not any(trips[1:]), "of the other connection nothing has changed"
    assert trips[0] < 1000, "it was one of this machine: microseconds"


def test_a_recorded_message_about_a_closed_connection():
    cookies = {cookie for cookie, _, _, received, *_ in parse(V6)[0] if received == 3000}
    ((cookie, inode, acked, received, *_),), _ = parse(CLOSED)
    assert cookie in cookies
    assert (inode, acked, received) == (0, 1, 3000)


def test_a_refusal():
    with pytest.raises(OSError, match="Invalid argument"):
        parse(REFUSED)


def test_torn_and_short_messages_are_no_trouble():
    for length in range(0, len(V4), 4):
        found, done = parse(V4[:length])
        assert len(found) <= 2
        assert not done
    header = struct.Struct("=IHHII")
    assert parse(header.pack(16, 20, 2, 0, 0) * 3) == ([], False)
    assert parse(header.pack(0, 20, 2, 0, 0)) == ([], False), "a length of nothing must not loop for ever"


def test_an_old_kernel_does_not_count_bytes():
    length = struct.unpack_from("=I", V4)[0]
    message = bytearray(V4[:length])
    position = 16 + 72
    while position < length:
        attribute_length, kind = struct.unpack_from("=HH", message, position)
        if kind == 2:  # keep no more of tcp_info than Linux 4.0 has
            del message[position + 4 + 104 : position + attribute_length]
            struct.pack_into("=H", message, position, 4 + 104)
            break
        position += (attribute_length + 3) & ~3
    struct.pack_into("=I", message, 0, len(message))
    assert parse(bytes(message)) == ([], False)


def test_the_request_is_as_the_kernel_wants_it():
    assert len(request(socket.AF_INET)) == 16 + 56


@contextlib.contextmanager
def connection(family, host):
    with (
        socket.create_server((host, 0), family=family) as listener,
        socket.create_connection(listener.getsockname()[:2]) as client,
    ):
        accepted, _ = listener.accept()
        with accepted:
            yield client, accepted


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_this_kernel(family, host):
    """Also across the end of a connection, whose last bytes only the message about it knows."""
    reader = SocketReader()
    if reader.dump() is None:
        pytest.skip("this kernel or sandbox does not tell")
    try:
        with connection(family, host) as (client, accepted):
            client.sendall(bytes(70_000))
            assert len(accepted.recv(70_000, socket.MSG_WAITALL)) == 70_000
            inodes = open_inodes([os.getpid()])
            assert inodes[os.fstat(client.fileno()).st_ino] == os.getpid()
            found = {inode: (cookie, *counts) for cookie, inode, *counts, _, _ in reader.dump()}
            cookie, acked, received = found[os.fstat(client.fileno()).st_ino]
            assert acked in (70_000, 70_001)
            assert received == 0
            other, acked, received = found[os.fstat(accepted.fileno()).st_ino]
            assert received == 70_000
            client.sendall(bytes(5))
            assert len(accepted.recv(5, socket.MSG_WAITALL)) == 5
        last = {}
        while not {cookie, other} <= last.keys():  # the kernel tells a moment later
            last |= {cookie: counts for cookie, _, *counts, _ in reader.closed()}
        assert last[cookie][0] in range(70_005, 70_008), "SYN and FIN count as one each"
        assert last[other][1] in range(70_005, 70_007)
    finally:
        reader.close()


def test_where_the_kernel_refuses_there_is_nothing(monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(traffic.socket, "socket", refuse)
    reader = SocketReader()
    assert reader.dump() is None
    assert reader.closed() == []
    monkeypatch.undo()
    assert reader.dump() is None, "nor is it asked again every second"


def test_processes_that_are_gone_have_nothing_open():
    assert open_inodes([1 << 30]) == {}
