"""`NodeProvisioner`: makes nodes of machines, a cluster of nodes. All of it blocks; none of it decides."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.cluster.node_access import NodeAccess, SshNodes
from trainmaster.cluster.node_ledger import NodeLedger
from trainmaster.cluster.record import ClusterRecord, Machine
from trainmaster.executors.gangs.recorded_cluster import RecordedCluster, cluster_kind, recorded
from trainmaster.providers.base import Node, NodeState, root_on_nodes
from trainmaster.providers.dead_man_switch import (
    DIRECTORY,
    RENEWALS,
    SELF_DELETION_FAILS,
    deadman_script,
    end_command,
    renewal_command,
    self_deletion_commands,
)
from trainmaster.spec.clocks import boot_s
from trainmaster.spec.errors import ProviderError, TrainmasterError, one_line
from trainmaster.spec.periodic import periodically
from trainmaster.spec.private_files import write_private
from trainmaster.transport.host_keys import shown_key_file
from trainmaster.transport.pool import ConnectionPool

if TYPE_CHECKING:
    from trainmaster.cluster.bootstrap.host_result import PhaseReport
    from trainmaster.cluster.bootstrap.runtime_package import RuntimeLayer, RuntimePackage
    from trainmaster.control.task.layout import Home
    from trainmaster.executors.gangs.engine import ClusterNode
    from trainmaster.transport.base import Connection, Target, Transport
    from trainmaster.transport.key_pairs import KeyPair

#: A machine's SSH server comes up a little later than the machine.
_LOGIN_S: Final = 180.0
#: And our key is put there while it boots, perhaps after its SSH server has come up.
_REFUSED_S: Final = 30.0
_RENEW_TIMEOUT_S: Final = 10.0
#: How often it is looked whether the lease of a machine that is bootstrapped must be renewed.
_LEASE_LOOK_S: Final = 1.0
#: What a supervisor needs on a node.
_PACKAGES: Final = ("trainmaster",)
#: For volumes, and for stores where a bare image knows no authority; little, so every node gets what is here.
_SMALL_PACKAGES: Final = ("blake3", "mfusepy", "certifi")
_IMPORTS: Final = ("psutil", "obstore", "trainmaster.executors.supervisor.program")
_KEY: Final = "key.pair"


def node_packages(engines: Collection[str]) -> tuple[str, ...]:
    """What nodes are sent, as pip takes it; a machine that is to rent others needs it itself."""
    return (
        *_PACKAGES,
        *(package for engine in sorted(engines) for package in cluster_kind(engine).packages),
        *(name for name in _SMALL_PACKAGES if find_spec(name) is not None),
    )


def packages_of_nodes(home: Home, engines: Collection[str]) -> tuple[RuntimePackage, RuntimePackage]:
    """What every node gets for these; the first time it takes a while to find out."""
    from trainmaster.cluster.bootstrap.runtime_package import cached_runtime_packages

    kinds = [cluster_kind(engine) for engine in sorted(engines)]
    imports = (*_IMPORTS, *(name for kind in kinds for name in kind.imports))
    unused = tuple(folder for kind in kinds for folder in kind.unused)
    return cached_runtime_packages(home.cache / "runtimes", node_packages(engines), imports, unused)


def key_of(machine: str) -> str:
    """The name of a machine within its cluster.

    >>> key_of("gpu1.lab.org")
    'gpu1-lab-org'
    """
    return re.sub(r"[^A-Za-z0-9_-]", "-", machine)


class NodeProvisioner:
    """The nodes of one run's clusters. Threads share it.

    Args:
        home: of the run.
        run: its id.
        transport: connects.
        code: where the snapshot of its code lies here.
        lease_s: rented machines end themselves when their lease is not renewed for so long.
        tell: is told how far a bootstrap is, by any thread.
        has_switch: rented machines of this provider have a dead-man switch.
        switch_at_boot: it runs when they have booted; else the first login starts it.
        self_deletion: script that deletes a machine, see `BringsSelfDeletion`; None if none is needed.
        saved: called when something was written that is needed to go on, before it is relied on.

    Attributes:
        lease_s: may be changed at any time; each renewal sets the present one.
    """

    def __init__(
        self,
        home: Home,
        run: str,
        transport: Transport,
        code: Path,
        lease_s: float,
        tell: Callable[[PhaseReport], None] | None = None,
        *,
        has_switch: bool = True,
        switch_at_boot: bool = True,
        self_deletion: Callable[[Node], str] | None = None,
        saved: Callable[[], None] = lambda: None,
    ) -> None:
        self.home = home
        self.run = run
        self.transport = transport
        self.root = root_on_nodes(home.identity())
        self.lease_s = lease_s
        self._engines: set[str] = set()
        self._code = code
        self._tell = tell
        self._has_switch = has_switch
        self._switch_at_boot = switch_at_boot
        self._self_deletion = self_deletion
        self._saved = saved
        self._packing = threading.Lock()
        self._remembering = threading.Lock()
        self._packages: tuple[RuntimePackage, RuntimePackage] | None = None
        self._layer: RuntimeLayer | None = None
        self.connections = ConnectionPool(transport)
        self._memories: dict[str, NodeLedger] = {}

    # --- one machine -----------------------------------------------------------------------------------

    def prepare(self, machine: Machine, node: Node) -> NodeAccess:
        """Make a node of a machine that runs: log in, set its switch, bootstrap it, put the code there.

        Raises:
            TrainmasterError: it cannot become one.
        """
        from trainmaster.cluster.bootstrap.bootstrap import Bootstrap
        from trainmaster.cluster.node_files.files import prepare_node
        from trainmaster.cluster.node_links import BUSY_GREETING_S, greets
        from trainmaster.providers.hosts_over_ssh import target_of

        target, memory = target_of(node), self.memory(node.cluster)
        known = memory.facts(node.id)
        was_silent = machine.has_joined and not greets(target, BUSY_GREETING_S)
        logging_in = self._login(target, is_new=node.is_rented)
        with logging_in as connection, ThreadPoolExecutor(1, "grant") as pool:
            if known is None:  # nothing is done to what might not end
                self._grant(node, connection)
                granted = None
            else:  # questions take a while to get there, and so does the second login, which is needed later
                granted = pool.submit(self.connections.use, target, partial(self._grant, node))
            packages, layer = self._packed()
            with self._kept_alive(target, node):
                bootstrap = Bootstrap(
                    self.transport, packages, self.home.cache / "runtimes", listener=self._tell
                )
                result = bootstrap.one(target, layer, known, connection)
            if granted:
                granted.result()
        if not result.ok:
            raise ProviderError(f"{result.failed}: {result.reason}", result.hint)
        assert result.plan is not None
        self._note_host_key(node, target, result.host_key)
        if result.known is not None:
            memory.learn(node, result.known, is_new=not result.was_known)
        access = NodeAccess(
            seat=machine.seat,
            id=machine.id,
            address=node.private_address or node.address,
            target=target,
            result=result,
            root=self.root,
            transport=self.transport,
            was_silent=was_silent,
        )
        prepare_node(access, self.run, self._code)
        return access

    def _grant(self, node: Node, connection: Connection) -> None:
        """Let a machine live for the length of a lease, and see that it ends then.

        Raises:
            TrainmasterError: it cannot be told.
        """
        self._bring_switch(connection, node)
        self.set_switch(connection, node, self.lease_s, patient=True)
        self._bring_self_deletion(connection, node)

    def _note_host_key(self, node: Node, target: Target, shown: str) -> None:
        """Write down the key that a rented machine has shown: who looks from elsewhere has not met it."""
        if node.is_rented and shown and not target.host_key:
            with contextlib.suppress(OSError):  # a full disk, for which no machine is given up
                known = shown_key_file(self._place(node.cluster), node.id)
                write_private(known, f"{target.pin} {shown}\n".encode())

    def _bring_switch(self, connection: Connection, node: Node) -> None:
        """Start the dead-man switch of a machine that has none from its boot, unless it runs already.

        Raises:
            ProviderError: it could not be started.
        """
        if self._switch_at_boot or not (node.is_rented and self._has_switch):
            return

        if connection.run(renewal_command(self.lease_s), timeout_s=_RENEW_TIMEOUT_S).code == 0:
            return
        script = deadman_script(self.lease_s, node.user)
        result = connection.run("sudo -n sh -s", data=script.encode(), timeout_s=_RENEW_TIMEOUT_S)
        if result.code:
            raise ProviderError(
                f"{node.id}: its dead-man switch cannot be started: {result.last_words}",
                f"May {node.user} use sudo without a password there?",
            )

    def _bring_self_deletion(self, connection: Connection, node: Node) -> None:
        """Give a machine the script by which it deletes itself, unless it has it.

        Raises:
            TrainmasterError: there is none, or it cannot be brought.
        """
        if not (node.is_rented and self._self_deletion):
            return
        is_there, bring = self_deletion_commands(node.id)
        if connection.run(is_there, timeout_s=_RENEW_TIMEOUT_S).code == 0:
            return
        if not (script := self._self_deletion(node)):
            return
        result = connection.run(bring, data=script.encode(), timeout_s=_RENEW_TIMEOUT_S)
        if result.code == SELF_DELETION_FAILS:
            raise ProviderError(
                f"{node.id}: what would delete it does not run there: {result.last_words}",
                f"It begins with {script.splitlines()[0]}: have the image of its machines run that.",
            )
        if result.code:
            raise ProviderError(
                f"{node.id}: what would delete it cannot be brought: {result.last_words}",
                f"May {node.user} use sudo without a password there?",
            )

    def set_switch(
        self, connection: Connection, node: Node, lease_s: float, *, patient: bool = False
    ) -> None:
        """Renew the lease of a rented machine's dead-man switch, if it has one; hosts of one's own have none.

        Raises:
            TrainmasterError: it could not be set.
        """
        if not (node.is_rented and self._has_switch):
            return

        from trainmaster.transport.base import RemoteTimeoutError

        command = renewal_command(lease_s, node.switch or DIRECTORY)
        deadline = time.monotonic() + (_LOGIN_S if patient else 0)
        while True:
            try:
                result = connection.run(command, timeout_s=_RENEW_TIMEOUT_S)
            except RemoteTimeoutError:  # a machine that many others begin on at the same time
                if time.monotonic() >= deadline:
                    raise
                continue
            if result.code == 0:
                return
            if time.monotonic() >= deadline:
                raise ProviderError(
                    f"{node.id}: its dead-man switch cannot be set: {result.last_words}",
                    "Is its image one that runs user data at boot?",
                )
            time.sleep(0.3)

    @contextlib.contextmanager
    def _kept_alive(self, target: Target, node: Node) -> Iterator[None]:
        """Renew the lease of a rented machine while it is bootstrapped: over a slow line that takes long."""
        renewed_at = boot_s()

        def renew() -> None:
            nonlocal renewed_at
            if boot_s() - renewed_at < self.lease_s / RENEWALS:
                return
            with contextlib.suppress(TrainmasterError, OSError):
                self.connections.use(target, lambda it: self.set_switch(it, node, self.lease_s))
                renewed_at = boot_s()

        renewing = periodically(renew, _LEASE_LOOK_S, f"lease of {node.id}", awaited=False)
        with renewing if node.is_rented else contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def _login(self, target: Target, *, is_new: bool) -> Iterator[Connection]:
        from trainmaster.transport.base import LoginRefusedError, UnreachableError

        begun = time.monotonic()
        with contextlib.ExitStack() as stack:
            while True:
                try:
                    connection = stack.enter_context(self.transport.connection(target))
                    break
                except UnreachableError:
                    if time.monotonic() - begun > _LOGIN_S:
                        raise
                except LoginRefusedError:
                    if not is_new or time.monotonic() - begun > _REFUSED_S:
                        raise
                time.sleep(0.3)
            yield connection

    def close(self) -> None:
        """Hang up everywhere."""
        self.connections.close()

    def sends_for(self, engine: str) -> None:
        """Nodes are sent what this needs, beside what they are sent already."""
        with self._packing:
            if engine not in self._engines:
                self._engines.add(engine)
                self._packages = None

    def warm_up(self) -> None:
        """Find out what nodes need, while machines boot."""
        self._packed()

    def _packed(self) -> tuple[tuple[RuntimePackage, RuntimePackage], RuntimeLayer]:
        from trainmaster.cluster.bootstrap.runtime_package import code_layer

        with self._packing:
            if self._packages is None:
                self._packages = packages_of_nodes(self.home, self._engines)
            if self._layer is None:
                self._layer = code_layer(self._code)
            return self._packages, self._layer

    # --- one cluster -------------------------------------------------------------------------------------

    def form(self, record: ClusterRecord, nodes: Sequence[tuple[Machine, NodeAccess]]) -> RecordedCluster:
        """One cluster of nodes; the first may be its head. What is there from an earlier try is found.

        Raises:
            TrainmasterError: a node cannot be reached, or the engine does not start there.
        """
        kind = cluster_kind(record.plan.engine)
        directory = self._directory(record)
        members = [self._cluster_node(record, machine, access) for machine, access in nodes]
        shell = self._nodes
        for node, (_, access) in zip(members, nodes, strict=True):
            shell.add(node.key, access.target)
        rented = {key_of(machine.id) for machine in record.rented}
        old = self._recorded(record)
        again = self._claimed_again(record)
        kind(directory, old, self._ask, shell.stream).end([node for node in members if node.key in again])
        if kind.has_head and old and old[0].key not in rented - again:
            # Its head is lost: what it left on the others must not go on.
            here = {node.key for node in members}
            lost = kind(directory, old, self._ask, shell.stream)
            lost.stop({node.key for node in old} - here)
        try:
            found = kind.find(directory, self._ask, shell.stream)
            if found is None:
                return kind.start(directory, members, self._ask, shell.stream)
            known = {node.key for node in found.nodes}
            for key in known - (rented - again):
                found.remove(key, is_gone=True)
                known.discard(key)
            if new := [node for node in members if node.key not in known]:
                found.add(new)
        except TrainmasterError:
            self.memory(record.id).clear()  # perhaps something of what was taken for granted is not there
            raise
        return found

    def join(
        self, record: ClusterRecord, cluster: RecordedCluster, nodes: Sequence[tuple[Machine, NodeAccess]]
    ) -> None:
        """Further nodes become part of a cluster.

        Raises:
            TrainmasterError: one cannot be reached, or the engine does not start there.
        """
        members = [self._cluster_node(record, machine, access) for machine, access in nodes]
        shell = self._nodes
        for node, (_, access) in zip(members, nodes, strict=True):
            shell.add(node.key, access.target)
        again = self._claimed_again(record)
        cluster.end([node for node in members if node.key in again])
        cluster.add(members)

    def give_keys(self, record: ClusterRecord, accesses: Sequence[NodeAccess]) -> list[NodeAccess]:
        """Let the nodes in to each other, as MPI wants it; the nodes with the way to do so.

        Raises:
            TrainmasterError: it did not work on some.
        """
        from trainmaster.cluster.bootstrap.cluster_keys import ClusterKeys

        keys, memory = ClusterKeys(self.transport, record.id), self.memory(record.id)
        machines = [access.id for access in accesses]
        if not memory.have_keys(machines):
            keys.give([access.result for access in accesses], self._pair(record))
            memory.gave_keys(machines)
        return [replace(access, mpi_agent=keys.agent(access.result)) for access in accesses]

    def take_back(
        self,
        record: ClusterRecord,
        cluster: RecordedCluster | None,
        accesses: Sequence[NodeAccess],
        machines: Mapping[str, Node],
    ) -> None:
        """End what is ours on hosts of one's own: they go on without us.

        Args:
            record: the cluster.
            cluster: as formed; None for what an earlier control process may have started.
            accesses: nodes that were reached.
            machines: as the provider lists them, by id.
        """
        from trainmaster.cluster.bootstrap.cluster_keys import ClusterKeys
        from trainmaster.cluster.node_files.files import remove_run
        from trainmaster.providers.hosts_over_ssh import target_of

        rented = {key_of(machine.id) for machine in record.rented}
        if cluster is None and (old := self._recorded(record)):
            shell = self._nodes
            for node in machines.values():
                shell.add(key_of(node.id), target_of(node))
            kind = cluster_kind(record.plan.engine)
            cluster = kind(self._directory(record), old, self._ask, shell.stream)
        results = [access.result for access in accesses]
        with contextlib.suppress(TrainmasterError):
            if cluster is not None:
                cluster.stop({node.key for node in cluster.nodes} - rented)
        with contextlib.suppress(TrainmasterError):
            ClusterKeys(self.transport, record.id).remove(results)
        for access in accesses:
            with contextlib.suppress(TrainmasterError):
                remove_run(access, self.run)

    def end_machines(self, accesses: Sequence[NodeAccess], machines: Mapping[str, Node]) -> None:
        """Have rented machines end themselves: their provider does not answer, and they cost money.

        Args:
            accesses: nodes that were reached.
            machines: as the provider listed them last, by id.
        """
        from trainmaster.cluster.node_files.files import each

        def end(access: NodeAccess) -> None:
            switch = machines[access.id].switch or DIRECTORY
            with (
                contextlib.suppress(TrainmasterError, OSError),
                self.transport.connection(access.target) as connection,
            ):
                connection.run(end_command(switch), timeout_s=_RENEW_TIMEOUT_S)

        known = ((access, machines.get(access.id)) for access in accesses)
        there = [a for a, node in known if node and node.is_rented and node.state is not NodeState.GONE]
        each(there, end)

    def memory(self, cluster: str) -> NodeLedger:
        """What is known of a cluster's nodes from an earlier time."""
        with self._remembering:
            return self._memories.setdefault(cluster, NodeLedger(self._place(cluster)))

    def forget(self, record: ClusterRecord, accesses: Sequence[NodeAccess]) -> None:
        """Remove what is kept here of a cluster that was given back: its keys, and those of its machines."""
        if any(machine.rental.is_rented for machine in record.machines):
            for access in accesses:
                self.transport.forget(access.target)
        self.memory(record.id).clear()
        shutil.rmtree(self._place(record.id), ignore_errors=True)

    def head_of(self, record: ClusterRecord) -> str:
        """Id of the machine that an earlier control process's cluster stands on; empty if it is not there."""
        recorded = self._recorded(record)
        keys = {key_of(machine.id): machine.id for machine in record.rented}
        if recorded and cluster_kind(record.plan.engine).has_head:
            recorded = recorded[:1]
        return next((keys[node.key] for node in recorded if node.key in keys), "")

    @staticmethod
    def _claimed_again(record: ClusterRecord) -> set[str]:
        """Hosts that were given up: what runs there ends first, as agents of another version would refuse."""
        over = {machine.id for machine in record.machines if machine.is_over}
        return {key_of(m.id) for m in record.rented if m.id in over and not m.has_joined}

    def _recorded(self, record: ClusterRecord) -> list[ClusterNode]:
        """Nodes of the cluster that was started last, the head first."""
        return recorded(self._directory(record))[0]

    @cached_property
    def _nodes(self) -> SshNodes:
        return SshNodes(self.connections)

    def _ask(self, node: ClusterNode, command: Sequence[str], stdin: bytes) -> bytes:
        """Run a command on a node, when what was written of its cluster is safe."""
        self._saved()
        return self._nodes.run(node, command, stdin)

    def _pair(self, record: ClusterRecord) -> KeyPair:
        from trainmaster.transport.key_pairs import KeyPair, make_key_pair

        path = self._place(record.id) / _KEY
        with self._packing:
            if not path.exists():
                pair = make_key_pair()
                write_private(path, f"{pair.public}\n{pair.private}".encode())
            public, _, private = path.read_text().partition("\n")
        return KeyPair(private=private, public=public)

    def _directory(self, record: ClusterRecord) -> Path:
        return self._place(record.id) / str(record.formed)

    def _place(self, cluster: str) -> Path:
        return self.home.root / "clusters" / cluster

    def _cluster_node(self, record: ClusterRecord, machine: Machine, access: NodeAccess) -> ClusterNode:
        from trainmaster.cluster.bootstrap.cluster_keys import ClusterKeys
        from trainmaster.executors.gangs.engine import ClusterNode

        keys = ClusterKeys(self.transport, record.id)
        short = hashlib.sha256(record.id.encode()).hexdigest()[:5]
        place = f"{self.root}/{short}{record.formed}"
        role = next(role for seat, role in record.seats if seat == machine.seat)
        labels = {
            **role.labels,
            "role": machine.role,
            "market": "spot" if machine.rental.spot else "on-demand",
        }
        return ClusterNode(
            key=key_of(machine.id),
            address=access.address,
            slots=machine.rental.slots,
            directory=place,
            home=f"{place}/node",
            labels=labels,
            gpus=tuple(str(index) for index in range(machine.rental.gpus)),
            python=access.python,
            to_others=("ssh", "-F", keys.config(access.result)) if access.mpi_agent else (),
            lease_s=self.lease_s,
        )


def is_there(node: Node | None) -> bool:
    """Whether a machine runs, as its provider says."""
    return node is not None and node.state in (NodeState.READY, NodeState.LEAVING)


def words(error: Exception) -> str:
    """One line for the user."""
    return one_line(error) if isinstance(error, TrainmasterError) else f"{type(error).__name__}: {error}"
