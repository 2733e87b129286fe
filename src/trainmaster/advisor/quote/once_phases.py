"""`OncePhases`: what comes once, however many tasks there are: machines, setup, data, saving, giving back."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.machines import Machines, codes, joined
from trainmaster.advisor.market.phases import (
    NOTHING,
    ClusterWait,
    MachineCountEffect,
    PhaseHistory,
    machines_belief,
)
from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.model.shapes import Floats
from trainmaster.dataclass import dataclass
from trainmaster.providers import Offer
from trainmaster.providers.capabilities import capabilities_of, measured_name
from trainmaster.spec.log_normal import LogNormal

#: Phases that an image of a machine saves; and phases that come after the training.
_SAVED: Final = frozenset({"setup", "image"})
_GIVING_BACK: Final = "giving back"
AFTERWARDS: Final = ("saving", _GIVING_BACK)


@dataclass(frozen=True)
class OncePhases:
    """Beliefs on phases that come once, on any candidates of one experiment. See `Timing` for the fields."""

    workload: Workload
    machines: Machines
    servers: Machines
    offers: tuple[Offer, ...]
    waited: tuple[ClusterWait, ...]
    gave_back_s: tuple[float, ...]

    def seconds(self, some: Candidates, world: Callable[[int], Floats]) -> dict[str, Floats]:
        """(S, m) seconds of each phase, by name: of machines, until these are there, too.

        Args:
            some: candidates.
            world: gives (S, 1) standard normal numbers, the same for a stream at every call.
        """
        found: dict[str, Floats] = {}
        for stream, (name, medians, spreads) in enumerate(self._beliefs):
            median, spread = medians[some.machine], spreads[some.machine]
            if name == "machines" and not self.workload.is_warm:  # all of them have to be there
                median, spread = self._all_there(*self._slowest(median, spread, some), some)
            drawn = median * np.exp(spread * world(30 + stream))
            found[name] = drawn + found.get(name, 0.0)  # there may be several data
        return found

    def giving_back_s(self, some: Candidates) -> Floats | float:
        """(m,) median seconds in which machines are given back, and not billed any more."""
        medians = next((each for name, each, _ in self._beliefs if name == _GIVING_BACK), None)
        return 0.0 if medians is None else medians[some.machine]

    def alike(self, some: Candidates) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
        """One of each kind for which all is alike, and the kind of each: thousands share a few beliefs."""
        number = codes(some.machines + some.servers)
        kinds = joined(self.kinds[some.machine], number)
        if len(self.servers):
            kinds = joined(kinds, np.where(some.server >= 0, self.server_kinds[some.server] + 1, 0))
        first, back = np.unique(kinds, return_index=True, return_inverse=True)[1:]
        return first, back.ravel()

    @cached_property
    def kinds(self) -> NDArray[np.int_]:
        """(k,) numbers of machines for which all is alike."""
        return joined(*(codes(each) for _, *both in self._beliefs for each in both))

    @cached_property
    def server_kinds(self) -> NDArray[np.int_]:
        """Numbers of the servers' machines for which one waits alike."""
        return joined(*map(codes, self._server_waits)) if len(self.servers) else np.zeros(0, dtype=int)

    @cached_property
    def _beliefs(self) -> list[tuple[str, Floats, Floats]]:
        """Each phase: (k,) median and spread (log) of their seconds."""
        kinds, rows = self._offers_by_kind(self.machines)
        by_kind: list[list[LogNormal]] = []
        for offer in kinds:
            provider, region = offer.provider, offer.region
            can, name = capabilities_of(provider), measured_name(provider, offer.instance_type)
            mine = [self._wait(offer)]
            for each in self._brought:
                saved = each.name in _SAVED and (provider, region) in self.workload.prepared_in
                stays = not can.rents or (self.workload.is_warm and each.name in _SAVED)
                mine.append(NOTHING if saved else each.belief(name, stays=stays))
            goes = not can.is_here and not (can.rents and self.workload.stays)
            mine.append(can.giving_back_s.learnt(self.gave_back_s) if goes else NOTHING)
            by_kind.append(mine)
        found = []
        names = ("machines", *(each.name for each in self._brought), _GIVING_BACK)
        for name, some in zip(names, zip(*by_kind, strict=True), strict=True):
            medians = np.array([each.median for each in some])[rows]
            if name == "machines" or medians.any():
                found.append((name, medians, np.array([each.spread for each in some])[rows]))
        return found

    def _slowest(self, median: Floats, spread: Floats, some: Candidates) -> tuple[Floats, Floats]:
        """What one waits for a machine of the workers, or for one of the servers where that takes longer."""
        if not len(self.servers):
            return median, spread
        theirs, doubt = (each[some.server] for each in self._server_waits)
        is_later = (some.server >= 0) & (theirs > median)
        return np.where(is_later, theirs, median), np.where(is_later, doubt, spread)

    def _all_there(self, median: Floats, spread: Floats, some: Candidates) -> tuple[Floats, Floats]:
        """The same of all machines of a cluster as of one of them; one belief of each provider."""
        providers = np.array([self.offers[index].provider for index in self.machines.index.tolist()])
        number = np.maximum(some.machines + some.servers, 1.0)
        for provider in np.unique(providers):
            mine = providers[some.machine] == provider
            effect = MachineCountEffect.learnt(self.waited, str(provider))
            more = np.log(number)
            median = np.where(mine, median * np.exp(effect.power * more), median)
            doubt = np.where(median > 0, effect.doubt * np.abs(more - effect.usual), 0.0)
            spread = np.where(mine, np.hypot(spread, doubt), spread)
        return median, spread

    @cached_property
    def _server_waits(self) -> tuple[Floats, Floats]:
        """Median and spread (log) of what one waits for one machine of each of the servers' kinds."""
        kinds, rows = self._offers_by_kind(self.servers)
        waits = [self._wait(offer) for offer in kinds]
        return np.array([w.median for w in waits])[rows], np.array([w.spread for w in waits])[rows]

    def _offers_by_kind(self, machines: Machines) -> tuple[list[Offer], NDArray[np.int_]]:
        """One offer of each type in each region, and which of them each machine is."""
        here = [self.offers[index] for index in machines.index.tolist()]
        kinds = {(o.provider, o.region, o.instance_type): o for o in here}
        numbers = {kind: number for number, kind in enumerate(kinds)}
        rows = [numbers[o.provider, o.region, o.instance_type] for o in here]
        return list(kinds.values()), np.array(rows, dtype=int)

    @property
    def _brought(self) -> list[PhaseHistory]:
        """Phases that come once the machines are there."""
        return [each for each in self.workload.once if each.name != "machines"]

    def _wait(self, offer: Offer) -> LogNormal:
        """For one machine; for warm ones, until the run has them."""
        name = measured_name(offer.provider, offer.instance_type)
        if self.workload.is_warm:
            again = [each.belief(name, stays=False) for each in self.workload.once if each.name == "machines"]
            return again[0] if again else NOTHING
        prior = capabilities_of(offer.provider).provisioning_s
        return machines_belief(prior, self.waited, offer.provider, name, offer.vcpus)
