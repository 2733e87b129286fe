"""`NodesExecutor`: gangs over the nodes of a cluster, whatever its engine is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.executors.base import Capacity, GangRequest, GangStatus, Phase, portable
from trainmaster.executors.gangs.copies import Mirror
from trainmaster.executors.gangs.inbox import Inbox
from trainmaster.executors.gangs.silence import HEAD_SILENT_S
from trainmaster.spec.errors import ExecutorError

if TYPE_CHECKING:
    from trainmaster.executors.gangs.conductor import Conductor
    from trainmaster.executors.gangs.placement import LiveNode
    from trainmaster.executors.gangs.recorded_cluster import RecordedCluster
    from trainmaster.executors.gangs.scheduler import Scheduler

_GONE_PAUSE_S = 1.0
_ANSWER_S = 30.0
#: A caller with other things to do waits so long for an answer.
_BRIEF_S = 8.0
#: All nodes have to be asked what an earlier driver has left.
_OPEN_TIMEOUT_S = 90.0
_PARTING_TIMEOUT_S = 5.0
_LOOK_S = 1.0


class NodesExecutor:
    """Starts gangs on the nodes of a cluster; see `Executor` for the methods.

    Gangs are conducted by a thread of this process, which is asked to do things in their order, and puts what
    happens into an `Inbox`. How many slots and GPUs there are is the cluster's to know: of the `Capacity`
    given to `open` nothing is used.

    A gang for which there is no room even on an empty cluster waits for nodes to come. When a node is lost,
    its members are ``lost`` and the others of their gangs are stopped, with the gang's grace.

    When what conducts the gangs has ended, as it does when a cluster's head is out of reach, each call raises
    `ExecutorError` at once: the caller closes this executor and opens another, which may take a minute.
    Where ``is_gone`` confirms that the head is gone, nothing is reported or started any more (`is_lost`): all
    that had not ended is lost with the cluster, as its owner knows. What runs on the other nodes goes on
    until those are ended.

    Args:
        cluster: started already.
        place: where the driver's copy of an attempt's directory goes; None for the same path. No copies are
            made where driver and node see the same directory.
        is_gone: whether a node that cannot be reached, though the engine has not given it up, is gone. The
            engine's own word is enough without it.

    Attributes:
        is_lost: the cluster is gone for good: nothing is done there, and `observe` tells what was heard last.
    """

    def __init__(
        self,
        cluster: RecordedCluster,
        place: Callable[[str], Path] | None = None,
        is_gone: Callable[[str], bool] | None = None,
    ) -> None:
        self.is_lost = False
        self._cluster = cluster
        self._mirror = Mirror(place or Path)
        self._inbox = Inbox(0, {}, self._mirror)
        self._conductor: Conductor | None = None
        self._live: dict[str, GangStatus] = {}
        self._answer_s = _ANSWER_S
        self._is_gone = is_gone
        self._asked_gone_at = 0.0

    def open(self, run: str, capacity: Capacity, env: Mapping[str, str], token: int = 0) -> None:
        """Connect on behalf of a run; see `Executor.open`. What the engine withholds reaches no member."""
        del capacity
        own = {
            name: value for name, value in env.items() if not name.startswith(self._cluster.withheld_prefixes)
        }
        deadline = time.monotonic() + _OPEN_TIMEOUT_S
        while time.monotonic() < deadline:
            inbox = Inbox(token, portable(own), self._mirror)
            conductor = self._cluster.conductor(run, token)
            opening = conductor.open(inbox)
            while not conductor.is_over and time.monotonic() < deadline:
                with contextlib.suppress(TimeoutError, CancelledError):
                    opening.result(_LOOK_S)
                    self._conductor, self._inbox = conductor, inbox
                    return
            opening.cancel()
            if conductor.error is not None:
                raise conductor.error
        raise ExecutorError(
            "what conducts the cluster's tasks does not answer", "Can its machines be reached?"
        )

    def hurry(self) -> None:
        """From now on the caller has other things to do: an answer is waited for 8 s, not 30."""
        self._answer_s = _BRIEF_S

    def submit(self, gangs: Sequence[GangRequest]) -> None:
        """Queue gangs; see `Executor.submit`."""
        if gangs and self._reach() is not None:
            self._live.update((gang.attempt, GangStatus(gang.attempt, Phase.QUEUED)) for gang in gangs)
            self._inbox.forget([gang.attempt for gang in gangs])
            messages = [gang.message() for gang in gangs]
            self._tell(lambda scheduler: scheduler.submit(messages))

    def launch(self, attempt: str, env: Mapping[str, Mapping[str, str]]) -> None:
        """Start a GRANTED gang; see `Executor.launch`."""
        extra = {name: portable(variables) for name, variables in env.items()}
        self._tell(lambda scheduler: scheduler.launch(attempt, extra))

    def observe(self, attempts: Sequence[str]) -> list[GangStatus]:
        """The present status of each attempt; see `Executor.observe`."""
        while (conductor := self._reach()) is not None:
            found = conductor.ask(lambda scheduler: scheduler.observe(attempts))
            try:
                statuses = found.result(self._answer_s)
            except CancelledError:
                self._inbox.close()  # it has just ended
                continue
            except TimeoutError:
                raise ExecutorError(
                    f"what conducts the cluster's tasks did not answer for {self._answer_s:.0f} s",
                    "Is this machine overloaded?",
                ) from None
            self._live.update(
                (status.attempt, status) for status in statuses if status.phase is not Phase.UNKNOWN
            )
            return statuses
        return [self._live.get(attempt, GangStatus(attempt, Phase.UNKNOWN)) for attempt in attempts]

    def changes(self, timeout_s: float) -> list[GangStatus]:
        """Wait for something to change; see `Executor.changes`."""
        self._check_nodes()
        if self._reach() is None and not self._inbox.news:
            time.sleep(timeout_s)  # nothing can come any more
        news = self._inbox.wait(timeout_s)
        for status in news:
            if status.phase is Phase.UNKNOWN:
                self._live.pop(status.attempt, None)
            elif status.attempt in self._live:
                self._live[status.attempt] = status
        return news

    def output(self) -> list[tuple[str, str]]:
        """Members that wrote something; see `Executor.output`."""
        if not self._inbox.watches:
            self._inbox.watches = True
            self._tell(lambda scheduler: scheduler.watch())
        return self._inbox.output()

    def queue_place(self) -> None:
        """The cluster has one run, which waits for no other."""

    def stop(self, attempt: str, grace_s: float, *, stacks: bool = False) -> None:
        """Stop an attempt; see `Executor.stop`."""
        self._tell(lambda scheduler: scheduler.stop(attempt, grace_s, stacks=stacks))

    def forget(self, attempts: Sequence[str]) -> None:
        """Drop exit records; see `Executor.forget`."""
        self._tell(lambda scheduler: scheduler.forget(attempts))
        self._inbox.forget(attempts)
        for attempt in attempts:
            self._live.pop(attempt, None)
            self._mirror.forget(attempt)

    def close(self) -> None:
        """Disconnect, once all that was said has reached the nodes; see `Executor.close`."""
        if self._conductor is not None and not self.is_lost:
            self._conductor.deliver(_PARTING_TIMEOUT_S)
            self._conductor.hang_up(self._inbox)
        self._conductor, self._inbox = None, Inbox(0, {}, self._mirror)
        self._live.clear()

    def nodes(self) -> list[LiveNode]:
        """Those that are not known to be dead."""
        rows = {**self._inbox.nodes}
        head = rows.get(self._head)
        if head is not None and self._silent_s > HEAD_SILENT_S:
            rows[head.key] = replace(head, unreachable_since=time.time() - self._silent_s)
        return sorted(rows.values(), key=lambda node: node.key)

    def waits(self) -> dict[str, str]:
        """Why attempts had no place for some seconds although none waits before them, or their files none."""
        return {**self._inbox.waits, **self._mirror.full}

    # -- the thread that conducts

    def _reach(self) -> Conductor | None:
        """The conductor; None if the cluster is lost.

        Raises:
            ExecutorError: there is none, or it has ended.
        """
        if self._conductor is None:
            raise ExecutorError("the executor is not open", "Call open() first.")
        if self._inbox.is_over and not self.is_lost:
            if not self._is_head_gone():
                lost = f"the connection to the cluster's head, {self._head}, was lost"
                ended = "what conducts the cluster's tasks has ended"
                raise ExecutorError(lost if self._head else ended, "Open it again.")
            self.is_lost = True
        return None if self.is_lost else self._conductor

    def _tell(self, work: Callable[[Scheduler], None]) -> None:
        if (conductor := self._reach()) is not None:
            conductor.tell(self._inbox, work)

    @property
    def _silent_s(self) -> float:
        """For how long the engine has said nothing."""
        return 0.0 if self._conductor is None else self._conductor.silent_s

    # -- when the head is gone

    def _is_head_gone(self) -> bool:
        return bool(self._is_gone is not None and self._head and self._is_gone(self._head))

    @property
    def _head(self) -> str:
        """Key of the node without which there is no cluster; empty if there is none."""
        head = self._cluster.head
        return "" if head is None else head.key

    def _check_nodes(self) -> None:
        now = time.monotonic()
        if self._is_gone is None or self.is_lost or now - self._asked_gone_at < _GONE_PAUSE_S:
            return
        self._asked_gone_at = now
        head = self._head
        if self._silent_s > HEAD_SILENT_S:
            if self._conductor is not None and self._is_head_gone():
                self.is_lost = True
                self._conductor.hang_up(self._inbox)
            return
        for node in list(self._inbox.nodes.values()):
            if node.key != head and node.unreachable_since is not None and self._is_gone(node.key):
                self._tell(partial(_declare_gone, node.key))


def _declare_gone(key: str, scheduler: Scheduler) -> None:
    scheduler.nodes.declare_gone(key)
