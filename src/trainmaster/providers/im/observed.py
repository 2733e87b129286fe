"""`ImObserved`: what Infrastructure Manager has of a home, looked at through what the home remembers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainmaster.providers.base import Node
from trainmaster.providers.im.client import ImClient, ImState
from trainmaster.providers.im.documents import ENDED, node_id, node_of
from trainmaster.providers.im.ledger import ImCluster, ImLedger, ImRequest
from trainmaster.providers.im.radl import ImMachine, InfrastructureOwner, machine_of, mark_of
from trainmaster.providers.im.settings import ImSettings
from trainmaster.transport.http_calls import gone_is_fine


class ImObserved:
    """Looks, and changes nothing. Threads may share it.

    Args:
        client: of IM.
        settings: name the clouds.
        home: identity of the home.
        memory: takes the keys of machines.
    """

    def __init__(self, client: ImClient, settings: ImSettings, home: str, memory: ImLedger) -> None:
        self._client = client
        self._settings = settings
        self._home = home
        self._memory = memory
        #: What does not change: machines that have an address, and infrastructures of others.
        self._machines: dict[tuple[str, str], ImMachine] = {}
        self._others: set[str] = set()

    def named_nodes(self, known: ImCluster) -> Iterator[tuple[str, Node]]:
        """Every machine of a cluster that was ever asked for, with the name that it has in the document."""
        current, state = self.present(known)
        states = {current: state}
        for infrastructure in known.infrastructures:
            if infrastructure not in states:
                states[infrastructure] = self.state_of(infrastructure)
        for system, asked in known.asked.items():
            infrastructure = asked.infrastructure or current
            state = states.get(infrastructure)
            numbers: Sequence[str] = asked.machines
            if not numbers and state is not None:
                numbers = self.of_system(infrastructure, state, system)
            for number in numbers:
                yield system, self._node(known.cluster, infrastructure, number, asked, state)

    def _node(
        self, cluster: str, infrastructure: str, number: str, asked: ImRequest, state: ImState | None
    ) -> Node:
        told = state.machines.get(number, "") if state is not None else ""
        is_there = bool(told) and told not in ENDED
        machine = self._machine(infrastructure, number) if is_there else ImMachine("")
        name = node_id(infrastructure, number)
        key = self._memory.machine_key(cluster, name, machine.key) if machine.key else None
        cloud = asked.place if asked.place in self._settings.clouds else next(iter(self._settings.clouds))
        return node_of(cluster, name, told, asked, machine, user=self._settings.cloud(cloud).user, key=key)

    def _machine(self, infrastructure: str, number: str) -> ImMachine:
        known = self._machines.get((infrastructure, number))
        if known is None or not (known.address and known.key):
            known = ImMachine("")
            with gone_is_fine():
                known = machine_of(self._client.machine(infrastructure, number))
                self._machines[infrastructure, number] = known
        return known

    def forget(self, known: ImCluster) -> None:
        """What was seen of machines that are not in use: at the end of an addition IM numbers them again."""
        taken = known.taken
        for infrastructure, number in list(self._machines):
            if infrastructure == known.infrastructure and number not in taken:
                self._machines.pop((infrastructure, number), None)

    def of_system(self, infrastructure: str, state: ImState, system: str) -> list[str]:
        """Numbers of the machines that were asked for under a name, the oldest first."""
        numbers = sorted(state.machines, key=lambda number: (len(number), number))
        return [number for number in numbers if self._machine(infrastructure, number).system == system]

    def state_of(self, infrastructure: str) -> ImState | None:
        """How far it is; None if it is gone."""
        with gone_is_fine():
            return self._client.state(infrastructure)
        return None

    def present(self, known: ImCluster) -> tuple[str, ImState | None]:
        """The cluster's infrastructure and how far it is; empty and None if it has none, or none any more."""
        found = known.infrastructure
        if not found and known.is_asked:
            found = next((each for each, mark in self.marked() if mark.cluster == known.cluster), "")
        state = self.state_of(found) if found else None
        return ("", None) if state is None else (found, state)

    def marked(self) -> Iterator[tuple[str, InfrastructureOwner]]:
        """Every infrastructure of this home."""
        for infrastructure, radl in self._described():
            mark = mark_of(radl)
            if mark is not None and mark.home == self._home:
                yield infrastructure, mark

    def mark(self, infrastructure: str) -> InfrastructureOwner | None:
        """Whose it is; None if it is gone."""
        with gone_is_fine():
            return mark_of(self._client.description(infrastructure))
        return None

    def untold(self) -> list[str]:
        """Infrastructures of which IM does not say yet what they are for: they are just being made."""
        return [each for each, radl in self._described() if _is_untold(radl)]

    def _described(self) -> Iterator[tuple[str, str]]:
        """Every infrastructure that may be of this home, and the document that it stands on."""
        for infrastructure in self._client.infrastructures():
            if infrastructure in self._others:
                continue
            radl: str | None = None
            with gone_is_fine():
                radl = self._client.description(infrastructure)
            if radl is None:
                continue
            mark = mark_of(radl)
            if not _is_untold(radl) and (mark is None or mark.home != self._home):
                self._others.add(infrastructure)
            yield infrastructure, radl


def _is_untold(radl: str) -> bool:
    return "system" not in radl and mark_of(radl) is None
