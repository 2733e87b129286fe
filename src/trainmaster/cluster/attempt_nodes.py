"""`AttemptNodes`: the nodes of attempts, as far as they are there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from trainmaster.control.task.job_context import NodeGoneError, TaskContext
from trainmaster.control.task.layout import attempt_id

if TYPE_CHECKING:
    from trainmaster.cluster.node_access import NodeAccess
    from trainmaster.cluster.node_links import NodeLinks, NodeVerdicts

#: How often it is looked whether a node is gone while something is under way with all of an attempt.
LOOK_S: Final = 1.0
#: Names of members and their nodes, in rank order.
Members = Sequence[tuple[str, "NodeAccess"]]


class AttemptNodes:
    """Threads share it.

    Args:
        nodes_of: given an attempt's id, its members; those whose node is gone are missing.
        verdicts: on machines that are taken for lost.
        links: connections to nodes.
    """

    def __init__(self, nodes_of: Callable[[str], Members], verdicts: NodeVerdicts, links: NodeLinks) -> None:
        self._nodes_of = nodes_of
        self._verdicts = verdicts
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
        there = {node.id: self._verdicts.is_there(attempt, node) for _, node in members}
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
        attempt, over = id_of(context), threading.Event()
        nodes = distinct(self.known(attempt))

        def are_there() -> bool:
            found = self.known(attempt) if is_patient else self.present(attempt)
            return not _missing(context, found, dispensable)

        def watch() -> None:
            while not over.wait(LOOK_S):
                if not are_there():
                    for node in nodes:
                        self._links.hang_up(node.id)

        if len(nodes) > 1 and are_there():  # else nothing begins yet
            threading.Thread(target=watch, name="watch nodes", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def doubt(self, attempt: str, members: Iterable[str]) -> None:
        """Members of an attempt were lost: nodes that do not answer us either are not waited for."""
        lost = frozenset(members)
        self._verdicts.doubt(attempt, [node for name, node in self._nodes_of(attempt) if name in lost])

    def forget(self, attempt: str) -> None:
        """It is over."""
        self._verdicts.forget(attempt)


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
