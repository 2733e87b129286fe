"""`MemberPlaces`: which machine each member of an attempt is on, by its id.

Clusters speak of addresses, and a machine that replaces another one may get its address. What the other one
held is lost all the same, so a member's machine is looked up once, when its place is first heard of, and
written down for the next driver of the run.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.control.task.job_context import NodeGoneError, TaskContext
from trainmaster.control.task.layout import attempt_id
from trainmaster.dataclass import dataclass
from trainmaster.spec.periodic import periodically
from trainmaster.spec.plain_json import kept
from trainmaster.spec.private_files import write_private

if TYPE_CHECKING:
    from trainmaster.cluster.cluster_connection import Places
    from trainmaster.cluster.node_access import NodeAccess
    from trainmaster.cluster.node_links import NodeFailureDetector, NodeLinks

#: In an attempt's directory: the machine of each member.
PLACES: Final = "places.json"
#: How often it is looked whether a node is gone while something is under way with all of an attempt.
LOOK_S: Final = 1.0
#: Names of members and their nodes, in rank order.
Members = Sequence[tuple[str, "NodeAccess"]]


@dataclass(slots=True)
class _KnownAttempt:
    """What is known of an attempt.

    Attributes:
        places: members, in rank order, with addresses.
        candidates: ids of the machines that there were when they were first heard of.
        machines: ids, by member.
    """

    places: Places
    candidates: frozenset[str]
    machines: dict[str, str]


def read_places(path: Path) -> dict[str, str]:
    """The machine of each member, as an earlier driver has written it; nothing if the file is damaged."""
    return {name: machine for name, machine in (kept(dict[str, str], path) or {}).items() if machine}


class MemberPlaces:
    """Threads share it.

    Args:
        directory_of: given an attempt's id, its directory here.
    """

    def __init__(self, directory_of: Callable[[str], Path]) -> None:
        self._directory_of = directory_of
        self._guard = threading.Lock()
        self._known: dict[str, _KnownAttempt] = {}

    def hear(
        self,
        attempt: str,
        places: Places,
        nodes: Mapping[str, NodeAccess],
        machines: Collection[str],
        *,
        has_started: bool,
    ) -> None:
        """Take in where an attempt's members are.

        Args:
            attempt: its id.
            places: members, in rank order, with private addresses.
            nodes: that are there, by machine id.
            machines: ids of all that the cluster has ever had.
            has_started: from then on its members stay where they are.
        """
        with self._guard:
            known = self._known.get(attempt)
            if known is None or not (has_started or dict(known.places) == dict(places)):
                # An earlier driver has written down where it started; what was only granted begins again.
                written = self._read(attempt) if has_started else {}
                known = _KnownAttempt(places, frozenset(machines), written)
                self._known[attempt] = known
            known.places = places
            self._find(attempt, known, nodes)

    def machines(self, attempt: str, nodes: Mapping[str, NodeAccess]) -> list[tuple[str, str]]:
        """Members of an attempt with the ids of their machines, in rank order; unknown ones are missing.

        What an earlier driver has written down counts until somebody says otherwise.

        Args:
            attempt: its id.
            nodes: that are there, by machine id.
        """
        with self._guard:
            known = self._known.get(attempt)
            if known is None:  # not heard of since this driver began
                return list(self._read(attempt).items())
            self._find(attempt, known, nodes)
            return [(name, known.machines[name]) for name, _ in known.places if name in known.machines]

    def leave(self, attempt: str) -> None:
        """It is submitted again, for a place that is not known yet."""
        self.forget(attempt)
        with contextlib.suppress(OSError):
            (self._directory_of(attempt) / PLACES).unlink()

    def forget(self, attempt: str) -> None:
        """Its end is recorded; what is written stays."""
        with self._guard:
            self._known.pop(attempt, None)

    def _find(self, attempt: str, known: _KnownAttempt, nodes: Mapping[str, NodeAccess]) -> None:
        missing = {name: address for name, address in known.places if name not in known.machines}
        if not missing:
            return
        ids = {node.address: machine for machine, node in nodes.items() if machine in known.candidates}
        found = {name: ids[address] for name, address in missing.items() if address in ids}
        if found:
            known.machines |= found
            self._write(attempt, {name: known.machines.get(name, "") for name, _ in known.places})

    def _read(self, attempt: str) -> dict[str, str]:
        return read_places(self._directory_of(attempt) / PLACES)

    def _write(self, attempt: str, machines: Mapping[str, str]) -> None:
        directory = self._directory_of(attempt)
        with contextlib.suppress(OSError):  # a full disk: a next driver goes by the addresses
            told = {name: machine for name, machine in machines.items() if machine}
            write_private(directory / PLACES, json.dumps(told).encode(), is_synced=False)


class AttemptNodes:
    """Threads share it.

    Args:
        nodes_of: given an attempt's id, its members; those whose node is gone are missing.
        detector: knows of machines that are taken for lost.
        links: connections to nodes.
    """

    def __init__(
        self, nodes_of: Callable[[str], Members], detector: NodeFailureDetector, links: NodeLinks
    ) -> None:
        self._nodes_of = nodes_of
        self._detector = detector
        self._links = links

    def members(
        self, context: TaskContext, *, is_patient: bool = True, dispensable: frozenset[str] = frozenset()
    ) -> Members:
        """All members of an attempt.

        Args:
            context: the attempt.
            is_patient: nodes that were lost and do not answer are waited for; else they are gone.
            dispensable: members that need no node.

        Raises:
            NodeGoneError: one has no node.
        """
        attempt = id_of(context)
        found = self.known(attempt) if is_patient else self.present(attempt)
        require(context, found, dispensable)
        return found

    def known(self, attempt: str) -> Members:
        """Members whose nodes are not gone; those may have been lost all the same."""
        return self._nodes_of(attempt)

    def present(self, attempt: str) -> Members:
        """Members whose nodes are not known to be lost."""
        members = self._nodes_of(attempt)
        there = {node.id: self._detector.is_there(attempt, node) for _, node in members}
        return [(name, node) for name, node in members if there[node.id]]

    @contextmanager
    def together(
        self, context: TaskContext, *, is_patient: bool = True, dispensable: frozenset[str] = frozenset()
    ) -> Iterator[None]:
        """What is under way with an attempt's nodes ends when one of them is gone: it is all or nothing.

        Else it would take as long as the others take, who may wait for a store that says nothing.

        Args:
            context: the attempt.
            is_patient: see `members`.
            dispensable: members that may be gone.
        """
        attempt = id_of(context)
        nodes = distinct(self.known(attempt))

        def are_there() -> bool:
            found = self.known(attempt) if is_patient else self.present(attempt)
            return not _missing(context, found, dispensable)

        def watch() -> None:
            if not are_there():
                for node in nodes:
                    self._links.hang_up(node.id)

        begins = len(nodes) > 1 and are_there()
        watching = periodically(watch, LOOK_S, "watch nodes", awaited=False)
        with watching if begins else contextlib.nullcontext():
            yield

    def suspect(self, attempt: str, members: Iterable[str]) -> None:
        """Members of an attempt were lost: nodes that do not answer us either are not waited for."""
        lost = frozenset(members)
        self._detector.suspect(attempt, [node for name, node in self._nodes_of(attempt) if name in lost])

    def forget(self, attempt: str) -> None:
        """It is over."""
        self._detector.forget(attempt)


def require(context: TaskContext, members: Members, dispensable: frozenset[str] = frozenset()) -> None:
    """See that members have nodes.

    Args:
        context: the attempt.
        members: that have one.
        dispensable: that need none.

    Raises:
        NodeGoneError: one has none.
    """
    if gone := _missing(context, members, dispensable):
        verb = "has" if len(gone) == 1 else "have"
        raise NodeGoneError(f"{', '.join(gone)} {verb} no node any more, and what was there is lost")


def _missing(context: TaskContext, members: Members, dispensable: frozenset[str]) -> list[str]:
    found = {name for name, _ in members}
    return [name for name in context.members if name not in found and name not in dispensable]


def id_of(context: TaskContext) -> str:
    """The name of an attempt towards executors."""
    return attempt_id(context.run, context.experiment.name, context.task, context.attempt)


def distinct(members: Members) -> list[NodeAccess]:
    """The nodes of members, each once, that of the first rank first."""
    return list({node.id: node for _, node in members}.values())
