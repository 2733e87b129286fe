"""`RemoteSite`: the nodes of a run's clusters; attempts are brought there, and what they leave is fetched."""

from __future__ import annotations

import posixpath
import queue
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from trainmaster.control.clusters.node_fetching import fetch
from trainmaster.control.clusters.node_files import NodeFiles, each
from trainmaster.control.clusters.node_paths import NodePaths
from trainmaster.control.clusters.node_setup import set_up_node
from trainmaster.control.environment import UNBUFFERED
from trainmaster.control.gangs import helpers_of
from trainmaster.control.layout import Home, attempt_id
from trainmaster.control.site import NodeGoneError
from trainmaster.control.staging import data_path, environment_path
from trainmaster.providers.base import ProviderError
from trainmaster.remote.errors import CommandError
from trainmaster.remote.guest.trees import remove
from trainmaster.spec.errors import TrainmasterError, UsageError, one_line

if TYPE_CHECKING:
    from trainmaster.control.clusters.node_access import NodeAccess
    from trainmaster.control.job_context import TaskContext

T = TypeVar("T")

#: How long a node that does not answer is asked again for what an attempt that ended well has left.
PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 1.0
#: Directories that are no longer needed are removed many at a time.
_GATHER_S: Final = 0.5
_REMOVE_AT_ONCE: Final = 200
_REMOVE_TIMEOUT_S: Final = 600.0
_CLOSE_S: Final = 10.0
_STABLE_TRIES: Final = 3
#: Of what a failed attempt has left more is not fetched: the next one is not to wait for it.
_LOOK_BYTES: Final = 64 << 20
_USUAL_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class RemoteSite:
    """See `trainmaster.control.site.Site`. Threads share it; close it.

    Args:
        home: here.
        run: its id.
        nodes_of: given an attempt's id, names of its members and their nodes, in rank order; members whose
            node is gone are missing.
        all_nodes: given an experiment's name, the nodes of its cluster.
        root: of all nodes; see `NodeAccess`.
        slots_of: given an experiment's name, the slots of each node of its cluster, as planned.
        patience_s: how long a node that does not answer is asked again when a task is saved.
    """

    def __init__(
        self,
        home: Home,
        run: str,
        nodes_of: Callable[[str], Sequence[tuple[str, NodeAccess]]],
        all_nodes: Callable[[str], Sequence[NodeAccess]],
        *,
        root: str,
        slots_of: Callable[[str], Sequence[int]] = lambda _: (),
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._paths = NodePaths(home, run, root)
        self._nodes_of = nodes_of
        self._all_nodes = all_nodes
        self._slots_of = slots_of
        self._patience_s = patience_s
        self._files = NodeFiles()
        self._bare: set[str] = set()
        self._unfetched: set[str] = set()
        self._linked: set[tuple[str, str]] = set()
        self._set_up: dict[tuple[str, str], threading.Lock] = {}
        self._is_set_up: set[tuple[str, str]] = set()
        self._guard = threading.Lock()
        self._doomed: queue.SimpleQueue[tuple[NodeAccess, str] | None] = queue.SimpleQueue()
        self._remover: threading.Thread | None = None

    @property
    def root(self) -> str:
        """Our directory on every node."""
        return self._paths.root

    def path(self, here: Path) -> str:
        """Where something lies on every node; see `Site.path`."""
        return self._paths.there(here)

    def here(self, there: str) -> Path:
        """Where something in the run's directory of a node lies here."""
        return self._paths.here(there)

    def slots(self, experiment: str) -> Sequence[int]:
        """Slots of each node of an experiment's cluster."""
        return self._slots_of(experiment)

    def environment(self, experiment: str) -> Mapping[str, str]:
        """What members find before anything of the recipe is added; nothing of the caller's is in it."""
        found = {"PATH": f"{self.root}/bin:{self.root}/tools:{_USUAL_PATH}", "LANG": "C.UTF-8", **UNBUFFERED}
        nodes = self._all_nodes(experiment)
        facts = [node.result.facts for node in nodes if node.result.facts is not None]
        if len({(each.home, each.user) for each in facts}) == 1:  # else it is for the scripts to ask
            found |= {"HOME": facts[0].home, "USER": facts[0].user, "LOGNAME": facts[0].user}
        configs = {node.ssh_config for node in nodes}
        if len(configs) == 1 and (config := configs.pop()):
            agent = f"ssh -F {shlex.quote(config)}"
            found |= {"OMPI_MCA_plm_rsh_agent": agent, "PRTE_MCA_plm_ssh_agent": agent}
        return found

    @property
    def library(self) -> str:
        """A directory on every node for the end of PYTHONPATH."""
        return f"{self.root}/lib"

    def bring(self, context: TaskContext) -> None:
        """Put what an attempt needs on its nodes; see `Site.bring`."""

        def work() -> None:
            each(_distinct(self._members(context)), lambda node: self._bring(node, context))

        # A node that has just been lost is seen to be by others, and then all of it begins anew.
        self._patiently(work)

    def fetch_checkpoint(self, context: TaskContext, *, is_patient: bool = False) -> bool:
        """Fetch and unite the checkpoint directories; see `Site.fetch_checkpoint`."""
        attempt = _attempt_of(context)
        here = context.place.checkpoint
        with self._guard:
            is_bare = attempt in self._bare
            self._bare.discard(attempt)
        if is_bare and not _has_entries(here):
            return True
        sources = [(node, self.path(here)) for node in _distinct(self._members(context))]
        if is_patient:
            return self._patiently(lambda: fetch(self._files, sources, here))
        return fetch(self._files, sources, here)

    def fetch_output(self, context: TaskContext, *, is_final: bool = True) -> None:
        """Fetch the members' output directories of an attempt that has ended; see `Site.fetch_output`.

        Args:
            context: the attempt.
            is_final: it all has to be here; else what cannot be had is left out.
        """
        attempt = _attempt_of(context)
        if not is_final:
            for name, node in self._nodes_of(attempt):
                try:
                    self._fetch_outputs(node, [name], context, _LOOK_BYTES)
                except (TrainmasterError, OSError):  # it is only for the user to look at
                    continue
            return
        with self._guard:
            self._unfetched.add(attempt)
        members = self._nodes_of(attempt)
        self._require(context, members, helpers_of(context.experiment, context.launcher))
        nodes = _distinct(members)

        def fetch_of(node: NodeAccess) -> bool:
            names = [name for name, its in members if its.id == node.id]
            try:
                return self._patiently(lambda: self._fetch_outputs(node, names, context))
            except ProviderError as error:  # silent for so long that its cluster gives it up, too
                raise NodeGoneError(f"what {', '.join(names)} made is lost: {one_line(error)}") from error

        bare = each(nodes, fetch_of)
        with self._guard:
            self._unfetched.discard(attempt)
            if all(bare) and len(members) == len(context.members):
                self._bare.add(attempt)

    def clean_up(self, context: TaskContext) -> None:
        """Have an attempt's directories removed from its nodes, soon; see `Site.clean_up`."""
        attempt = _attempt_of(context)
        for left in context.place.directory.glob(".*.draft*"):
            remove(str(left))
        with self._guard:
            is_unfetched = attempt in self._unfetched
            self._unfetched.discard(attempt)
            self._bare.discard(attempt)
        if is_unfetched:
            return
        directory = self.path(context.place.directory)
        for node in _distinct(self._nodes_of(attempt)):
            self._doomed.put((node, directory))
            if self._remover is None:
                self._remover = threading.Thread(target=self._remove_all, name="remover", daemon=True)
                self._remover.start()

    def close(self) -> None:
        """Finish removing, for a short while, and hang up."""
        if self._remover is not None:
            self._doomed.put(None)
            self._remover.join(_CLOSE_S)
        self._files.close()

    # -- to a node

    def _bring(self, node: NodeAccess, context: TaskContext) -> None:
        place = context.place
        outputs = [place.output(name, first=rank == 0) for rank, name in enumerate(context.members)]
        self._files.make(node, [self.path(each) for each in (place.checkpoint, *outputs)])
        if _has_entries(place.checkpoint):
            self._files.push(node, place.checkpoint, self.path(place.checkpoint))
        for name, source in context.experiment.data.items():
            here = data_path(context, name)
            if not here.is_dir():
                raise UsageError(f"data.{name}: {here} is no directory", "Only directories come to nodes.")
            self._files.push(node, here, self.path(here), is_shared=True)
            if source.at is not None:
                code = self.path(context.home.code_directory(context.run))
                self._link(node, posixpath.normpath(f"{code}/{source.at}"), here)
        self._set_up_on(node, context)

    def _link(self, node: NodeAccess, link: str, here: Path) -> None:
        if (node.id, link) in self._linked:
            return
        place, target = shlex.quote(link), shlex.quote(self.path(here))
        above = shlex.quote(link.rpartition("/")[0])
        command = (
            f'is() {{ [ "$(readlink {place})" = {target} ]; }}; '
            f"is || {{ mkdir -p -- {above} && ln -sT -- {target} {place}; }} || is"
        )
        result = self._files.shell(node, command)
        if result.code != 0:
            raise CommandError(f"{node.target.shown}: {result.last_words}")
        self._linked.add((node.id, link))

    def _set_up_on(self, node: NodeAccess, context: TaskContext) -> None:
        here = environment_path(context)
        if here is None:
            return
        key = (node.id, str(here))
        with self._guard:
            lock = self._set_up.setdefault(key, threading.Lock())
        with lock:
            if key in self._is_set_up:
                return
            set_up_node(
                node,
                self.path(here),
                context.experiment.setup or "",
                self.path(context.home.code_directory(context.run)),
                context.variables,
                here.with_suffix(".log"),
            )
            self._is_set_up.add(key)

    # -- from nodes

    def _fetch_outputs(
        self, node: NodeAccess, names: Sequence[str], context: TaskContext, limit_bytes: int | None = None
    ) -> bool:
        """Fetch what members have written on a node; True if they left nothing at all there."""
        place = context.place
        here = {name: place.output(name, first=name == context.members[0]) for name in names}
        places = [place.checkpoint, *here.values()]
        if self._files.probe.are_empty(node, [self.path(each) for each in places]):
            return True
        for directory in here.values():
            for _ in range(_STABLE_TRIES):
                if fetch(self._files, [(node, self.path(directory))], directory, limit_bytes=limit_bytes):
                    break
            else:
                raise CommandError(
                    f"{node.target.shown}: {self.path(directory)} changes though its member has ended",
                    "Something that the task left behind still writes into it.",
                )
        return False

    def _patiently(self, work: Callable[[], T]) -> T:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return work()
            except (ProviderError, NodeGoneError):  # unreachable, too slow, or perhaps not there yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)

    def _members(self, context: TaskContext) -> Sequence[tuple[str, NodeAccess]]:
        members = self._nodes_of(_attempt_of(context))
        self._require(context, members)
        return members

    def _require(
        self,
        context: TaskContext,
        members: Sequence[tuple[str, NodeAccess]],
        dispensable: frozenset[str] = frozenset(),
    ) -> None:
        found = {name for name, _ in members}
        gone = [name for name in context.members if name not in found and name not in dispensable]
        if gone:
            verb = "has" if len(gone) == 1 else "have"
            raise NodeGoneError(f"{', '.join(gone)} {verb} no node any more, and what was there is lost")

    def _remove_all(self) -> None:
        ended = False
        while not ended:
            doomed = [self._doomed.get()]
            if doomed[0] is not None:
                time.sleep(_GATHER_S)
            while len(doomed) < _REMOVE_AT_ONCE:
                try:
                    doomed.append(self._doomed.get_nowait())
                except queue.Empty:
                    break
            ended = None in doomed
            by_node: dict[str, tuple[NodeAccess, list[str]]] = {}
            for node, directory in filter(None, doomed):
                by_node.setdefault(node.id, (node, []))[1].append(directory)
            for node, directories in by_node.values():
                self._remove(node, directories)

    def _remove(self, node: NodeAccess, directories: Sequence[str]) -> None:
        try:
            self._files.shell(node, f"rm -rf -- {shlex.join(directories)}", _REMOVE_TIMEOUT_S)
        except TrainmasterError:  # what cannot be reached keeps it
            return


def _attempt_of(context: TaskContext) -> str:
    return attempt_id(context.run, context.experiment.name, context.task, context.attempt)


def _distinct(members: Sequence[tuple[str, NodeAccess]]) -> list[NodeAccess]:
    return list({node.id: node for _, node in members}.values())


def _has_entries(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())
