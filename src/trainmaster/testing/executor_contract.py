"""What every executor must do, with real processes: inherit `ExecutorContract` and give it a `connect`."""

from __future__ import annotations

from trainmaster.testing.executor_contract_adoption import AdoptionContract
from trainmaster.testing.executor_contract_gangs import GangContract
from trainmaster.testing.executor_contract_output import OutputContract
from trainmaster.testing.executor_contract_slots import SlotContract
from trainmaster.testing.executor_contract_stopping import StoppingContract
from trainmaster.testing.executor_contract_tools import PATIENCE_S, RUN, SECRET, alive, shell_quoted
from trainmaster.testing.waits import until

__all__ = ["PATIENCE_S", "RUN", "SECRET", "ExecutorContract", "alive", "shell_quoted", "until"]


class ExecutorContract(GangContract, StoppingContract, OutputContract, SlotContract, AdoptionContract):
    """Inherit it and override `connect`.

    Every test gets a node of its own with 4 slots; ``executor`` is connected for the run `RUN`.
    """
