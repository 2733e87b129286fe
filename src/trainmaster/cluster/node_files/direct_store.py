"""`DirectStore`: nodes publish to the store, and restore from it, without a way through this machine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from trainmaster.artifacts import JSON, AlreadyPublished, CheckpointSeries, Manifest, read_manifest
from trainmaster.artifacts.owner import Owner
from trainmaster.artifacts.publishing import publish_model, publish_uploads
from trainmaster.cluster.node_files.data_wanted import store_of
from trainmaster.cluster.node_files.fetching import WorkerOf, look
from trainmaster.cluster.node_files.files import NodeFiles, each
from trainmaster.cluster.node_files.merging import Tree, looks, merge_trees, tree_of
from trainmaster.cluster.node_files.sending import Source, send
from trainmaster.cluster.node_files.store_reach import StoreReach
from trainmaster.cluster.node_files.trees import TreeEntry
from trainmaster.cluster.node_files.worker_client import StoreRefusedError
from trainmaster.control.task.job_context import RelayError
from trainmaster.objects.delegated_credentials import DelegatedCredentials, store_host
from trainmaster.objects.narrowing import Grant, TooWideKeysError
from trainmaster.spec.addresses import is_loopback
from trainmaster.spec.clocks import boot_s
from trainmaster.spec.errors import one_line


class DirectStore:
    """Threads share it.

    Args:
        files: of nodes.
        credentials: gives nodes keys.
        roots: URIs of all that they may read and write; for others they get keys for nothing else.
        tell: is told once why files go through this machine.
        clock: gives seconds.
    """

    def __init__(
        self,
        files: NodeFiles,
        credentials: DelegatedCredentials,
        roots: Sequence[str],
        tell: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = boot_s,
    ) -> None:
        self._files = files
        self._credentials = credentials
        self._grants = [Grant(root, writes=True) for root in roots]
        self._tell = tell
        self._reach = StoreReach(files, clock)
        self._guard = threading.Lock()
        self._has_told = False
        #: What lay in the checkpoint directories of an attempt when it was published or restored.
        self._known: dict[str, list[Tree]] = {}

    def publish_checkpoint(
        self,
        attempt: str,
        sources: Sequence[Source],
        series: CheckpointSeries,
        extra: Mapping[str, JSON],
        base: Sequence[TreeEntry] = (),
    ) -> int | None:
        """Publish directories of nodes as a task's next checkpoint; its number, None if there is nothing new.

        Args:
            attempt: its id.
            sources: rank 0 first.
            series: of the task.
            extra: kept in the manifest, with ``attempt``.
            base: what was restored there at the attempt's start; see `merge_trees`.

        Raises:
            RelayError: a node cannot use the store.
            UnstableDirectory: something changed meanwhile.
            TrainmasterError: a node cannot be reached, or nothing can be published.
        """
        credentials = self._delegated(series.uri, sources)
        trees: list[Tree] = []

        def make(uri: str) -> Manifest | None:
            last = self._known.get(attempt)
            with self._refusals(uri):
                sent = send(of, sources, uri, credentials, base=base, last=last)
            if sent is None:
                return None
            trees[:] = sent.trees
            return publish_uploads(uri, sent.uploads, kind="checkpoint", extra=extra, owner=series.owner)

        number = extra["attempt"]
        assert isinstance(number, int)
        with self._files.workers() as of:
            if attempt not in self._known and (newest := _newest(series)) is not None:
                # An earlier driver of this run may have published it, or restored it.
                seen = _look(of, sources)
                if is_of(seen, newest, base):
                    self._known[attempt] = seen
                    return None
            published = series.publish_made(make, attempt=number)
        if published is not None:
            self._known[attempt] = trees
        return published

    def publish_model(
        self, sources: Sequence[Source], uri: str, extra: Mapping[str, JSON], owner: Owner | None = None
    ) -> bool:
        """Publish directories of nodes as a task's model; False if there is nothing in them.

        Args:
            sources: rank 0 first.
            uri: of the model of this attempt.
            extra: kept in the manifest, with ``attempt``.
            owner: of the run.

        Raises:
            RelayError: a node cannot use the store.
            ForeignArtifactError: another run's is there.
            UnstableDirectory: something changed meanwhile.
            TrainmasterError: a node cannot be reached, or nothing can be published.
        """
        credentials = self._delegated(uri, sources)

        def make() -> Manifest | None:
            if (present := read_manifest(uri)) is not None:
                raise AlreadyPublished(uri, present)
            with self._refusals(uri), self._files.workers() as of:
                sent = send(of, sources, uri, credentials)
            if sent is None:
                return None
            return publish_uploads(uri, sent.uploads, kind="model", extra=extra, owner=owner)

        number = extra["attempt"]
        assert isinstance(number, int)
        return publish_model(uri, make, attempt=number, owner=owner) is not None

    def restore(self, attempt: str, sources: Sequence[Source], uri: str, *, is_own: bool) -> None:
        """Make directories of nodes what a checkpoint is, each whole or not at all.

        Args:
            attempt: its id.
            sources: the directories.
            uri: of the checkpoint.
            is_own: see `Site.restore_checkpoint`.

        Raises:
            RelayError: a node cannot do so.
            ProviderError: a node cannot be reached.
        """
        credentials = self._delegated(uri, sources)
        places = {source.access.id: source.directory for source in sources}
        with self._files.workers() as of:
            try:
                each(
                    [source.access for source in sources],
                    lambda node: of(node).restore(uri, places[node.id], credentials),
                )
            except StoreRefusedError as error:  # it may be the checkpoint's fault
                raise RelayError(one_line(error)) from error
            self._known.pop(attempt, None)
            if is_own:
                self._known[attempt] = _look(of, sources)

    def forget(self, attempt: str) -> None:
        """It is over."""
        self._known.pop(attempt, None)

    # -- whether it can be done

    def _delegated(self, uri: str, sources: Sequence[Source]) -> Mapping[str, str]:
        """What nodes need to use the store, once they have shown that they can."""
        is_ours = any(uri.startswith(f"{grant.uri}/") for grant in self._grants)
        try:
            credentials = self._credentials.environment(self._grants if is_ours else [Grant(uri)])
        except TooWideKeysError as error:
            raise self._relay(one_line(error)) from error
        if credentials is None:
            raise RelayError(f"{uri} can be used on this machine only")
        host, nodes = store_host(uri), {source.access.id: source.access for source in sources}
        if is_loopback(host) and not all(is_loopback(node.target.address) for node in nodes.values()):
            raise self._relay(f"the store's address, {host}, leads to this machine from here only")
        try:
            each(list(nodes.values()), lambda node: self._reach.require(node, uri, credentials))
        except StoreRefusedError as error:
            raise self._relay(one_line(error)) from error
        return credentials

    @contextlib.contextmanager
    def _refusals(self, uri: str) -> Iterator[None]:
        try:
            yield
        except StoreRefusedError as error:
            self._reach.refuse(store_of(uri), error)
            raise self._relay(one_line(error)) from error

    def _relay(self, reason: str) -> RelayError:
        with self._guard:
            is_new, self._has_told = not self._has_told, True
        if is_new:
            self._tell(f"note: files go to the store through this machine: {reason}")
        return RelayError(reason)


def _look(of: WorkerOf, sources: Sequence[Source]) -> list[Tree]:
    return look(of, [(source.access, source.directory) for source in sources])


def _newest(series: CheckpointSeries) -> Manifest | None:
    number = series.newest()
    return None if number is None else series.manifest(number)


def is_of(trees: Sequence[Tree], manifest: Manifest, base: Sequence[TreeEntry]) -> bool:
    """Whether directories that began as ``base`` are together what a manifest says, by sizes and times."""
    return looks(entry for _, entry in merge_trees(trees, base)) == looks(tree_of(manifest.files))
