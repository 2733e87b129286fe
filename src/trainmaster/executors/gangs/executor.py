"""`NodesExecutor`: gangs over the nodes of a cluster, whatever its engine is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.executors.base import Capacity, GangStatus, Phase
from trainmaster.executors.gang_client import GangClient
from trainmaster.executors.gangs.connection import GatewayConnection, NodeView
from trainmaster.executors.gangs.copies import Mirror
from trainmaster.spec.errors import ExecutorError

if TYPE_CHECKING:
    from trainmaster.executors.gangs.recorded_cluster import RecordedCluster

__all__ = ["NodeView", "NodesExecutor"]

_GONE_PAUSE_S = 1.0
#: A caller with other things to do waits so long for an answer.
_BRIEF_S = 8.0
#: A head that has said nothing for so long is asked after.
SILENT_S = 8.0


class NodesExecutor(GangClient):
    """Starts gangs on the nodes of a cluster; see `Executor` for the methods.

    To a driver the cluster's gateway is what the supervisor is on one machine, and speaks its language. How
    many slots and GPUs there are is the cluster's to know: of the `Capacity` given to `open` nothing is used.

    A gang for which there is no room even on an empty cluster waits for nodes to come. When a node is lost,
    its members are ``lost`` and the others of their gangs are stopped, with the gang's grace.

    Where a cluster has a head, that is the only way to it. While it cannot be reached, calls raise
    `ExecutorError` (and may be repeated) or report nothing new. When ``is_gone`` confirms that it is gone,
    nothing is reported or started any more (`is_lost`): all that had not ended is lost with the cluster, as
    its owner knows. What runs on the other nodes goes on until those are ended.

    Args:
        cluster: started already.
        place: where the driver's copy of an attempt's directory goes; None for the same path. No copies are
            made where driver and node see the same directory.
        is_gone: a second witness: whether a node that cannot be reached, though the engine has not given it
            up, is gone. The engine's own word is enough without it.
        revives: a call whose connection is lost makes a new one, which may take a minute. Without, it raises
            `ExecutorError` at once: the caller opens another executor when it suits him.
    """

    def __init__(
        self,
        cluster: RecordedCluster,
        place: Callable[[str], Path] | None = None,
        is_gone: Callable[[str], bool] | None = None,
        *,
        revives: bool = True,
    ) -> None:
        self._revives = revives
        self._cluster = cluster
        self._mirror = Mirror(place or Path)
        self._gateway = GatewayConnection(cluster.connect, self._mirror)
        super().__init__(self._gateway)
        self._is_gone = is_gone
        self._asked_gone_at = 0.0

    def open(
        self, run: str, capacity: Capacity, env: Mapping[str, str], token: int = 0, leased: str = ""
    ) -> None:
        """Connect on behalf of a run; see `Executor.open`. ``RAY_*`` variables do not reach the members."""
        own = {name: value for name, value in env.items() if not name.startswith("RAY_")}
        super().open(run, capacity, own, token, leased)

    def hurry(self) -> None:
        """From now on the caller has other things to do: an answer is waited for 8 s, not 30."""
        self.answer_s = _BRIEF_S

    def observe(self, attempts: Sequence[str]) -> list[GangStatus]:
        """The present status of each attempt; see `Executor.observe`."""
        statuses = super().observe(attempts)
        # news of an end may have come right behind the answer
        newer = [self.news.get(status.attempt, status) for status in statuses]
        return [  # of one that was forgotten, such news is old
            self._with_addresses(new if new.phase is Phase.EXITED and old.phase is not Phase.UNKNOWN else old)
            for old, new in zip(statuses, newer, strict=True)
        ]

    def changes(self, timeout_s: float) -> list[GangStatus]:
        """Wait for something to change; see `Executor.changes`."""
        self._check_nodes()
        return [self._with_addresses(status) for status in super().changes(timeout_s)]

    def forget(self, attempts: Sequence[str]) -> None:
        """Drop exit records; see `Executor.forget`."""
        super().forget(attempts)
        for attempt in attempts:
            self.news.pop(attempt, None)  # `observe` looks there too
            self._mirror.forget(attempt)
            self._gateway.addresses.pop(attempt, None)

    def close(self) -> None:
        """Disconnect; see `Executor.close`."""
        self._gateway.part()
        super().close()
        self._gateway.addresses.clear()

    def nodes(self) -> list[NodeView]:
        """Those that are not known to be dead, as of the last `changes`."""
        rows = {**self._gateway.nodes}
        head = rows.get(self._head)
        silent_s = self._gateway.silent_s
        if head is not None and silent_s > SILENT_S:
            rows[head.key] = replace(head, unreachable_since=time.time() - silent_s)
        return sorted(rows.values(), key=lambda node: node.key)

    def waits(self) -> dict[str, str]:
        """Why attempts had no place for some seconds although none waits before them, or their files none."""
        return {**self._gateway.waits, **self._mirror.full}

    def _with_addresses(self, status: GangStatus) -> GangStatus:
        found = self._gateway.addresses.get(status.attempt)
        if not found or status.phase in (Phase.UNKNOWN, Phase.QUEUED):
            return status
        return replace(status, addresses=found)

    # -- when the head is gone

    def _on_lost(self) -> None:
        self._gateway.close()
        if self._is_head_gone():
            self.is_lost = True
        elif not self._revives:
            raise ExecutorError(
                f"the connection to the cluster's head, {self._head}, was lost", "Open it again."
            )
        else:
            try:
                self.reopen()
            except ExecutorError:
                self.losses.clear()  # it may be tried again for as long as the caller likes
                raise

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
        if self._gateway.silent_s > SILENT_S:
            if self._is_head_gone():
                self.is_lost = True
                self._gateway.close()
            return
        for node in list(self._gateway.nodes.values()):
            if node.key != head and node.unreachable_since is not None and self._is_gone(node.key):
                self.send({"do": "gone", "node": node.key})
