"""`GangEnds`: whether the machines of a gang lived beyond the first failure of one of its members.

When a machine is lost, the other members of its gang fail by themselves: they see a closed connection within
a second, and the loss is noticed after some seconds. So each machine is asked at once, in parallel, and the
gang's end is held back until all have answered or one has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final, Protocol

from trainmaster.cluster.node_access import NodeAccess
from trainmaster.control.decide.outcome import failed_by_itself
from trainmaster.dataclass import dataclass
from trainmaster.executors.base import GangStatus, MemberStatus, Phase
from trainmaster.providers import Node

#: A member reacts so late at most to the loss of another one's machine: frameworks wait for an answer first.
REACTION_S: Final = 30.0


class FailureDetector(Protocol):
    """Knows whether machines answer; see `NodeFailureDetector`."""

    def suspect(self, attempt: str, nodes: Iterable[NodeAccess]) -> None:
        """Ask machines in the background, each once for an attempt."""

    def answers(self, attempt: str, node: str) -> bool | None:
        """Whether a machine answered; None while that is open."""

    def forget(self, attempt: str) -> None:
        """It is over."""


@dataclass(frozen=True, slots=True)
class GangPlaces:
    """Where a gang is, and what is known of its machines.

    Attributes:
        machines: members with the ids of their machines.
        nodes: machines that are there, by id.
        troubles: given Unix seconds, what befell machines since then, by id; see `ClusterLoop.troubles`.
        is_asked_to_end: then its members fail because of us.
    """

    machines: Sequence[tuple[str, str]]
    nodes: Mapping[str, NodeAccess]
    troubles: Callable[[float], Mapping[str, str]]
    is_asked_to_end: bool = False


class GangEnds:
    """The gangs of a run with a member that failed. The run's loop owns it.

    Args:
        detector: asks machines.
        clock: gives Unix seconds.
        undriven_until: Unix seconds; until then the run's driver was gone, and with it what it had seen of
            machines that were silent.
    """

    def __init__(
        self, detector: FailureDetector, clock: Callable[[], float], undriven_until: float = 0.0
    ) -> None:
        self._detector = detector
        self._clock = clock
        self._undriven_until = undriven_until
        self._heard: dict[str, dict[str, float]] = {}  # when members were heard to have failed, or to be lost
        self._ended: dict[str, GangStatus] = {}
        self._verdicts: dict[str, GangStatus] = {}

    @property
    def ended(self) -> list[GangStatus]:
        """Gangs that have ended, and whose end may be judged otherwise when more is known."""
        return list(self._ended.values())

    def judged(self, status: GangStatus, places: GangPlaces) -> GangStatus:
        """A status with the machines that were lost; one that has ended is RUNNING while that is open."""
        attempt = status.attempt
        if status.phase not in (Phase.RUNNING, Phase.EXITED):
            return status
        failed = [member for member in status.members if failed_by_itself(member)]
        if len({machine for _, machine in places.machines}) < 2:  # only what its machine may have ended
            failed = [member for member in failed if _was_killed(member)]
        heard = self._hear(attempt, [each.name for each in status.members if each.lost or each in failed])
        if not failed or not places.machines:
            return status
        last_at = max(heard[member.name] for member in failed)
        outlived = {name for name, at in heard.items() if at < last_at - REACTION_S}
        failed_at = min(heard[member.name] for member in failed if member.name not in outlived)
        status = _without(status, outlived)
        machines = [(name, machine) for name, machine in places.machines if name not in outlived]
        here = {machine for _, machine in machines}
        self._detector.suspect(attempt, [places.nodes[each] for each in here if each in places.nodes])
        if status.phase is Phase.EXITED:
            self._ended[attempt] = status
        answers = {each: self._detector.answers(attempt, each) for each in here & places.nodes.keys()}
        troubles = {**dict.fromkeys(here - places.nodes.keys(), "was lost")}
        troubles |= places.troubles(failed_at - REACTION_S)
        if any((member.ended_at or 0.0) < self._undriven_until for member in failed):
            troubles |= dict.fromkeys(here - troubles.keys(), "was not watched then: the driver was lost")
        found = judge(status, machines, answers, troubles, waits=not places.is_asked_to_end)
        self._verdicts[attempt] = found
        return found

    def silent(self, status: GangStatus, machines: Sequence[tuple[str, str]]) -> list[str]:
        """Members of a gang that has ended whose machines did not answer."""
        if not status.lost_nodes:
            return []
        return [name for name, on in machines if self._detector.answers(status.attempt, on) is False]

    def verdict(self, attempt: str) -> GangStatus | None:
        """What was said of an attempt last."""
        return self._verdicts.get(attempt)

    def forget(self, attempt: str) -> None:
        """Its end is recorded."""
        self._detector.forget(attempt)
        for memory in (self._heard, self._ended, self._verdicts):
            memory.pop(attempt, None)

    def _hear(self, attempt: str, ended: Iterable[str]) -> dict[str, float]:
        """When each was heard first, Unix seconds; for what comes much later machines are asked again."""
        heard, now = self._heard.setdefault(attempt, {}), self._clock()
        for name in ended:
            if name not in heard and any(at < now - REACTION_S for at in heard.values()):
                self._detector.forget(attempt)
            heard.setdefault(name, now)
        return heard


def _without(status: GangStatus, outlived: AbstractSet[str]) -> GangStatus:
    """Others that failed by themselves much later had gone on without these members: no reason of the end."""
    members = tuple(
        replace(member, lost=False, stopped=True) if member.name in outlived else member
        for member in status.members
    )
    return replace(status, members=members)


def _was_killed(member: MemberStatus) -> bool:
    """Whether a signal ended it that was not ours: a machine that is switched off sends them first."""
    return not member.oom and (member.signal is not None or (member.exit_code or 0) > 128)


def judge(
    status: GangStatus,
    machines: Sequence[tuple[str, str]],
    answers: Mapping[str, bool | None],
    troubles: Mapping[str, str],
    *,
    waits: bool = True,
) -> GangStatus:
    """Whether the machines of a gang lived beyond the first failure of one of its members.

    Args:
        status: RUNNING or EXITED.
        machines: members with the ids of their machines.
        answers: by machine: whether it answered when asked after that failure; None while that is open.
        troubles: by machine: what befell it about then, in words.
        waits: one that has ended waits for what is open.

    Returns:
        An EXITED status with `lost_nodes`; RUNNING while a machine may still answer.

    >>> from trainmaster.executors.base import MemberStatus
    >>> ended = GangStatus("r/e/0/1", Phase.EXITED, (MemberStatus("worker-0", ended_at=1.0, exit_code=1),))
    >>> judge(ended, [("worker-0", "i-1"), ("worker-1", "i-2")], {"i-1": True, "i-2": None}, {}).phase
    <Phase.RUNNING: 'RUNNING'>
    >>> judge(ended, [("worker-0", "i-1"), ("worker-1", "i-2")], {"i-1": True, "i-2": False}, {}).lost_nodes
    ('machine i-2 of worker-1 did not answer any more',)
    """
    if status.phase is not Phase.EXITED:
        return status
    members: dict[str, list[str]] = {}
    for name, machine in machines:
        members.setdefault(machine, []).append(name)
    lost = {member.name for member in status.members if member.lost}
    found: dict[str, str] = {}
    for machine, names in members.items():
        if machine in troubles:
            found[machine] = troubles[machine]
        elif lost.intersection(names):
            found[machine] = "was lost"
        elif answers.get(machine) is False:
            found[machine] = "did not answer any more"
    if found:
        words = [f"machine {each} of {', '.join(members[each])} {why}" for each, why in found.items()]
        return replace(status, lost_nodes=tuple(words))
    is_open = any(answer is None for answer in answers.values())
    return replace(status, phase=Phase.RUNNING) if waits and is_open else status


def with_overuse(
    status: GangStatus, machines: Sequence[tuple[str, str]], overused: Mapping[str, Node]
) -> GangStatus | None:
    """An end that a gang has brought on itself: it used more of a machine than it had asked for.

    Its machine is lost by that, and any other one would be, too. None if nothing shows that.

    Args:
        status: as it was heard.
        machines: members with the ids of their machines.
        overused: machines that were ended for that, by id.
    """
    if status.phase is not Phase.EXITED:
        return None
    cut_off = {member.name for member in status.members if member.exit_code is None}
    for name, machine in machines:
        if name in cut_off and (node := overused.get(machine)) is not None:
            why = f"machine {machine} of {name} was ended: {node.reason}"
            return replace(status, lost_nodes=(why,), overused=node.overused)
    return None
