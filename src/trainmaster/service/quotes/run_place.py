"""`RunPlace`: what the attempts of a run run on, this machine or what was rented for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmaster.control.loop.recording import AttemptMachine
from trainmaster.executors.capacity import detect_capacity

if TYPE_CHECKING:
    from trainmaster.advisor.model.devices import Device
    from trainmaster.service.cluster_costs import ClusterCosts
    from trainmaster.spec import Experiment


class RunPlace:
    """Of one run.

    Args:
        costs: of the machines that were rented for it; None if it runs on this one.
    """

    def __init__(self, costs: ClusterCosts | None) -> None:
        self._costs = costs
        self._cores: int | None = None

    def where(self, experiment: str) -> AttemptMachine:
        """What its attempts run on; where they spread over several places, in the first one."""
        if self._costs is None:
            if self._cores is None:
                self._cores = detect_capacity().cores  # they stay, and this is asked each few seconds
            return AttemptMachine("local", self._cores)
        from trainmaster.service.cluster_costs import where_in

        return where_in(self._costs, experiment)

    def offers(self, experiment: str) -> tuple[str, ...]:
        """What its attempts run on, as measurements call it: of each place that they spread over."""
        its = [] if self._costs is None else self._costs.clusters()
        found = dict.fromkeys(each.machine for each in its if experiment in each.experiments)
        return tuple(found) or (self.where(experiment).offer,)

    def device(self, experiment: Experiment) -> Device:
        """What a worker of an experiment computes on."""
        from trainmaster.advisor.model.devices import Device
        from trainmaster.service.quotes.knowledge_builder import local_device

        if self._costs is None:
            return local_device(experiment)
        from trainmaster.service.cluster_costs import clusters_left

        if its := clusters_left(self._costs.clusters(), experiment.name):
            slots = sum(each.slots for each in its)
            return Device(experiment.hardware.device, float(slots), its[0].machine)
        from trainmaster.providers.capabilities import HOST

        return Device("", 1.0, HOST)

    def has_machines(self, experiment: str) -> bool:
        """Whether what it runs on is there."""
        if self._costs is None:
            return True
        return any(each.is_there for each in self._costs.clusters() if experiment in each.experiments)
