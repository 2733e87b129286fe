"""`NodeData`: nodes get data from where they lie, without a way through this machine."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from trainmaster.cluster.node_files.data_wanted import (
    GB,
    Wanted,
    gigabytes,
    hosts,
    is_contained,
    require_lendable,
    sources,
    store_of,
    with_keys,
)
from trainmaster.cluster.node_files.files import NodeFiles, NodePaths, each, heard, look_command
from trainmaster.cluster.node_files.order_output import NoWayError
from trainmaster.cluster.node_files.removal import KeyRenewal, NodeMounts
from trainmaster.cluster.node_files.store_reach import (
    StoreAwayError,
    StoreOutages,
    StoreReach,
    trouble_from_here,
)
from trainmaster.cluster.node_files.worker_client import NO_ROOM_HINT, OrderError, StoreRefusedError
from trainmaster.control.attempt.data_sources import pinned_volume, volume_url
from trainmaster.control.decide.store_verdicts import NoticedAt, StoreVerdict, verdict
from trainmaster.control.task.job_context import RelayError, TaskContext
from trainmaster.objects.delegated_credentials import DelegatedCredentials
from trainmaster.objects.errors import ObjectStoreError, StoreTrouble, trouble_of, url_of
from trainmaster.objects.narrowing import TooWideKeysError
from trainmaster.spec.addresses import is_loopback
from trainmaster.spec.errors import ProviderError, PublishError, TrainmasterError, UsageError, one_line
from trainmaster.transport.base import CommandError
from trainmaster.volumes.errors import InUseError
from trainmaster.volumes.reading.place import LIMIT_VARIABLE

if TYPE_CHECKING:
    from trainmaster.cluster.node_access import NodeAccess
    from trainmaster.cluster.node_files.hdfs import NodeHdfs

_ASK_TIMEOUT_S: Final = 60.0
#: At the end of a run, how long mounts that are being made are waited for.
_UNDER_WAY_S: Final = 15.0
#: So long an HDFS that does not answer at the end of a task is asked for what was written into it, so often.
_HDFS_PATIENCE_S: Final = 60.0
_HDFS_AGAIN_S: Final = 2.0
_SEEN_S: Final = 2.0
#: What takes longer is reported, and then again every so often.
_TELL_S: Final = 20.0
_TELL_AGAIN_S: Final = 60.0
_MB: Final = 1e6
_WEB: Final = ("http", "https")
#: Larger volumes are not sent: the store is more likely back before they are there.
MOST_RELAYED_BYTES: Final = 50_000_000_000


class NodeData:
    """One run's. Threads share it.

    Args:
        files: of nodes.
        paths: here and there.
        credentials: gives nodes keys.
        tell: is told why data go through this machine, and how far nodes are that get many.
        clock: gives seconds.
        is_over: see `NodeMounts`.
        cluster: given an experiment's name, the nodes of its cluster.

    Attributes:
        is_withdrawn: nothing is brought any more.
    """

    def __init__(
        self,
        files: NodeFiles,
        paths: NodePaths,
        credentials: DelegatedCredentials,
        tell: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_over: Callable[[str], bool] = lambda _: False,
        cluster: Callable[[str], Sequence[NodeAccess]] = lambda _: (),
    ) -> None:
        self._files = files
        self._paths = paths
        self._credentials = credentials
        self._tell = tell
        self._clock = clock
        self._mounts = NodeMounts(files, paths, is_over)
        self.is_withdrawn = False
        self._reach = StoreReach(files, clock)
        self._outages = StoreOutages()
        self._guard = threading.Lock()
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        #: By node and place: which time they were brought there; they may be lost, and brought again.
        self._brought: dict[tuple[str, str], int] = {}
        self._times = itertools.count(1)
        self._of_attempts: dict[str, dict[tuple[str, str], int]] = {}
        self._seen_at_s: dict[tuple[str, str], float] = {}
        self._volumes: dict[str, Wanted] = {}
        self._renewal = KeyRenewal(credentials, self._renew)
        self._cluster = cluster
        self._hdfs: NodeHdfs | None = None
        self._has_told: set[str] = set()

    @property
    def cache(self) -> str:
        """The cache of volumes on every node, for all runs of this home."""
        return f"{self._paths.root}/cache"

    def environment(self) -> dict[str, str]:
        """What members find, so that those that read volumes themselves use the node's cache, too."""
        limit = os.environ.get(LIMIT_VARIABLE)
        return {"TRAINMASTER_CACHE": self.cache, **({LIMIT_VARIABLE: limit} if limit else {})}

    def provide(
        self,
        attempt: str,
        nodes: Sequence[NodeAccess],
        context: TaskContext,
        name: str,
        models: Sequence[tuple[int, str]],
    ) -> None:
        """Have nodes get data; see `Site.provide`.

        Raises:
            RelayError: not all of them can.
            UsageError: there is no such volume.
            StoreAwayError: their store does not answer just now.
            TrainmasterError: a node cannot be reached, or has failed.
        """
        if context.experiment.data[name].stage is not None:
            each(nodes, self._mounts.clear)
            self._with_hdfs().provide(attempt, nodes, context, name)
            return
        wanted = self._wanted(context, name, models)
        addresses = [node.target.address for node in nodes]
        for host in hosts(wanted):
            if is_loopback(host) and not all(map(is_loopback, addresses)):
                raise self._relay(wanted, f"the address {host} leads to this machine from here only")
        try:
            with self._awaited(name, sources(wanted)):
                wanted = with_keys(self._credentials, wanted)
        except TooWideKeysError as error:
            raise self._not_direct(wanted, f"they get no keys for it: {one_line(error)}") from error
        refusals: list[StoreRefusedError] = []

        def one(node: NodeAccess) -> None:
            try:
                self._provide_on(node, wanted, attempt)
            except StoreRefusedError as error:
                refusals.append(error)

        try:
            each(nodes, one)
            self._require_answer(wanted, refusals, is_foreign=context.is_foreign)
        except StoreAwayError:  # then no node's refusal tells anything about the node
            self._reach.forget_refusals([*sources(wanted), wanted.there])
            raise
        if refusals:
            raise self._not_direct(wanted, one_line(refusals[0]), "they cannot read the store: ")

    def _with_hdfs(self) -> NodeHdfs:
        """Made for the first data that are staged: few runs stage any, and it imports much."""
        from trainmaster.cluster.node_files.hdfs import NodeHdfs

        with self._guard:
            if self._hdfs is None:
                self._hdfs = NodeHdfs(
                    self._said, self._files, self._paths, self._credentials, self._cluster, self._tell
                )
            return self._hdfs

    def has(self, node: NodeAccess, there: str) -> bool:
        """Whether a node got by itself what belongs there."""
        with self._guard:
            return (node.id, there) in self._brought

    def lost(self, attempt: str, nodes: Sequence[NodeAccess], context: TaskContext) -> tuple[bool, str]:
        """See `Site.lost_data`."""
        with self._guard:
            seen = self._of_attempts.get(attempt, {})
            again = {key for key, number in seen.items() if self._brought.get(key) != number}
        troubles = []
        if self._hdfs is not None and (words := self._hdfs.lost(attempt, nodes)):
            return True, words
        for name, source in context.experiment.data.items():
            if source.volume is None:
                continue
            there = self._paths.there(context.data_path(name))
            for node in nodes:
                is_gone, words = self._trouble(node, there)
                if is_gone or words:  # the next attempt is not to trust what was seen before
                    self._seen_at_s.pop((node.id, there), None)
                if is_gone or (node.id, there) in again:
                    said = f": {words}" if words else ""
                    return True, f"data.{name} was no longer there on {node.target.shown}{said}"
                if words:
                    troubles.append(f"data.{name} on {node.target.shown}: {words}")
        return False, troubles[0] if troubles else ""

    def fetch_hdfs(self, node: NodeAccess, context: TaskContext) -> None:
        """Have what a task has written into the run's HDFS in the output directory of its first member.

        An HDFS that is lost is told, and holds up no model: most tasks write nothing there.

        Raises:
            UsageError: there is no room.
            ProviderError: the node cannot be reached.
        """
        from trainmaster.control.attempt.staged_data import output_of

        web, path, here = output_of(context)
        there, name = self._paths.there(here), context.staged[0]
        order = {"do": "output", "web": web, "path": path, "directory": there}
        until_s = self._clock() + _HDFS_PATIENCE_S
        while True:
            try:
                self._said(node, Wanted(name, there, order))
            except (CommandError, StoreAwayError) as error:
                if self._clock() < until_s:  # a NameNode that has died is started again
                    time.sleep(_HDFS_AGAIN_S)
                    continue
                where = f"hdfs://{web}{path}"
                self._tell(f"warning: whatever was written to {where} is lost: {one_line(error)}")
            return

    def forget(self, attempt: str) -> None:
        """It is over."""
        with self._guard:
            self._of_attempts.pop(attempt, None)
        if self._hdfs is not None:
            self._hdfs.forget(attempt)

    def clear(self, node: NodeAccess) -> None:
        """See `NodeMounts.clear`."""
        self._mounts.clear(node)

    def withdraw(self, nodes: Sequence[NodeAccess]) -> None:
        """End the run's mounts on nodes that go on without it; those that do not answer keep them."""
        self.is_withdrawn = True
        self._renewal.close()
        with self._guard:
            locks = list(self._locks.values())
        until = time.monotonic() + _UNDER_WAY_S
        for lock in locks:  # what is just being mounted would come after us
            if lock.acquire(timeout=max(until - time.monotonic(), 0.0)):
                lock.release()
        self._mounts.end(nodes)
        with self._guard:
            self._brought.clear()

    # -- what is wanted

    def _wanted(self, context: TaskContext, name: str, models: Sequence[tuple[int, str]]) -> Wanted:
        source, here = context.experiment.data[name], context.data_path(name)
        there = self._paths.there(here)
        order: dict[str, Any] = {"directory": there, "cache": self.cache}
        if source.volume is not None:
            with self._guard:
                known = self._volumes.get(there)
            if known is None:  # a version never changes: the store is not asked for every task
                address = volume_url(source.volume, context.home.store_url)
                with self._awaited(name, [store_of(address)]):
                    if error := _silence(address):  # it would be waited for long
                        raise error
                    known = self._volume(context, name, source.volume, order)
            with self._guard:
                self._volumes[there] = known
            return replace(known, name=name)
        if source.url is not None:
            scheme = urlsplit(source.url).scheme
            url = source.url_with(context.variables)
            order |= {"do": "url", "url": url, "label": source.url, "sha256": source.sha256}
            order |= {"size_limit_bytes": source.size_limit_bytes}
            if scheme in _WEB:
                return Wanted(name, there, order)
            uris: tuple[str, ...] = (url,)
        else:
            is_single = source.best is not None or len(models) == 1
            order |= {"do": "models", "models": list(models), "is_single": is_single}
            root, _ = context.home.run_uris(context.run)
            found = tuple(uri for _, uri in models)
            uris = (root,) if all(uri.startswith(f"{root}/") for uri in found) else found
        require_lendable(uris)
        return Wanted(name, there, order, uris)

    @contextlib.contextmanager
    def _awaited(self, name: str, stores: Sequence[str]) -> Iterator[None]:
        """What the store does not answer to this machine may be asked again later."""
        try:
            yield
        except PublishError as error:
            if verdict(NoticedAt.NODE, trouble_of(error)) is not StoreVerdict.WAIT:
                raise
            raise self._outages.away(name, stores, one_line(error), url_of(error)) from error

    def _require_answer(
        self, wanted: Wanted, refusals: Sequence[StoreRefusedError], *, is_foreign: bool
    ) -> None:
        """Refuse to bring through this machine what does not answer it either."""
        if any(refusal.trouble is StoreTrouble.UNREACHABLE for refusal in refusals):
            # A URL of others is not asked for here: this machine may reach what they may not.
            for uri in wanted.uris or (() if is_foreign else (wanted.order["url"],)):
                if error := _silence(uri):
                    raise self._outages.away(wanted.name, sources(wanted), one_line(error), uri)
        self._outages.answers(sources(wanted))

    def _volume(self, context: TaskContext, name: str, volume: str, order: dict[str, Any]) -> Wanted:
        from trainmaster.objects.object_store import ObjectStore
        from trainmaster.volumes.packed.addresses import volume_address
        from trainmaster.volumes.packed.head import read_head
        from trainmaster.volumes.packed.materialising import materialised
        from trainmaster.volumes.packed.opening import check_source

        address, home = volume_url(volume, context.home.store_url), context.home
        require_lendable([address])  # before anything is asked of it
        uri = pinned_volume(volume, address, context.facts)
        if uri is None:
            raise RelayError(f"{volume} comes with a library of this machine")
        found = volume_address(uri)
        store = ObjectStore(found.url)
        head = read_head(store, found.version)
        check_source(store, head)
        uris = (found.url, head.source_url) if head.kind == "indexed" else (found.url,)
        return Wanted(
            name,
            order["directory"],
            {
                **order,
                "do": "volume",
                "uri": uri,
                "table": head.table_id,
                "is_contained": is_contained(context, volume),
            },
            uris,
            tables=lambda: materialised(store, head, home.cache),
            size_bytes=head.total_bytes,
        )

    # -- one node

    def _provide_on(self, node: NodeAccess, wanted: Wanted, attempt: str) -> None:
        key = (node.id, wanted.there)
        with self._lock_of(key):
            if not self._is_well(node, wanted.there):
                try:
                    is_new = self._bring(node, wanted)  # meanwhile, to others it is there: they wait here
                except StoreRefusedError:
                    with self._guard:
                        self._brought.pop(key, None)
                    raise
                with self._guard:
                    if is_new or key not in self._brought:
                        self._brought[key] = next(self._times)
            self._seen_at_s.setdefault(key, self._clock())
            with self._guard:
                self._of_attempts.setdefault(attempt, {})[key] = self._brought[key]

    def _is_well(self, node: NodeAccess, there: str) -> bool:
        """Whether data are there, as far as was seen a moment ago: short tasks begin many at a time."""
        if not self.has(node, there):
            return False
        key, now_s = (node.id, there), self._clock()
        if now_s - self._seen_at_s.get(key, -_SEEN_S) < _SEEN_S:
            return True
        self._seen_at_s.pop(key, None)
        return self._trouble(node, there) == (False, "")

    def _bring(self, node: NodeAccess, wanted: Wanted) -> bool:
        """Whether it was not there all the time."""
        if self.is_withdrawn:
            raise CommandError(f"{node.target.shown}: data.{wanted.name}: the run is over")
        try:
            for uri in wanted.uris:
                self._reach.require(node, uri, wanted.credentials, is_urgent=True)
        except StoreRefusedError:
            if self._trouble(node, wanted.there, (True, "")) == (False, ""):
                return False  # an earlier driver of this run has brought it
            raise
        if wanted.tables is not None:
            self._mounts.clear(node)
            with self._awaited(wanted.name, sources(wanted)):
                columns = wanted.tables()
            self._send_columns(node, columns)
        return self._ask(node, wanted)

    def _send_columns(self, node: NodeAccess, columns: Path) -> None:
        from trainmaster.cluster.node_files.data_orders import packed_columns
        from trainmaster.volumes.packed.materialising import META_NAME

        meta = shlex.quote(f"{self.cache}/volumes/tables/{columns.name}/{META_NAME}")
        if self._files.shell(node, f"test -f {meta}", _ASK_TIMEOUT_S).code != 0:
            packed = packed_columns(columns, self._paths.home.cache)
            self._files.push(node, packed, f"{self.cache}/volumes/sent/{columns.name}")

    def _ask(self, node: NodeAccess, wanted: Wanted) -> bool:
        """Have the program do it; whether there was anything to do."""
        said = self._said(node, wanted)
        self._renewal.brought(node, wanted)
        return said != "kept"

    def _said(self, node: NodeAccess, wanted: Wanted) -> str:
        """Have the program do it; what it says at last."""
        self._reach.require_not_refused(node, wanted.there)
        limit = os.environ.get(LIMIT_VARIABLE)
        environment = {**wanted.credentials, "TRAINMASTER_CACHE": self.cache}
        if limit:
            environment[LIMIT_VARIABLE] = limit
        news = _DataProgress(
            lambda words: self._tell(f"note: {node.id}: data.{wanted.name}: {words}"),
            lambda words: self._tell_once(f"note: data.{wanted.name}: {words}"),
            self._clock,
        )
        try:
            with self._files.worker(node) as worker:
                return worker.provide(wanted.order, environment, news.hear)
        except OrderError as error:
            raise self._explained(node, wanted, error) from error

    def _explained(self, node: NodeAccess, wanted: Wanted, error: OrderError) -> Exception:
        """What it means that a node could not do it."""
        said = f"{node.target.shown}: {error.words}"
        if error.kind == NoWayError.__name__:
            refusal = StoreRefusedError(node, error.words, error.trouble)
            self._reach.refuse(wanted.there, refusal)
            return refusal
        if error.kind == InUseError.__name__:
            return InUseError(said)
        if error.kind == UsageError.__name__ and wanted.order["do"] == "hdfs":
            return UsageError(said)
        found = verdict(NoticedAt.NODE, error.trouble)
        if found is StoreVerdict.USER_ERROR:
            return UsageError(said, "" if said.endswith(".") else NO_ROOM_HINT)
        if found is StoreVerdict.WAIT:
            return self._outages.away(wanted.name, sources(wanted), said, error.url)
        return CommandError(f"{node.target.shown}: data.{wanted.name}: {error.words}")

    def _renew(self, node: NodeAccess, wanted: Wanted) -> None:
        """Bring the present keys to a mount that is there: its program finds it, and takes them."""
        with self._lock_of((node.id, wanted.there)):
            if not self.is_withdrawn:
                self._ask(node, wanted)

    def _lock_of(self, key: tuple[str, str]) -> threading.Lock:
        """Of a node and a place there."""
        with self._guard:
            return self._locks.setdefault(key, threading.Lock())

    def _trouble(
        self, node: NodeAccess, there: str, silence: tuple[bool, str] = (False, "")
    ) -> tuple[bool, str]:
        """Whether nothing is there any more, and what went wrong last with a mount, in its own words."""
        try:
            return heard(self._files.shell(node, look_command(there, self.cache), _ASK_TIMEOUT_S).out)
        except TrainmasterError:
            return silence

    def _not_direct(self, wanted: Wanted, reason: str, because: str = "") -> TrainmasterError:
        if wanted.size_bytes > MOST_RELAYED_BYTES:
            much = f"data.{wanted.name}: {gigabytes(wanted)} do not go to the nodes through this machine"
            return ProviderError(f"{much}, and {because}{reason}")
        return self._relay(wanted, reason)

    def _relay(self, wanted: Wanted, reason: str) -> RelayError:
        size = f" ({gigabytes(wanted)})" if wanted.size_bytes >= GB else ""
        words = f"note: data.{wanted.name}{size} goes to the nodes through this machine"
        self._tell_once(words, reason)
        return RelayError(reason)

    def _tell_once(self, words: str, reason: str = "") -> None:
        with self._guard:
            is_new = words not in self._has_told
            self._has_told.add(words)
        if is_new:
            self._tell(f"{words}: {reason}" if reason else words)


def _silence(uri: str) -> ObjectStoreError | None:
    """What is in the way if a store does not answer this machine; None if it does, be it with a refusal."""
    error = trouble_from_here(uri)
    return error if error and error.trouble is StoreTrouble.UNREACHABLE else None


class _DataProgress:
    """Hears what `data_orders` says while a node gets data; what of that the user is told.

    Args:
        tell: is told now and then how far it is.
        remark: is told at once what it remarks.
        clock: gives seconds.
    """

    def __init__(
        self, tell: Callable[[str], None], remark: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._tell = tell
        self._remark = remark
        self._clock = clock
        self._begun_s = clock()
        self._tell_at_s = self._begun_s + _TELL_S

    def hear(self, said: Mapping[str, Any]) -> None:
        """Take what it says before it has ended."""
        if "note" in said:
            self._remark(str(said["note"]))
        elif "at" in said:
            self._at(*map(int, said["at"]))

    def _at(self, done_bytes: int, total_bytes: int) -> None:
        now_s = self._clock()
        if now_s < self._tell_at_s:
            return
        self._tell_at_s = now_s + _TELL_AGAIN_S
        unit, name = (GB, "GB") if total_bytes >= GB else (_MB, "MB")
        far = f", {done_bytes / unit:.1f} of {total_bytes / unit:.1f} {name}" if total_bytes else ""
        self._tell(f"fetching for {now_s - self._begun_s:.0f} s{far}")
