"""`find_way`: how to get to the machine of a member; which members a run has, and their processes here."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.cluster.member_places import PLACES, read_places
from trainmaster.control.task.layout import RunFiles
from trainmaster.dataclass import dataclass
from trainmaster.providers.base import Node, NodeState, ProviderPlace
from trainmaster.providers.capabilities import TRANSPORTS, capabilities_of
from trainmaster.service.runs.known_nodes import KnownNodes, answers
from trainmaster.service.runs.summary import is_driven
from trainmaster.service.service import Service
from trainmaster.spec.errors import MissingPartError, NotFoundError, ProviderError, UsageError, no_such_member
from trainmaster.spec.private_files import write_private
from trainmaster.spec.processes import said_by
from trainmaster.transport.base import Target, openssh_options

if TYPE_CHECKING:
    from trainmaster.cluster.record import ClusterRecord

#: A run that begins has its first machines after so long.
MACHINES_S: Final = 600.0
_LOOK_S: Final = 1.0
#: How often it is looked whether what is said on a machine takes too long.
_ANSWER_LOOK_S: Final = 0.2
#: What this machine's user has told OpenSSH does not count.
_NO_SETTINGS: Final = ("-F", "/dev/null")


@dataclass(frozen=True, slots=True)
class SshWay:
    """How OpenSSH gets to the machine of a member.

    Attributes:
        machine: its id.
        command: the client with its options; more of them may follow, then `address`.
        address: of the machine.
        home_id: of the home that has rented it: its directories bear that name.
        provider: whose machine it is; a run may be in several places.
    """

    machine: str
    command: tuple[str, ...]
    address: str
    home_id: str
    provider: str

    def ask(
        self, options: Sequence[str], command: str, environ: Mapping[str, str], timeout_s: float, most: int
    ) -> tuple[bytes, bytes]:
        """What a command says there, on standard output and error; a machine that says more is cut off.

        Args:
            options: more of the client's.
            command: for the shell of the login.
            environ: of the client.
            timeout_s: after which it is ended.
            most: bytes of each: whoever has the machine may have it say anything.

        Raises:
            subprocess.TimeoutExpired: it has not ended by then.
        """
        words, until = [*self.command, *options, self.address, command], time.monotonic() + timeout_s
        nothing, pipe, said = subprocess.DEVNULL, subprocess.PIPE, (bytearray(), bytearray())
        with subprocess.Popen(words, stdin=nothing, stdout=pipe, stderr=pipe, env=dict(environ)) as client:
            assert client.stdout is not None
            assert client.stderr is not None
            try:
                for which, piece in said_by(client, client.stdout, client.stderr, look_s=_ANSWER_LOOK_S):
                    said[which].extend(piece)
                    if len(said[which]) > most:
                        break
                    if time.monotonic() > until:
                        raise subprocess.TimeoutExpired(words, timeout_s)
            finally:
                client.kill()
        return bytes(said[0][:most]), bytes(said[1][:most])


def find_way(
    service: Service,
    run: str,
    member: str | None,
    environ: Mapping[str, str],
    tell: Callable[[str], None] = lambda _: None,
    patience_s: float = MACHINES_S,
    *,
    is_for_others: bool = False,
    nodes: KnownNodes | None = None,
) -> SshWay:
    """How to get to the machine of a member of a run that is on others than this one; see `find_shell`.

    Raises:
        ProviderError: another driver has rented it, and it does not let us in.
        UsageError: several of its clusters have a machine of that name.
    """
    place, node = _awaited(service, run, member, environ, tell, patience_s, nodes or KnownNodes())
    provider = _provider_of(service, run, node.cluster)
    client = TRANSPORTS.stated(capabilities_of(provider).reach, "CLIENT") or ""
    if not client and shutil.which("ssh") is None:
        raise MissingPartError("there is no OpenSSH client here", "apt install openssh-client")
    ssh = sys.executable if client else shutil.which("ssh") or "ssh"
    is_direct = not (node.jump or node.way)  # what leads there by other ways says itself what is wrong
    if node.address.startswith("-"):  # what a provider says is no option of OpenSSH's
        raise ProviderError(f"{node.id} of {run} has no address: {node.address}", "Ask who runs that place.")
    if is_direct and service.home_if_here(run) is None and not answers(node):
        raise ProviderError(
            f"{node.id} of {run} cannot be reached from here: nothing answers at port {node.port} of "
            f"{node.address}",
            "It was rented elsewhere, and may let in only those that drive it: do this there, or let SSH in "
            "from here in its security group. `trainmaster logs` shows what it does.",
        )
    if client:
        return SshWay(node.id, (ssh, "-P", "-m", client, node.way), node.address, place.identity, provider)
    words = (ssh, *(_closed(place, node) if is_for_others else ()), *_options(place, node, service.home.root))
    return SshWay(node.id, words, node.address, place.identity, provider)


def members_of(service: Service, run: str) -> set[str]:
    """Names of the members that tasks of a run have."""
    from trainmaster.control.task.gangs import member_names
    from trainmaster.service.runs.stored_recipe import experiments_in_all_sizes

    found = experiments_in_all_sizes(service.database, run)
    return {f"{role}-{index}" for each in found for role, index in member_names(each)}


def check_member(service: Service, run: str, member: str | None) -> None:
    """Refuse what is no member of a run.

    Raises:
        NotFoundError: there is none of that name; with those that there are.
    """
    if member is not None and member not in (known := members_of(service, run)):
        raise no_such_member(run, member, known)


def processes_here(run: str, member: str | None) -> Iterator[tuple[int, dict[str, str]]]:
    """Number and environment of each process on this machine of a member, or of any of the run's."""
    wanted = marks_of(run, member)
    for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            texts = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape").split("\0")
        except OSError:  # gone, or another user's
            continue
        found = {name: value for name, mark, value in (text.partition("=") for text in texts) if mark}
        if "TRAINMASTER_ROLE" in found and wanted.items() <= found.items():
            yield pid, found


def marks_of(run: str, member: str | None) -> dict[str, str]:
    """What tells a member in the environments of processes; ids of machines are no members' names."""
    role, _, index = (member or "").rpartition("-")
    named = role and index.isdecimal()
    return {"TRAINMASTER_RUN": run} | (
        {"TRAINMASTER_ROLE": role, "TRAINMASTER_INDEX": index} if named else {}
    )


def _provider_of(service: Service, run: str, cluster: str) -> str:
    """Of a cluster of a run; that of the run where it has no record."""
    of = {each["id"]: each["provider"] for each in service.database.clusters_of(run)}
    return str(of.get(cluster) or service.database.run_row(run)["provider"])


def _awaited(
    service: Service,
    run: str,
    member: str | None,
    environ: Mapping[str, str],
    tell: Callable[[str], None],
    patience_s: float,
    known: KnownNodes,
) -> tuple[ProviderPlace, Node]:
    """The machine of a member; while somebody drives the run, one that is on its way is waited for."""
    until = time.monotonic() + patience_s
    is_told = False
    while True:
        try:
            return _node(service, run, member, environ, known)
        except NotFoundError:
            row = service.database.run_row(run)
            is_coming = member is None or member in members_of(service, run)
            if not (is_coming and is_driven(row, service.database.clock_s())) or time.monotonic() > until:
                raise
        if not is_told:
            tell(f"{run}: waits for the machine of {member or 'its first member'}")
            is_told = True
        time.sleep(_LOOK_S)


def _node(
    service: Service, run: str, member: str | None, environ: Mapping[str, str], known: KnownNodes
) -> tuple[ProviderPlace, Node]:
    """The machine of a member, and what leads there: another driver may have the run meanwhile."""
    from trainmaster.cluster.record import ClusterRecord, ClusterState
    from trainmaster.providers.plugins import get_provider

    files = service.files_of(run)
    records = [ClusterRecord.of_row(row) for row in service.database.clusters_of(run)]
    alive = [r for r in records if r.state in (ClusterState.ACTIVE, ClusterState.KEPT) and r.rented]
    if not alive:
        raise NotFoundError(f"{run} has no machines now", "`trainmaster status` says how far it is.")
    record, wanted = _machine(files, run, member, alive)
    place = service.access_to(run, environ, record.provider)
    if (node := known.find(run, wanted)) is not None and node.cluster == record.id:
        return place, node
    for node in get_provider(record.provider, place).nodes(record.id):
        if node.id == wanted and node.state in (NodeState.READY, NodeState.LEAVING):
            known.note(run, node)
            return place, node
    raise _gone(run, wanted)


def _gone(run: str, machine: str) -> NotFoundError:
    return NotFoundError(
        f"the machine {machine} of {run} is gone", "Its run rents another one while it goes on."
    )


def _machine(
    files: RunFiles, run: str, member: str | None, records: Sequence[ClusterRecord]
) -> tuple[ClusterRecord, str]:
    """The machine of a member, with its cluster: where its newest attempt runs; or that of the name.

    Raises:
        NotFoundError: there is no such machine, or it is gone.
        UsageError: several clusters have a machine of that name.
    """
    places = sorted(
        (files.run_directory(run) / "tasks").glob(f"*/*/*/{PLACES}"), key=lambda path: path.stat().st_mtime
    )
    for path in reversed(places):
        known = read_places(path)
        machine_id = next(iter(known.values()), None) if member is None else known.get(member)
        if machine_id is not None:
            having = [each for each in records if each.machine(machine_id) is not None]
            if not having:
                raise _gone(run, machine_id)
            experiment = path.parents[2].name  # hosts of one's own may have the same name in two places
            return next(
                (each for each in having if experiment in each.plan.experiments), having[0]
            ), machine_id
    rented = [
        (record, record.name_of(machine.seat), machine) for record in records for machine in record.rented
    ]
    if member is None:
        return rented[0][0], rented[0][2].id
    named = [each for each in rented if member == each[2].id] or [
        each for each in rented if member in (each[1], each[2].seat)
    ]
    if len(named) > 1:
        which = ", ".join(f"{machine.id} (of {record.id})" for record, _, machine in named)
        raise UsageError(f"several clusters of {run} have a {member}", f"Say which: {which}.")
    if named:
        return named[0][0], named[0][2].id
    nodes = ", ".join(f"{name} ({machine.id})" for _, name, machine in rented)
    raise NotFoundError(f"{run} has no member and no machine {member!r}", f"Its machines are {nodes}.")


def _closed(place: ProviderPlace, node: Node) -> list[str]:
    """That a client does nothing else here (escape characters open ports), and lends nothing of ours."""
    settings = {
        "EscapeChar": "none",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "PermitLocalCommand": "no",
        "ControlPath": "none",
    }
    options = openssh_options(settings)
    # The user's own settings say how one logs in at a host to go through: only hosts of an owner have one.
    return options if node.jump and not place.team else [*options, *_NO_SETTINGS]


def _options(place: ProviderPlace, node: Node, home: Path) -> list[str]:
    """What a client needs for a machine. home: of the caller, which has met what one goes through."""
    from trainmaster.providers.hosts_over_ssh import target_of
    from trainmaster.transport.host_keys import FILE_NAME, shown_key_file

    target = target_of(node)
    met = place.root / FILE_NAME
    known = shown_key_file(place.home_root / "clusters" / node.cluster, node.id)  # removed with its cluster
    if not target.host_key:
        known = known if known.is_file() else met
    else:  # vouched for by the provider: no need to have met it
        line = f"{target.pin} {target.host_key}\n"
        if not known.is_file() or known.read_text() != line:  # other clients read it just now
            write_private(known, line.encode())
    settings = {
        "ConnectTimeout": "10",
        "ConnectionAttempts": "30",  # a second apart: a machine that runs may not listen yet
        "ServerAliveInterval": "15",  # one that is lost says nothing; three times, and it is given up
    }
    options = [*target.openssh(target.pin, known, settings), "-p", str(target.port), "-l", target.login]
    if target.jump is not None and target.jump.key is not None:
        way = _way_through(target.jump, target.jump.key, [met] if place.team else [met, home / FILE_NAME])
        way[1:1] = _NO_SETTINGS if place.team else []  # nothing that this machine's user has opens it
        options += ["-o", f"ProxyCommand={shlex.join(way)}"]
    elif node.jump:
        options += ["-J", node.jump]
    return options


def _way_through(jump: Target, key: Path, met: Sequence[Path]) -> list[str]:
    """To a host that this key opens; this home has met it, or its owner, whose settings say all else."""
    files = " ".join(f'"{file}"' for file in dict.fromkeys(met))
    words = ["ssh", "-o", f"UserKnownHostsFile={files} ~/.ssh/known_hosts", "-i", str(key)]
    words += ["-o", "IdentitiesOnly=yes", *(["-l", jump.user] if jump.user else [])]
    words += [] if jump.port == 22 else ["-p", str(jump.port)]
    return [*words, "-W", "%h:%p", jump.address]
