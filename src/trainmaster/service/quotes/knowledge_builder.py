"""`KnowledgeBuilder`: from measurements to what a quote knows of an experiment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainmaster.advisor.model.devices import Device
from trainmaster.dataclass import dataclass
from trainmaster.spec import Experiment

if TYPE_CHECKING:
    from trainmaster.advisor.market.memory_floor import Shares
    from trainmaster.advisor.model.experience import Experience
    from trainmaster.advisor.model.knowledge import Knowledge
    from trainmaster.advisor.model.measurement import Measurement
    from trainmaster.providers import Catalogue


@dataclass(frozen=True)
class KnowledgeBuilder:
    """Learns from measurements of machines of a catalogue.

    Attributes:
        catalogue: says what the machines are.
        shares: of the published sizes that they really have; None: all.
        seed: of the posterior's draws.
    """

    catalogue: Catalogue
    shares: Shares | None = None
    seed: int = 0

    def knowledge(
        self,
        experiment: Experiment,
        same: Sequence[Measurement],
        similar: Sequence[Measurement] = (),
        experience: Experience | None = None,
    ) -> Knowledge | None:
        """What they say; None if that is nothing.

        Args:
            experiment: that was measured.
            same: of the very job.
            similar: of similar ones.
            experience: of other jobs on this machine.
        """
        from trainmaster.advisor.market.machines import card_mbps
        from trainmaster.advisor.model.knowledge import Knowledge

        devices = {"local": local_device(experiment)}
        nics: dict[str, float] = {}
        catalogue = self.catalogue
        if self.shares is not None:
            catalogue = catalogue.with_offers(map(self.shares.of, catalogue))
        for measurement in [*same, *similar]:
            offer = catalogue.cheapest(measurement.offer) or catalogue.cheapest(measurement.offer, spot=True)
            if offer is not None:
                # As offers are taken by what predicts them: GPUs count only for what asks for some.
                asks = bool(experiment.hardware.gpu_count)
                gpu, gpus = (offer.accelerator, max(offer.accelerators, 1.0)) if asks else ("", 1.0)
                devices[measurement.offer] = Device(gpu, offer.vcpus / gpus, offer.instance_type)
                # what was measured for minutes had a card that was still fast
                fast = float(card_mbps(catalogue.with_offers([offer]).columns())[0][0])
                if math.isfinite(fast):
                    nics[measurement.offer] = fast
        return Knowledge.of(same, similar, devices, nics, self.seed, experience)


def local_device(experiment: Experiment) -> Device:
    """What one worker computes on here."""
    from trainmaster.executors.capacity import detect_capacity

    machine = detect_capacity()
    gpu = experiment.hardware.device if machine.gpus else ""
    return Device(gpu, float(machine.cores), "local")
