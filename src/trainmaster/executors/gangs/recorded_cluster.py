"""What clusters of all engines have in common: a record of their nodes on the driver, and how they end."""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from trainmaster.executors.gangs.engine import ClusterNode, Engine, Opener, Runner
from trainmaster.executors.gangs.silence import SETTLE_S
from trainmaster.spec.errors import ExecutorError
from trainmaster.spec.frameworks import ENGINES
from trainmaster.spec.plain_json import parsed_json, typed
from trainmaster.spec.private_files import write_private
from trainmaster.spec.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from trainmaster.executors.gangs.conductor import Conductor

_RECORD = "cluster.json"
_PARALLEL = 32

T = TypeVar("T")


class RecordedCluster(ABC):
    """Nodes that are recorded before anything is started there: a driver that was killed finds them again.

    Args:
        directory: on the driver; holds the record.
        nodes: as recorded, or to be started.
        run: runs a command on a node.
        stream: starts one there, and gives the stream to it.

    Attributes:
        directory: see above.
        nodes: the first one was there first.
        used: what must not be used again, by node or address: it is recorded, too.
        has_head: it stands and falls with its first node.
        packages: what nodes are sent for it beside Trainmaster, as pip takes it.
        imports: what a node must then be able to import, as `RuntimePackage` is tried with it.
        unused: folders of `packages` that nodes have no use for.
        answers: a module of nodes with the answers to what only this engine asks `gangs.node_program` for.
        withheld_prefixes: variables of the driver whose names begin so reach no member.
        settle_s: a node of an earlier driver that cannot be reached may have gangs that only it knows: it is
            waited for until the machine is given up, which takes a minute.
    """

    def __init__(self, directory: Path, nodes: Sequence[ClusterNode], run: Runner, stream: Opener) -> None:
        self.directory = directory
        self.nodes = list(nodes)
        self.used: dict[str, list[int]] = {}
        self._run = run
        self._open = stream
        self._conductor: Conductor | None = None

    has_head: ClassVar[bool] = False
    settle_s: ClassVar[float] = SETTLE_S
    packages: ClassVar[tuple[str, ...]] = ()
    imports: ClassVar[tuple[str, ...]] = ()
    unused: ClassVar[tuple[str, ...]] = ()
    answers: ClassVar[str] = ""
    withheld_prefixes: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def start(cls, directory: Path, nodes: Sequence[ClusterNode], run: Runner, stream: Opener) -> Self:
        """Begin on these nodes, at least one; what runs there already is left alone.

        Raises:
            ExecutorError: one could not be started; what was started is recorded, see `stop`.
        """

    @classmethod
    def find(cls, directory: Path, run: Runner, stream: Opener) -> Self | None:
        """The cluster that was started from there, None when there is none, or its head runs no more."""
        nodes, used = recorded(directory)
        cluster = cls(directory, nodes, run, stream)
        cluster.used = used
        return cluster if nodes and cluster.is_up() else None

    def is_up(self) -> bool:
        """Whether what it stands and falls with still runs."""
        return True

    @abstractmethod
    def add(self, nodes: Sequence[ClusterNode]) -> None:
        """Further nodes join; gangs that wait for room see them within a second.

        Raises:
            ExecutorError: as `start`.
        """

    @abstractmethod
    def engine(self) -> Engine:
        """What says which nodes are alive, and how each is reached, on behalf of one driver of a run.

        Raises:
            ExecutorError: the cluster cannot be reached.
        """

    def conductor(self, run: str, lease: int) -> Conductor:
        """What conducts gangs, which begins in this process for the first driver of a run.

        Args:
            run: of the driver.
            lease: token of its lease, 0 if it has none.

        Raises:
            ExecutorError: the cluster cannot be reached.
        """
        from trainmaster.executors.gangs.conductor import Conductor

        conductor = self._conductor
        if conductor is not None and (conductor.run != run or conductor.lease < lease):
            conductor.end()
            conductor = None
        if conductor is None or conductor.is_over:
            conductor = self._conductor = Conductor(self.engine(), (run, lease), self.settle_s)
        return conductor

    @property
    def head(self) -> ClusterNode | None:
        """The node that it stands and falls with; None if there is none."""
        return None

    def remove(self, key: str, *, is_gone: bool = False) -> None:
        """End all of ours on a node, members included; one that cannot be reached is only forgotten.

        Args:
            key: of any node but the head.
            is_gone: the machine is gone, so its silence need not be waited for.
        """
        for node in [node for node in self.nodes if node.key == key and node is not self.head]:
            with contextlib.suppress(ExecutorError):
                if not is_gone:
                    self._stop_node(node)
            self.nodes.remove(node)
        self._record()

    def stop(self, gone: Collection[str] = ()) -> None:
        """End everything of ours on all nodes, members included; may be repeated.

        Args:
            gone: keys of nodes, perhaps the head's, that are gone; they are not asked.

        Raises:
            ExecutorError: a node could not be reached; the record stays.
        """
        self.end([node for node in self.nodes if node.key not in gone])
        (self.directory / _RECORD).unlink(missing_ok=True)

    def end(self, nodes: Sequence[ClusterNode]) -> None:
        """End everything of ours on nodes that may be in no record, members included; may be repeated.

        Raises:
            ExecutorError: one could not be reached.
        """
        failed = []
        for node, error in zip(nodes, self._on_each(nodes, self._try_stop), strict=True):
            if error is not None:
                failed.append(f"{node.key}: {error}")
        if failed:
            raise ExecutorError(
                f"what runs tasks could not be ended on {counted(len(failed), 'node')}: {'; '.join(failed)}",
                "Repeat it when they can be reached, or terminate them.",
            )

    def _enter(self, nodes: Sequence[ClusterNode]) -> None:
        """They are nodes of it from now on, the last ones."""
        known = {node.key for node in nodes}
        self.nodes = [node for node in self.nodes if node.key not in known] + list(nodes)
        self._record()

    def _try_stop(self, node: ClusterNode) -> ExecutorError | None:
        try:
            self._stop_node(node)
        except ExecutorError as error:
            return error
        return None

    def _stop_node(self, node: ClusterNode) -> None:
        self._ask(node, {"do": "stop", "home": node.home, "members": True})

    def _on_each(self, nodes: Sequence[ClusterNode], work: Callable[[ClusterNode], T]) -> list[T]:
        with ThreadPoolExecutor(_PARALLEL) as pool:
            return list(pool.map(work, nodes))

    def _ask(self, node: ClusterNode, request: Mapping[str, Any]) -> dict[str, Any]:
        command = [node.python, "-m", "trainmaster.executors.gangs.node_program"]
        asked = {"directory": node.directory, "answers": self.answers, **request}
        output = self._run(node, command, json.dumps(asked).encode())
        try:
            answer = dict(json.loads(output.splitlines()[-1]))
        except (ValueError, TypeError, IndexError, RecursionError) as error:
            raise ExecutorError(
                f"node {node.key} answered {output[:200]!r}", "Is the same Trainmaster installed there?"
            ) from error
        return answer

    def _record(self) -> None:
        nodes = [asdict(node) for node in self.nodes]
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json.dumps({"nodes": nodes, "used": self.used}, indent=1)
        write_private(self.directory / _RECORD, text.encode())


def cluster_kind(engine: str) -> type[RecordedCluster]:
    """The class of an engine's clusters.

    Raises:
        UsageError: there is no such engine here.
    """
    found: type[RecordedCluster] = ENGINES.load(engine)
    return found


def recorded(directory: Path) -> tuple[list[ClusterNode], dict[str, list[int]]]:
    """Nodes of the cluster that was started last from there, the first one first, and what it has used.

    Without any if there was none, or the file is damaged: then it is started anew.
    """
    try:
        record = typed(dict[str, Any], parsed_json((directory / _RECORD).read_bytes(), finite=True))
        nodes = typed(list[ClusterNode], record["nodes"])
        return nodes, typed(dict[str, list[int]], record.get("used", {}))
    except (OSError, ValueError, LookupError):
        return [], {}
