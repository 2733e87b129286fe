import pytest

from trainmaster.sweeps import pruner_class
from trainmaster.testing.pruner_contract import PrunerContract


class TestAsha(PrunerContract):
    @pytest.fixture
    def pruner_class(self):
        return pruner_class("asha")


class TestHyperband(PrunerContract):
    @pytest.fixture
    def pruner_class(self):
        return pruner_class("hyperband")


class TestMedian(PrunerContract):
    @pytest.fixture
    def pruner_class(self):
        return pruner_class("median")
