"""Whose bytes they are: connections that come, go, and are handed on."""

from __future__ import annotations

import contextlib
import os
import socket

import pytest

from forked_children import exit_code, forked
from trainmaster.executors.supervisor.traffic import Traffic


class Books:
    """What the kernel would tell: filled by the test, with the inodes of real sockets."""

    def __init__(self):
        self.open = {}
        self.ended = []
        self.refused = False

    def dump(self):
        return None if self.refused else [(cookie, *rest) for cookie, rest in self.open.items()]

    def closed(self):
        found, self.ended = self.ended, []
        return found

    def close(self):
        self.refused = True


@pytest.fixture
def ours():
    """Inodes of two sockets that this process has open."""
    with socket.socket() as first, socket.socket() as second:
        yield os.fstat(first.fileno()).st_ino, os.fstat(second.fileno()).st_ino


@pytest.fixture
def books():
    return Books()


ROOT = 77
HERE = {os.getpid(): ROOT}


def test_sums_over_connections_and_looks(books, ours):
    traffic = Traffic(books)
    books.open = {1: (ours[0], 100, 5), 2: (ours[1], 10, 0), 3: (999_999_999, 4000, 4000)}
    assert traffic.look(HERE)
    assert traffic.total(ROOT) == (110, 5)
    books.open[1] = (ours[0], 150, 5)
    traffic.look(HERE)
    assert traffic.total(ROOT) == (160, 5)
    assert traffic.total(78) == (0, 0)


def test_a_connection_that_is_gone_stays_in_the_total(books, ours):
    traffic = Traffic(books)
    books.open = {1: (ours[0], 100, 0)}
    traffic.look(HERE)
    books.open = {}
    for _ in range(6):
        traffic.look(HERE)
        assert traffic.total(ROOT) == (100, 0)
    books.open = {2: (ours[0], 7, 0)}  # the inode is used again
    traffic.look(HERE)
    assert traffic.total(ROOT) == (107, 0)


def test_the_last_word_about_a_closed_connection(books, ours):
    traffic = Traffic(books)
    books.open = {1: (ours[0], 100, 0)}
    traffic.look(HERE)
    books.open = {}
    books.ended = [(1, 0, 180, 3), (5, 0, 10**9, 10**9)]
    assert traffic.last_total(ROOT) == (180, 3), "those that nobody has seen are nobody's"
    books.ended = [(1, 0, 180, 3)]
    assert traffic.last_total(ROOT) == (180, 3), "told once"


def test_it_may_be_told_looks_after_it_left_the_dump(books, ours):
    traffic = Traffic(books)
    books.open = {1: (ours[0], 100, 0)}
    traffic.look(HERE)
    books.open = {}
    traffic.look(HERE)
    books.ended = [(1, 0, 130, 0)]
    traffic.look(HERE)
    assert traffic.total(ROOT) == (130, 0)


def test_totals_never_fall(books, ours):
    traffic = Traffic(books)
    books.open = {1: (ours[0], 100, 50)}
    traffic.look(HERE)
    books.open = {1: (ours[0], 90, 0)}
    traffic.look(HERE)
    assert traffic.total(ROOT) == (100, 50)


def test_one_that_nobody_has_accepted_yet(books, ours):
    traffic = Traffic(books)
    books.open = {1: (0, 0, 500)}
    traffic.look(HERE)
    books.open = {1: (ours[0], 0, 700)}
    traffic.look(HERE)
    assert traffic.total(ROOT) == (0, 700), "what came before it was accepted is its own too"


def test_others_are_looked_for_once(books, ours, monkeypatch):
    looks = []

    def look(pids):
        looks.append(list(pids))
        return {ours[0]: os.getpid()}

    monkeypatch.setattr("trainmaster.executors.supervisor.traffic.open_inodes", look)
    traffic = Traffic(books)
    books.open = {1: (ours[0], 1, 0), 2: (999_999_999, 1, 0)}
    for _ in range(5):
        traffic.look(HERE)
    assert len(looks) == 1
    books.open[3] = (999_999_998, 1, 0)
    traffic.look(HERE)
    assert len(looks) == 2


def test_members_that_are_not_kept_are_forgotten(books, ours):
    traffic = Traffic(books)
    books.open = {1: (ours[0], 100, 0)}
    traffic.look(HERE)
    traffic.keep({ROOT})
    assert traffic.total(ROOT) == (100, 0)
    traffic.keep(set())
    assert traffic.total(ROOT) == (0, 0)


def test_a_kernel_that_does_not_tell(books):
    books.refused = True
    assert not Traffic(books).look(HERE)


def test_two_processes_on_this_machine_are_counted_each():
    """Over the real kernel: what one end has sent the other has received, also over loopback."""
    traffic = Traffic()
    with contextlib.closing(traffic), socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        traffic.look({os.getpid(): 1})
        earlier = traffic.total(1)  # other tests may have left connections

        def work():
            os.closerange(3, 4096)  # connections of other tests are none of its business
            with socket.create_connection(address) as client:
                client.sendall(bytes(300_000))
                client.recv(1)

        script = forked(work)
        try:
            accepted, _ = listener.accept()
            with accepted:
                assert len(accepted.recv(300_000, socket.MSG_WAITALL)) == 300_000
                if not traffic.look({os.getpid(): 1, script: 2}):
                    pytest.skip("this kernel or sandbox does not tell")
                now = traffic.total(1)
                assert (now[0] - earlier[0], now[1] - earlier[1]) == (0, 300_000)
                sent, received = traffic.total(2)
                assert sent in (300_000, 300_001), "the SYN counts as one"
                assert received == 0
        finally:
            exit_code(script)


def test_how_long_a_member_was_sending_is_summed_and_never_falls(books, ours):
    traffic = Traffic(books)
    books.open = {1: (ours[0], 1, 1, 900, 2_000_000), 2: (ours[1], 1, 1, 900, 500_000)}
    traffic.look(HERE)
    assert traffic.busy_s(ROOT) == 2.5
    books.open = {1: (ours[0], 1, 1, 900, 2_250_000)}
    traffic.look(HERE)
    assert traffic.busy_s(ROOT) == 2.75
    traffic.keep(())
    assert traffic.busy_s(ROOT) == 0.0


def test_round_trips_are_the_median_of_the_open_connections_and_outlive_them(books, ours):
    traffic = Traffic(books)
    books.open = {1: (ours[0], 1, 1, 40_000), 2: (ours[1], 1, 1, 41_000), 3: (999_999_999, 1, 1, 900)}
    assert traffic.round_trip_ms(ROOT) is None
    traffic.look(HERE)
    assert traffic.round_trip_ms(ROOT) == 41.0
    books.open = {1: (ours[0], 1, 1, 0)}
    for _ in range(6):
        traffic.look(HERE)
    assert traffic.round_trip_ms(ROOT) == 41.0, "what it was while it had one"
    traffic.keep(())
    assert traffic.round_trip_ms(ROOT) is None
