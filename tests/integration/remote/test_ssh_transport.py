"""The contract of transports, over a real SSH server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trainmaster.testing.private_sshd import SshHost
from trainmaster.testing.transport_contract import TransportContract
from trainmaster.transport.base import Target
from trainmaster.transport.ssh import Ssh


class TestSsh(TransportContract):
    @pytest.fixture
    def transport(self, ssh: Ssh) -> Ssh:
        return ssh

    @pytest.fixture
    def target(self, new_host: Callable[..., SshHost]) -> Target:
        return new_host().target
