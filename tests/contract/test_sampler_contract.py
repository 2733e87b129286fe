from typing import ClassVar

import pytest

from trainmaster.sweeps import sampler_class
from trainmaster.testing.sampler_contract import SamplerContract


class TestGrid(SamplerContract):
    @pytest.fixture
    def sampler_class(self):
        return sampler_class("grid")


class TestRandom(SamplerContract):
    @pytest.fixture
    def sampler_class(self):
        return sampler_class("random")


class TestQmc(SamplerContract):
    @pytest.fixture
    def sampler_class(self):
        return sampler_class("qmc")


class TestPbt(SamplerContract):
    options: ClassVar = {"population": "4", "generations": "6"}

    @pytest.fixture
    def sampler_class(self):
        return sampler_class("pbt")


class TestTpe(SamplerContract):
    @pytest.fixture
    def sampler_class(self):
        pytest.importorskip("optuna")
        return sampler_class("tpe")


class TestCmaes(SamplerContract):
    @pytest.fixture
    def sampler_class(self):
        pytest.importorskip("cmaes")
        return sampler_class("cmaes")
