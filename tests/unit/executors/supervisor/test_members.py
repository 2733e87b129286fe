"""What is looked at before a member starts."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.executors.supervisor.members import _require_free_port


def replica(port: object) -> Any:
    return SimpleNamespace(env={"TRAINMASTER_PORT": str(port)}, container=None, serves=True)


def test_a_port_at_which_something_listens_is_refused_and_what_is_no_port_is_left_alone() -> None:
    """A recipe may set the variable to anything: what ends the supervisor ends all tasks of the home."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(OSError, match="something else listens"),
    ):
        _require_free_port(replica(server.getsockname()[1]))
    for port in (99999, "9" * 5000, "x", ""):
        _require_free_port(replica(port))
