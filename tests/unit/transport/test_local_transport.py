"""This machine, as others are reached."""

from __future__ import annotations

import pytest

from trainmaster.testing.transport_contract import TransportContract
from trainmaster.transport.base import Target
from trainmaster.transport.local import Local


class TestLocal(TransportContract):
    @pytest.fixture
    def transport(self) -> Local:
        return Local()

    @pytest.fixture
    def target(self) -> Target:
        return Target("here", "127.0.0.1")
