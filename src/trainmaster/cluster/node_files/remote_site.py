"""`RemoteSite`: the nodes of a run's clusters; attempts are brought there, and what they leave is fetched."""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.artifacts import JSON, CheckpointSeries, UnstableDirectory
from trainmaster.cluster.member_places import (
    PLACES,
    AttemptNodes,
    Members,
    distinct,
    id_of,
    read_places,
    require,
)
from trainmaster.cluster.node_access import NodeAccess
from trainmaster.cluster.node_files.data import NodeData
from trainmaster.cluster.node_files.data_wanted import require_lendable
from trainmaster.cluster.node_files.direct_store import DirectStore
from trainmaster.cluster.node_files.fetching import fetch
from trainmaster.cluster.node_files.files import NodeFiles, NodePaths, each
from trainmaster.cluster.node_files.images import NodeImages
from trainmaster.cluster.node_files.merging import Tree, tree_of
from trainmaster.cluster.node_files.removal import Remover
from trainmaster.cluster.node_files.sending import Source
from trainmaster.cluster.node_files.staging import NodeStaging
from trainmaster.cluster.node_files.store_reach import patiently, persistently
from trainmaster.cluster.node_files.trees import remove
from trainmaster.cluster.node_links import NodeFailureDetector
from trainmaster.control.attempt.system_log import WAIT_S, write_system_log
from trainmaster.control.attempt.unpublished_checkpoint import noted_restored
from trainmaster.control.decide.effects import EffectKind
from trainmaster.control.task.environment import UNBUFFERED
from trainmaster.control.task.environment_hashes import node_python
from trainmaster.control.task.gangs import (
    NodeSize,
    dispensable_of,
    gpus_of,
    helpers_of,
    slots_on_nodes,
    tasks_on_nodes,
    workers_per_node,
)
from trainmaster.control.task.job_context import NodeGoneError, RelayError, TaskContext
from trainmaster.control.task.layout import Home, has_entries
from trainmaster.executors.base import Container, GangRequest
from trainmaster.objects.delegated_credentials import DelegatedCredentials
from trainmaster.spec import Experiment
from trainmaster.spec.errors import ProviderError, TrainmasterError, UsageError, one_line
from trainmaster.spec.locking import locked
from trainmaster.transport.base import CommandError

if TYPE_CHECKING:
    from trainmaster.cluster.roles.node_roles import NodeRoles

log = logging.getLogger(__name__)

#: How long a node that does not answer is asked again for what an attempt that ended well has left.
PATIENCE_S: Final = 60.0
#: Mounts whose store is away when a driver takes over are asked for again so much later.
_ADOPT_AGAIN_S: Final = 60.0
_STABLE_TRIES: Final = 3
#: Of what a failed attempt has left more is not fetched: the next one is not to wait for it.
_LOOK_BYTES: Final = 64 << 20
#: Of an attempt on more machines, these say enough.
_MACHINES_ASKED: Final = 8
#: A disk with less is full; of the words of ``df -Pk``, this one says what is free.
_FULL_KIB: Final = 64
_DF_FREE: Final = 3
_USUAL_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class RemoteSite:
    """See `trainmaster.control.task.job_context.Site`. Threads share it; close it.

    Takes functions instead of cluster objects, so that it imports no cluster: hence ten arguments.

    Args:
        home: here.
        run: its id.
        nodes_of: given an attempt's id, names of its members and their nodes, in rank order; members whose
            node is gone are missing.
        all_nodes: given an experiment's name, the nodes of its cluster.
        root: of all nodes; see `NodeAccess`.
        node_sizes: given an experiment's name, slots and GPUs of each node of its clusters, as planned.
        patience_s: how long a node that does not answer is asked again when a task is saved.
        tell: shows lines to the user.
        is_over: see `NodeData`.
        system_log: given an attempt's id, the command that tells what the operating system of its nodes says.
        console: given an attempt's id and a machine's, what the provider keeps of its console.
        is_coming: given an attempt's id, whether a machine that one of its members ran on is rented, and was
            not prepared for this driver yet.
    """

    def __init__(
        self,
        home: Home,
        run: str,
        nodes_of: Callable[[str], Members],
        all_nodes: Callable[[str], Sequence[NodeAccess]],
        *,
        root: str,
        node_sizes: Callable[[str], Sequence[NodeSize]] = lambda _: (),
        patience_s: float = PATIENCE_S,
        tell: Callable[[str], None] = lambda _: None,
        is_over: Callable[[str], bool] = lambda _: False,
        is_coming: Callable[[str], bool] = lambda _: False,
        system_log: Callable[[str], str] = lambda _: "",
        console: Callable[[str, str], str] = lambda *_: "",
    ) -> None:
        self._paths = NodePaths(home, run, root)
        self._all_nodes = all_nodes
        self._node_sizes = node_sizes
        self._patience_s = patience_s
        self._files = NodeFiles()
        self._images = NodeImages(self._files, self._paths)
        credentials = DelegatedCredentials()
        self._data = NodeData(self._files, self._paths, credentials, tell, is_over=is_over, cluster=all_nodes)
        self._staging = NodeStaging(self._files, self._images, self._paths, self._data)
        self._roles: NodeRoles | None = None
        self._direct = DirectStore(self._files, credentials, home.run_uris(run), tell)
        self._nodes = AttemptNodes(nodes_of, NodeFailureDetector(self._files.links), self._files.links)
        self._tell = tell
        self._is_coming = is_coming
        self._system_log, self._console = system_log, console
        self._unfetched: set[str] = set()
        self._bare: set[str] = set()
        self._guard = threading.Lock()
        self._remover = Remover(self._files)

    stays = False
    #: It takes as long as nodes fetch their data, and costs little here.
    most_staged = 64

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

    def environment(self, experiment: Experiment) -> Mapping[str, str]:
        """Nothing of the caller's is in it; see `Site.environment`."""
        if experiment.container is not None:
            return self._images.environment(experiment.container)
        found = {
            "PATH": f"{self.root}/bin:{self.root}/tools:{_USUAL_PATH}",
            "LANG": "C.UTF-8",
            **UNBUFFERED,
            **self._data.environment(),
        }
        nodes = self._all_nodes(experiment.name)
        facts = [node.result.facts for node in nodes if node.result.facts is not None]
        if len({(each.home, each.user) for each in facts}) == 1:  # else it is for the scripts to ask
            found |= {"HOME": facts[0].home, "USER": facts[0].user, "LOGNAME": facts[0].user}
        agents = {node.mpi_agent for node in nodes}
        if len(agents) == 1 and (agent := agents.pop()):
            command = f"bash {agent}"  # split at blanks, never unquoted
            found |= {"OMPI_MCA_plm_rsh_agent": command, "PRTE_MCA_plm_ssh_agent": command}
        return found

    def additions(self, experiment: Experiment) -> Mapping[str, str]:
        """Nothing is inherited on nodes; see `Site.additions`."""
        named = experiment.container
        return self.environment(experiment) if named is None else self._images.additions(named)

    def library(self, _context: TaskContext) -> str:
        """See `Site.library`."""
        return f"{self.root}/lib"

    def python(self, context: TaskContext) -> str:
        """See `Site.python`."""
        return node_python(context.experiment)

    def gpus(self, experiment: Experiment, role: str) -> int:
        """See `Site.gpus`."""
        return gpus_of(experiment, role)

    def container(self, context: TaskContext) -> Container | None:
        """See `Site.container`."""
        named = context.experiment.container
        return None if named is None else self._images.request(context, context.data_places)

    def group_slots(self, experiment: Experiment) -> int:
        """See `Site.group_slots`."""
        return slots_on_nodes(experiment, self._node_sizes(experiment.name))

    def at_once(self, experiment: Experiment) -> int:
        """See `Site.at_once`."""
        return tasks_on_nodes(experiment, self._node_sizes(experiment.name))

    def completed(self, request: GangRequest, context: TaskContext) -> GangRequest:
        """Where its members go, and what is made there before they start; see `Site.completed`."""
        experiment, place = context.experiment, context.place
        return replace(
            request,
            per_node=workers_per_node(experiment),
            directories=tuple(map(self.path, (place.checkpoint, *context.parts.values()))),
        )

    def needs_hold(self, context: TaskContext) -> bool:
        """They are told where the others are; see `Site.needs_hold`."""
        return len(context.members) > 1

    def is_quick(self, _kind: EffectKind, _context: TaskContext) -> bool:
        """Nodes are asked; see `Site.is_quick`."""
        return False

    def alone(self, context: TaskContext) -> AbstractContextManager[object]:
        """A thread for nodes that a gang had before must not go on when its members run; see `Site.alone`."""
        return locked(context.place.directory / "staging")

    def began(self, context: TaskContext) -> None:
        """What is on its node is written down at its end; see `Site.began`."""

    def bring(self, context: TaskContext) -> None:
        """Put what an attempt needs on its nodes; see `Site.bring`."""

        def work() -> None:
            members = self._nodes.members(context)
            if context.experiment.roles is not None:  # what they install, a `setup` may need
                self._with_roles().play(members, context)
            each(distinct(members), lambda node: self._staging.bring(node, context))

        # A node that has just been lost is seen to be by others, and then all of it begins again.
        persistently(work, self._patience_s, self._tell)

    def _with_roles(self) -> NodeRoles:
        """Made for the first experiment that has any: few have, and it imports much."""
        from trainmaster.cluster.roles.node_roles import NodeRoles

        with self._guard:
            if self._roles is None:
                self._roles = NodeRoles(self._files, self._paths.home.run_directory(self._paths.run))
            return self._roles

    def provide(self, context: TaskContext, name: str, models: Sequence[tuple[int, str]]) -> None:
        """Have the nodes of an attempt get data themselves; see `Site.provide`."""

        def work() -> None:
            nodes = distinct(self._nodes.members(context))
            self._data.provide(id_of(context), nodes, context, name, models)

        persistently(work, self._patience_s, self._tell)

    def adopt(self, context: TaskContext) -> None:
        """Keys of mounts that an earlier driver made are renewed from now on; see `Site.adopt`."""
        names = [name for name, source in context.experiment.data.items() if source.volume is not None]
        if names:
            threading.Thread(target=self._adopt, args=(context, names), name="adopt", daemon=True).start()

    def _adopt(self, context: TaskContext, names: list[str]) -> None:
        """Mounts that are there are found, and take the present keys."""
        while names and not self._data.is_withdrawn and self._nodes.present(id_of(context)):
            try:
                self.provide(context, names[-1], ())
            except (TrainmasterError, OSError) as error:
                log.info("data.%s of %s: %s", names[-1], id_of(context), one_line(error))
                if not isinstance(error, (RelayError, UsageError)):  # else there will never be keys for it
                    time.sleep(_ADOPT_AGAIN_S)
                    continue
            names = names[:-1]

    def lost_data(self, context: TaskContext) -> tuple[bool, str]:
        """What went wrong with data on an attempt's nodes; see `Site.lost_data`."""
        attempt = id_of(context)
        return self._data.lost(attempt, distinct(self._nodes.present(attempt)), context)

    def withdraw_data(self, experiments: Iterable[str]) -> None:
        """The run is over: end its mounts and setups on nodes that may go on without it.

        Args:
            experiments: of the run.
        """
        nodes = [node for name in experiments for node in self._all_nodes(name)]
        self._data.withdraw(list({node.id: node for node in nodes}.values()))

    def publish_checkpoint(self, context: TaskContext, *, is_patient: bool = False) -> int | None:
        """Have the nodes publish their checkpoint directories; see `Site.publish_checkpoint`."""
        series = context.checkpoints
        require_lendable([series.uri])
        if self._was_bare(context):
            return None
        base = _base(context)

        def work() -> int | None:
            sources = self._left(context, is_patient=is_patient)
            extra = {"attempt": context.attempt}
            return self._direct.publish_checkpoint(id_of(context), sources, series, extra, base)

        with self._together(context, is_patient=is_patient):
            return patiently(work, self._patience_s) if is_patient else work()

    def fetch_checkpoint(self, context: TaskContext, *, is_patient: bool = False) -> bool:
        """Fetch and unite the checkpoint directories; see `Site.fetch_checkpoint`."""
        here = context.place.checkpoint
        if self._was_bare(context) and not has_entries(here):
            return True
        base = _base(context)
        sources = [(each.access, each.directory) for each in self._left(context, is_patient=is_patient)]

        def work() -> bool:
            return fetch(self._files, sources, here, base=base)

        with self._together(context, is_patient=is_patient):
            return patiently(work, self._patience_s) if is_patient else work()

    def restore_checkpoint(
        self, context: TaskContext, series: CheckpointSeries, number: int, *, is_own: bool = True
    ) -> None:
        """Have the nodes download a checkpoint; see `Site.restore_checkpoint`."""
        uri = series.uri_of(number)
        require_lendable([uri])

        def work() -> None:
            self._direct.restore(id_of(context), self._sources(context), uri, is_own=is_own)

        patiently(work, self._patience_s)

    def publish_model(self, context: TaskContext, extra: Mapping[str, JSON]) -> bool:
        """Have the nodes publish what their members left; see `Site.publish_model`."""
        self._note_environment(context)
        require_lendable([context.model_uri])

        def publish(members: Members) -> bool:
            nodes = dict(members)
            sources = [
                Source(nodes[name], self.path(here), prefix)
                for name, (prefix, here) in zip(context.members, context.parts.items(), strict=True)
                if name in nodes
            ]
            for last in (False, False, True):
                try:
                    return self._direct.publish_model(sources, context.model_uri, extra, context.owner)
                except UnstableDirectory:
                    if last:
                        raise
            raise AssertionError("the last time either returns or raises")

        return self._take_output(context, publish)

    def _note_environment(self, context: TaskContext) -> None:
        """Also of an attempt that began without being staged."""
        for _, node in self._nodes.present(id_of(context)):
            self._staging.note_environment(node, context)
            return

    def lost(self, attempt: str, members: Sequence[str]) -> None:
        """Members of an attempt were lost: nodes that do not answer us either are not waited for.

        Args:
            attempt: its id.
            members: their names.
        """
        self._nodes.suspect(attempt, members)

    def fetch_output(
        self, context: TaskContext, *, is_final: bool = True, limit_bytes: int | None = None
    ) -> None:
        """Fetch the members' output directories of an attempt that has ended; see `Site.fetch_output`.

        Args:
            context: the attempt.
            is_final: it all has to be here; else what cannot be had is left out.
            limit_bytes: most bytes of a member.
        """
        self._note_environment(context)
        if not is_final:
            for name, node in self._nodes.present(id_of(context)):
                try:
                    self._fetch_outputs(node, [name], context, _LOOK_BYTES)
                except (TrainmasterError, OSError):  # it is only for the user to look at
                    continue
            return

        def fetch_all(members: Members) -> bool:
            def fetch_of(node: NodeAccess) -> None:
                names = [name for name, its in members if its.id == node.id]
                self._fetch_outputs(node, names, context, limit_bytes)

            each(distinct(members), fetch_of)
            return True

        self._take_output(context, fetch_all)

    def full_disks(self, context: TaskContext) -> str:
        """Which of an attempt's nodes have no room left, in words; see `Site.full_disks`."""
        full = []
        for node in distinct(self._nodes.present(id_of(context))):
            try:
                said = self._files.shell(node, f"df -Pk {shlex.quote(self.root)} | tail -n 1").out.split()
            except TrainmasterError:
                continue
            if len(said) > _DF_FREE and said[_DF_FREE].isdigit() and int(said[_DF_FREE]) < _FULL_KIB:
                full.append(node.target.shown)
        return f"no space left on the disk of {', '.join(full)}" if full else ""

    def keep_system_logs(self, context: TaskContext) -> None:
        """Keep what operating systems of an attempt's nodes say; see `Site.keep_system_logs`.

        Of a machine that does not answer it is what its provider has of its console.
        """
        there = {node.id: node for node in distinct(self._nodes.present(id_of(context)))}
        machines = {*there, *read_places(context.place.directory / PLACES).values()}
        command = self._system_log(id_of(context))
        lost_first = sorted(machines, key=lambda machine: (machine in there, machine))

        def said(machine: str) -> str:
            if (node := there.get(machine)) is not None and command:
                with suppress(TrainmasterError):
                    return self._files.shell(node, command, WAIT_S).out
            try:
                if shown := self._console(id_of(context), machine):
                    return shown
                why = "its provider has nothing of its console"
            except TrainmasterError as error:  # no permission, say
                why = f"its console cannot be had: {one_line(error)}"
            is_known = context.place.system_log(machine).exists()  # it was asked for before
            return "" if is_known else f"{machine} does not answer, and {why}\n"

        asked = lost_first[:_MACHINES_ASKED]
        for machine, text in zip(asked, each(asked, said), strict=True):
            write_system_log(context, machine, text)

    def where(self, context: TaskContext) -> str:
        """Where what an attempt left lies, in words; see `Site.where`."""
        names = [node.target.shown for node in distinct(self._nodes.known(id_of(context)))]
        return f"on {', '.join(names) or 'its nodes'} in {self.path(context.place.directory)}"

    def clean_up(self, context: TaskContext, *, is_saved: bool = True) -> None:
        """Have an attempt's directories removed from its nodes, soon; see `Site.clean_up`."""
        attempt = id_of(context)
        for left in context.place.directory.glob(".*.draft*"):
            remove(str(left))
        with self._guard:
            is_unfetched = attempt in self._unfetched
            self._unfetched.discard(attempt)
            self._bare.discard(attempt)
        nodes = [] if is_unfetched or not is_saved else distinct(self._nodes.present(attempt))
        self._direct.forget(attempt)
        self._data.forget(attempt)
        self._nodes.forget(attempt)
        directory = self.path(context.place.directory)
        for node in nodes:
            self._remover.remove(node, directory)

    def close(self, *, stays: bool = True) -> None:
        """Finish removing, for a short while, and hang up.

        Args:
            stays: nodes are still there; what is on those that were given back is gone.
        """
        if self._roles is not None:
            self._roles.close()
        self._remover.close(waits=stays)
        self._files.close()
        self._images.close()

    def _take_output(self, context: TaskContext, take: Callable[[Members], bool]) -> bool:
        """Take what an attempt that ended well left on its nodes; False if that is nothing.

        Args:
            context: the attempt.
            take: given members and their nodes, takes it; False if there was nothing.
        """
        attempt = id_of(context)
        with self._guard:
            self._unfetched.add(attempt)

        helpers = helpers_of(context.experiment, context.launcher)

        def work() -> bool:
            members = self._nodes.known(attempt)
            require(context, members, helpers)
            if context.staged and (first := dict(members).get(context.members[0])) is not None:
                self._data.fetch_hdfs(first, context)
            bare = each(distinct(members), lambda node: self._is_bare(node, members, context))
            if not all(bare):
                return take(members)
            if len(members) == len(context.members):
                with self._guard:  # they need not be asked for a checkpoint
                    self._bare.add(attempt)
            return False

        try:
            # Of a node that is silent nothing is known; if it is lost, its cluster says so before long.
            with self._nodes.together(context, dispensable=helpers):
                taken = patiently(work, self._patience_s, is_returning=False)
        except NodeGoneError as error:
            if not self._is_coming(attempt):
                raise
            raise ProviderError(f"a machine cannot be reached yet: {one_line(error)}") from error
        with self._guard:
            self._unfetched.discard(attempt)
        return taken

    def _sources(
        self, context: TaskContext, *, is_patient: bool = True, dispensable: frozenset[str] = frozenset()
    ) -> list[Source]:
        there = self.path(context.place.checkpoint)
        members = self._nodes.members(context, is_patient=is_patient, dispensable=dispensable)
        return [Source(node, there) for node in distinct(members)]

    def _left(self, context: TaskContext, *, is_patient: bool) -> list[Source]:
        """Where the members' checkpoints are; those that the others do without may have no node."""
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

    def _is_bare(self, node: NodeAccess, members: Members, context: TaskContext) -> bool:
        """Whether an attempt left nothing at all on a node."""
        outputs = dict(zip(context.members, context.parts.values(), strict=True))
        places = [context.place.checkpoint, *(outputs[name] for name, its in members if its.id == node.id)]
        return self._files.probe.are_empty(node, [self.path(place) for place in places])

    def _fetch_outputs(
        self, node: NodeAccess, names: Sequence[str], context: TaskContext, limit_bytes: int | None = None
    ) -> None:
        """Fetch what members have written on a node."""
        place = context.place
        here = {name: place.output(name, first=name == context.members[0]) for name in names}
        if self._files.probe.are_empty(node, [self.path(directory) for directory in here.values()]):
            return
        for directory in here.values():
            for _ in range(_STABLE_TRIES):
                if fetch(self._files, [(node, self.path(directory))], directory, limit_bytes=limit_bytes):
                    break
            else:
                raise CommandError(
                    f"{node.target.shown}: {self.path(directory)} changes though its member has ended",
                    "Something that the task left behind still writes into it.",
                )


def _base(context: TaskContext) -> Tree:
    """What the attempt has begun with, on all of its nodes."""
    manifest = noted_restored(context.place)
    return [] if manifest is None else tree_of(manifest.files)
