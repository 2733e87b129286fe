"""`NodeCheckpoints`: checkpoints are published from the nodes of an attempt, and restored to them.

How often, and for how long, work on nodes is tried again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from trainmaster.cluster.attempt_nodes import distinct, id_of
from trainmaster.cluster.node_files.fetching import fetch
from trainmaster.cluster.node_files.merging import tree_of
from trainmaster.cluster.node_files.sending import Source
from trainmaster.control.attempt.unpublished_checkpoint import noted_restored
from trainmaster.control.task.gangs import dispensable_of
from trainmaster.control.task.job_context import NodeGoneError
from trainmaster.spec.errors import ProviderError, one_line
from trainmaster.transport.base import CommandError, ConnectionLostError

if TYPE_CHECKING:
    from trainmaster.cluster.attempt_nodes import AttemptNodes
    from trainmaster.cluster.node_files.direct_store import DirectStore
    from trainmaster.cluster.node_files.files import NodeFiles
    from trainmaster.cluster.node_files.merging import Tree
    from trainmaster.cluster.node_files.paths import NodePaths
    from trainmaster.control.task.job_context import TaskContext

T = TypeVar("T")

_PAUSE_S: Final = 1.0
#: So often a long transfer may be cut off.
MOST_CUTS: Final = 10
#: Before what failed on a node is tried again.
_PAUSES_S: Final = (1.0, 4.0, 16.0)


def patiently(work: Callable[[], T], patience_s: float, *, is_returning: bool = True) -> T:
    """Try again what nodes do not answer to.

    What went on for longer than the patience before it was cut off gets all of it once more, a few times.

    Args:
        work: safe to repeat.
        patience_s: so long.
        is_returning: a node that is missing may come back: what needs it is tried again, too.

    Raises:
        ProviderError: a node was silent for too long.
        NodeGoneError: a node is missing.
    """
    failing_since, cuts = math.inf, 0
    while True:
        begun = time.monotonic()
        try:
            return work()
        except (ProviderError, NodeGoneError) as error:  # unreachable, too slow, or perhaps not there yet
            is_gone = isinstance(error, NodeGoneError) and not is_returning
            now = time.monotonic()
            was_long = isinstance(error, ConnectionLostError) and now - begun > patience_s
            if was_long and cuts < MOST_CUTS:
                failing_since, cuts = now, cuts + 1
            else:
                failing_since = min(failing_since, begun)
            if is_gone or now - failing_since > patience_s:
                raise
            time.sleep(_PAUSE_S)


def persistently(work: Callable[[], None], patience_s: float, tell: Callable[[str], None]) -> None:
    """The same, and what fails on a node, a few times: a store may be out of its reach for a moment.

    Args:
        work: safe to repeat.
        patience_s: see `patiently`.
        tell: is called each time.

    Raises:
        CommandError: it failed each time.
        ProviderError: see `patiently`.
        NodeGoneError: see `patiently`.
    """
    for pause_s in (*_PAUSES_S, None):
        try:
            patiently(work, patience_s)
            break
        except CommandError as error:
            if pause_s is None:
                raise
            tell(f"note: {one_line(error)}; it is tried again in {pause_s:.0f} s")
            time.sleep(pause_s)
        except (ProviderError, NodeGoneError) as error:  # the caller begins again, without a word
            tell(f"note: {one_line(error)}")
            raise


class NodeCheckpoints:
    """Threads share it.

    Args:
        nodes: of attempts.
        files: of nodes.
        paths: here and there.
        direct: the store, as nodes use it.
        patience_s: how long a node that does not answer is asked again for the last one.
    """

    def __init__(
        self,
        nodes: AttemptNodes,
        files: NodeFiles,
        paths: NodePaths,
        direct: DirectStore,
        patience_s: float,
    ) -> None:
        self._nodes = nodes
        self._files = files
        self._paths = paths
        self._direct = direct
        self._patience_s = patience_s
        self._bare: set[str] = set()
        self._guard = threading.Lock()

    def publish(self, context: TaskContext, *, is_patient: bool = False) -> int | None:
        """Have the nodes publish their checkpoint directories; see `Site.publish_checkpoint`."""
        series = context.checkpoints
        self._direct.require_lendable(series.uri)
        if self._was_bare(context):
            return None
        base = _base(context)

        def work() -> int | None:
            sources = self._left(context, is_patient=is_patient)
            extra = {"attempt": context.attempt}
            return self._direct.publish_checkpoint(id_of(context), sources, series, extra, base)

        with self._together(context, is_patient=is_patient):
            return patiently(work, self._patience_s) if is_patient else work()

    def restore(self, context: TaskContext, uri: str, *, is_own: bool = True) -> None:
        """Have the nodes download a checkpoint; see `Site.restore_checkpoint`."""
        self._direct.require_lendable(uri)

        def work() -> None:
            self._direct.restore(id_of(context), self._sources(context), uri, is_own=is_own)

        patiently(work, self._patience_s)

    def fetch(self, context: TaskContext, *, is_patient: bool = False) -> bool:
        """Fetch and unite the checkpoint directories; see `Site.fetch_checkpoint`."""
        here = context.place.checkpoint
        if self._was_bare(context) and not _has_entries(here):
            return True
        base = _base(context)
        sources = [(each.access, each.directory) for each in self._left(context, is_patient=is_patient)]

        def work() -> bool:
            return fetch(self._files, sources, here, base=base)

        with self._together(context, is_patient=is_patient):
            return patiently(work, self._patience_s) if is_patient else work()

    def note_bare(self, context: TaskContext) -> None:
        """Nothing at all was on the nodes of an attempt that has ended: they need not be asked once more."""
        with self._guard:
            self._bare.add(id_of(context))

    def forget(self, attempt: str) -> None:
        """It is over."""
        with self._guard:
            self._bare.discard(attempt)
        self._direct.forget(attempt)

    def _sources(
        self, context: TaskContext, *, is_patient: bool = True, dispensable: frozenset[str] = frozenset()
    ) -> list[Source]:
        there = self._paths.there(context.place.checkpoint)
        members = self._nodes.members(context, is_patient=is_patient, dispensable=dispensable)
        return [Source(node, there) for node in distinct(members)]

    def _left(self, context: TaskContext, *, is_patient: bool) -> list[Source]:
        """Where what the members wrote is; those that the others do without may have no node."""
        dispensable = dispensable_of(context.experiment, context.launcher)
        return self._sources(context, is_patient=is_patient, dispensable=dispensable)

    def _together(self, context: TaskContext, *, is_patient: bool) -> AbstractContextManager[None]:
        dispensable = dispensable_of(context.experiment, context.launcher)
        return self._nodes.together(context, is_patient=is_patient, dispensable=dispensable)

    def _was_bare(self, context: TaskContext) -> bool:
        """Whether nothing was there when its output was taken; told once."""
        attempt = id_of(context)
        with self._guard:
            is_bare = attempt in self._bare
            self._bare.discard(attempt)
        return is_bare


def _base(context: TaskContext) -> Tree:
    """What the attempt has begun with, on all of its nodes."""
    manifest = noted_restored(context.place)
    return [] if manifest is None else tree_of(manifest.files)


def _has_entries(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())
