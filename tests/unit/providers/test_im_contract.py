"""The provider `im` keeps what every provider must, on a double of Infrastructure Manager."""

from __future__ import annotations

from pathlib import Path

import pytest
from im_double import ImBench

from trainmaster.providers.capabilities import BUILT_IN
from trainmaster.testing.provider_contract import ProviderContract


class TestIm(ProviderContract):
    """See there."""

    capabilities = BUILT_IN["im"]

    @pytest.fixture
    def bench(self, tmp_path: Path) -> ImBench:
        return ImBench(tmp_path)
