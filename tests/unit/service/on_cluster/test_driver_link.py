"""The line to a driver that waits until it is to begin."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from trainmaster.service.on_cluster.driver_watchdog import part
from trainmaster.service.on_cluster.hand_over import DriverLink
from trainmaster.spec.errors import ProviderError


@pytest.fixture
def line():
    """A link, and the machine's end of it."""
    ours, theirs = socket.socketpair()
    login = SimpleNamespace(stream=lambda _: ours)
    transport = SimpleNamespace(connect=lambda _: login, close=lambda: None)
    link = DriverLink(SimpleNamespace(target=None), transport, "watchdog")
    with theirs:
        yield link, theirs
        link.close()


def test_who_waits_is_asked_at_any_time_without_waiting(line):
    link, machine = line
    assert not link.is_open()
    machine.sendall(b"ready\n")
    link.get_ready(b"first")
    assert link.is_open()
    machine.sendall(b"driving\n")
    assert link.begin(b"last") == ""
    machine.close()
    assert not link.is_open()


def test_why_a_driver_does_not_begin_is_told(line):
    link, machine = line
    machine.sendall(b"failed: no room\n")
    with pytest.raises(ProviderError, match="no room"):
        link.get_ready(b"first")
    assert machine.recv(100) == part(b"first")
    machine.close()
    assert link.begin(b"last") != ""
    link.close()
    assert link.begin(b"last") != ""
