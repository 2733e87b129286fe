"""This machine, as others are reached."""

from __future__ import annotations

import gc
import warnings

import pytest

from trainmaster.testing.transport_contract import TransportContract
from trainmaster.transport.base import RemoteTimeoutError, Target
from trainmaster.transport.local import Local


class TestLocal(TransportContract):
    @pytest.fixture
    def transport(self) -> Local:
        return Local()

    @pytest.fixture
    def target(self) -> Target:
        return Target("here", "127.0.0.1")

    def test_pipes_that_a_process_of_another_session_holds_are_closed(
        self, transport: Local, target: Target
    ) -> None:
        with transport.connection(target) as connection, warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with pytest.raises(RemoteTimeoutError):
                connection.run("setsid sleep 3 & wait", timeout_s=0.2)
            gc.collect()
        assert [str(each.message) for each in told] == []


class TestPrefix(TestLocal):
    """As a pod is reached by `kubectl exec`: the command stands behind another one."""

    @pytest.fixture
    def transport(self) -> Local:
        return Local(lambda target: ["env", f"POD={target.name}"])

    def test_commands_run_behind_the_prefix(self, transport: Local, target: Target) -> None:
        with transport.connection(target) as connection, connection.stream("echo $POD; read line") as stream:
            assert connection.check("echo $POD") == "here\n"
            assert stream.recv(100) == b"here\n"

    def test_a_shell_that_does_not_begin_is_named(self, target: Target) -> None:
        """Such as one whose `.bashrc` waits for a lock."""
        slow = Local(lambda _: ["sh", "-c", 'exec sleep 60; "$@"', "sh"])
        with slow.connection(target) as connection:
            with pytest.raises(RemoteTimeoutError) as caught:
                connection.run("true", timeout_s=0.2)
            assert ".bashrc" in caught.value.hint
