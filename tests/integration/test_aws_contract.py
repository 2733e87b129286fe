"""The contract of providers, on a stand-in for AWS that speaks its protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("moto.server", reason="moto[server] is not installed")

from aws_stand_in import AwsBench, StandIn

from trainmaster.providers.capabilities import capabilities_of
from trainmaster.testing.provider_contract import ProviderContract


class TestAws(ProviderContract):
    capabilities = capabilities_of("aws")

    @pytest.fixture
    def bench(self, stand_in: StandIn, tmp_path: Path) -> Iterator[AwsBench]:
        stand_in.reset()
        bench = AwsBench(stand_in, tmp_path)
        yield bench
        bench.close()
