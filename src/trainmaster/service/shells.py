"""`find_shell`: what opens a shell where a run's member works, on this machine or on a rented one."""

from __future__ import annotations

import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from trainmaster.cluster.member_places import PLACES, read_places
from trainmaster.control.task.layout import RunFiles
from trainmaster.dataclass import dataclass
from trainmaster.providers.base import Node, NodeState, ProviderPlace, root_on_nodes
from trainmaster.providers.capabilities import TRANSPORTS, capabilities_of
from trainmaster.service.runs.known_nodes import KnownNodes, answers
from trainmaster.service.runs.summary import is_driven
from trainmaster.service.service import Service
from trainmaster.spec.errors import MissingPartError, NotFoundError, ProviderError, UsageError
from trainmaster.spec.private_files import write_private
from trainmaster.spec.processes import ON_MACHINE, begun_by
from trainmaster.transport.base import Target, openssh_options

#: A node has the code after so long while its run is driven.
_CODE_S: Final = 120
#: A run that begins has its first machines after so long.
_MACHINES_S: Final = 600.0
_LOOK_S: Final = 1.0
#: What OpenSSH exits with when it was ended, or has lost its machine.
_LOST: Final = 255
_PIECE_BYTES: Final = 64 << 10
#: What this machine's user has told OpenSSH does not count.
_NO_SETTINGS: Final = ("-F", "/dev/null")
#: What asks a command to end.
_ENDS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
# On a node: the directory of the run's code, which may just be on its way; then the environment of the first
# process of the member, if it runs there; then the line, by a shell, whose exit code `xargs` would hide. By
# itself `xargs` takes 128 KiB at once, and would begin the line again with the rest of a larger environment.
# What is found may have ended before it is read: nothing is said of that, and the next one is taken.
# Without a terminal nothing ends what was begun when the caller is gone: that of the login is looked at.
_THERE: Final = """\
( [ -d /proc/$PPID ] || exit
  while [ -d /proc/$$ ] && [ -d /proc/$PPID ]; do sleep 1; done
  [ ! -d /proc/$$ ] || kill -s TERM -- -$$ ) </dev/null >/dev/null 2>&1 &
n=0; until cd %(code)s 2>/dev/null; do
  n=$((n + 1)); [ $n -lt %(wait)d ] || { echo %(late)s >&2; break; }; sleep 0.2
done
line=%(line)s
of_member() {
  found=$(ls -d /proc/[0-9]*/environ 2>/dev/null | sort -t/ -k3n)
  for mark in %(marks)s; do
    [ -z "$found" ] || found=$(grep -lzxF "$mark" $found 2>/dev/null)
  done
  [ -z "$found" ] || grep -lz "^TRAINMASTER_ROLE=" $found 2>/dev/null
}
with_all() { xargs -x -s 2000000 -n 100000 -0 -a "$@"; }
%(inside)sfor one in $(of_member); do
  { code=$(exec 3>&1 >&4 5>&2 2>/dev/null; with_all "$one" sh -c '
    exec 2>&5 5>&-; line=$1; shift; [ $# -gt 0 ] || exit 1
    env -i TERM="${TERM:-}" SHELL="${SHELL:-/bin/sh}" "$@" sh -c "$line" 3>&- 4>&-
    echo $? >&3' sh "$line"); } 4>&1
  case $?:$code in 1:|123:) continue;; esac
  exit "${code:-255}"
done
exec sh -c "$line"
"""

# On a machine: what runs in a container is found by the engine's client, which has the attempt's name and the
# engine's settings in its environment. What is begun there has a mark: no engine ends it with its client.
_INSIDE: Final = """\
inner=%(inner)s
value() { { tr '\\0' '\\n' <"$2"; } 2>/dev/null | sed -n "s/^$1=//p" | head -n 1; }
ended() {
  leader=
  for one in $(ls -d /proc/[0-9]*/environ | sort -t/ -k3n | xargs grep -lzxF "TRAINMASTER_EXEC=$$")
  do
    session=$(sed 's/.*) //' "${one%%environ}stat" 2>/dev/null | cut -d' ' -f4)
    pid=${one#/proc/}; : "${leader:=$session}"
    [ "$session" != "$leader" ] || kill -s TERM "${pid%%/environ}"
  done 2>/dev/null
  exit 143
}
for one in $(of_member); do
  [ "$(readlink "${one%%environ}ns/mnt")" != "$(readlink /proc/self/ns/mnt)" ] || continue
  attempt=$(value TRAINMASTER_ATTEMPT_ID "$one")
  member=$(value TRAINMASTER_ROLE "$one")-$(value TRAINMASTER_INDEX "$one")
  for client in $(grep -lzxF "TRAINMASTER_ATTEMPT_ID=$attempt" /proc/[0-9]*/environ 2>/dev/null); do
    words=$(tr '\\0' '\\n' 2>/dev/null <"${client%%environ}cmdline")
    printf '%%s\\n' "$words" | grep -qxF "trainmaster.member=$member" || continue
    name=$(printf '%%s\\n' "$words" | sed -n '/^--name$/{n;p;q}')
    terminal=; [ ! -t 0 ] || terminal=-t
    trap ended TERM HUP INT
    { code=$(exec 3>&1 >&4 5>&2 2>/dev/null; with_all "$client" sh -c '
      exec 2>&5 5>&-
      inner=$1 line=$2 attempt=$3 member=$4 name=$5 terminal=$6 mark=$7 program=$8; shift 8
      [ $# -gt 0 ] || exit 1
      env -i TERM="${TERM:-}" "$@" "$program" exec -i $terminal -e "TRAINMASTER_EXEC=$mark" -w "$PWD" \
        "$name" bash -c "$inner" bash "$line" "$attempt" "$member" 3>&- 4>&-
      echo $? >&3' sh "$inner" "$line" "$attempt" "$member" "$name" "$terminal" "$$" "${words%%%%
*}"); } 4>&1
    case $?:$code in 1:|123:) continue;; esac
    exit "${code:-255}"
  done
done
%(outside)s
"""
# In a container, which may have nothing but a bash: the line, with what the first process of the member has.
_INNER: Final = """\
first=0
for file in /proc/[0-9]*/environ; do
  pid=${file//[!0-9]/} found=" " pairs=()
  while IFS= read -rd '' pair; do pairs+=("$pair"); done 2>/dev/null <"$file"
  for pair in "${pairs[@]}"; do
    case $pair in
      "TRAINMASTER_ATTEMPT_ID=$2") found+="attempt ";;
      "TRAINMASTER_ROLE=${3%-*}") found+="role ";;
      "TRAINMASTER_INDEX=${3##*-}") found+="index ";;
    esac
  done
  [[ $found == *attempt* && $found == *role* && $found == *index* ]] || continue
  ((first && pid > first)) || { first=$pid; given=("${pairs[@]}"); }
done 2>/dev/null
for pair in "${given[@]}"; do export -- "$pair"; done 2>/dev/null
exec bash -c "$1"
"""

if TYPE_CHECKING:
    from trainmaster.cluster.record import ClusterRecord


@dataclass(frozen=True, slots=True)
class MemberShell:
    """What opens a shell where a member is.

    Attributes:
        command: to execute.
        directory: in which; empty for that of the caller.
        environment: of the caller, or that of the member.
    """

    command: tuple[str, ...]
    directory: str
    environment: Mapping[str, str]

    def call(self, files: tuple[int, int, int]) -> int:
        """Execute it until it ends; its exit code.

        What asks this process to end ends all that it has begun, too, but for what has a session of its own:
        by SIGTERM, on a terminal by SIGHUP, as a closed one does. A terminal sends its SIGINT to the command
        itself, which may go on.

        Args:
            files: descriptors of its standard input, output and error.

        Raises:
            KeyboardInterrupt: it was ended by SIGINT.
        """
        asked: set[int] = set()
        begun: list[subprocess.Popen[bytes]] = []
        is_terminal = os.isatty(files[0])

        def end(number: int, _frame: FrameType | None) -> None:
            asked.add(number)
            if number != signal.SIGINT or not is_terminal:
                for pid in [each for one in begun for each in begun_by(one.pid)]:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGHUP if is_terminal else signal.SIGTERM)

        is_main = threading.current_thread() is threading.main_thread()  # others cannot have handlers
        heard = [each for each in _ENDS if is_main and signal.getsignal(each) != signal.SIG_IGN]
        before = {number: signal.signal(number, end) for number in heard}
        stdin, stdout, stderr = files
        where, environ = self.directory or None, dict(self.environment)
        try:
            begun += [
                subprocess.Popen(
                    self.command, stdin=stdin, stdout=stdout, stderr=stderr, cwd=where, env=environ
                )
            ]
            for number in asked:  # before there was anything to end
                end(number, None)
            code = begun[0].wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        # OpenSSH says that it lost its machine, and our clients that they were ended, where a program dies.
        is_cut = bool(asked) and not is_terminal and code in (_LOST, 128 + signal.SIGTERM)
        if signal.SIGINT in asked and (code < 0 or is_cut):
            raise KeyboardInterrupt
        if is_cut:
            return 128 + signal.SIGTERM
        return 128 - code if code < 0 else code


def find_shell(
    service: Service,
    run: str,
    member: str | None,
    command: Sequence[str],
    environ: Mapping[str, str],
    tell: Callable[[str], None] = lambda _: None,
    *,
    is_terminal: bool | None = None,
    patience_s: float = _MACHINES_S,
    is_for_others: bool = False,
    nodes: KnownNodes | None = None,
) -> MemberShell:
    """Where a member is, and by which command one gets there: in its container, if it has one and that runs.

    Args:
        service: of the home.
        run: its id.
        member: such as ``worker-1``; None for the first one there is.
        command: to run there instead of a shell; a single word is a line for a shell.
        environ: of the caller: credentials of the provider.
        tell: shows a line to the user: machines of a run that has just begun are waited for.
        is_terminal: it gets one there; None: if it is a shell.
        patience_s: for how long they are.
        is_for_others: who types there is not the user of this machine: the client does nothing else for him.
        nodes: machines of which the cloud need not be asked.

    Raises:
        NotFoundError: the run has no such member, or its machines are gone.
        UsageError: several of its clusters have a machine of that name.
        MissingPartError: there is no OpenSSH client here.
    """
    row = service.database.run_row(run)
    if capabilities_of(row["provider"]).is_here:
        shell = environ.get("SHELL") or "/bin/bash"
        check_member(service, run, member)
        code = service.home_of(run).code_directory(run)
        if not code.is_dir():
            raise NotFoundError(f"the working copy of {run} is gone: {code}", "It was removed by somebody.")
        if inside := _inside(service, row, member, command):
            there = _there(code, run, member, command, inside=inside, wait=1, late="")
            return MemberShell(("sh", "-c", there), str(code), dict(environ))
        words = (shell, *(["-c", _line(command)] if command else []))
        return MemberShell(words, str(code), {**environ, **_environment_of(run, member)})
    way = find_way(service, run, member, environ, tell, patience_s, is_for_others=is_for_others, nodes=nodes)

    code_there = f"{root_on_nodes(way.home_id)}/runs/{run}/code"
    there = _there(
        code_there,
        run,
        member,
        command,
        inside=_inside(service, row, member, command),
        wait=5 * _CODE_S if is_driven(row, service.database.clock_s()) else 1,
        late=f"{run}: its code is not on {way.machine} yet, or no longer",
    )
    there = f"exec sh -c {shlex.quote(there)}"  # whatever shell the login has
    has_terminal = not command if is_terminal is None else is_terminal
    words = (*way.command, *(("-t",) if has_terminal else ()), way.address, there)
    return MemberShell(words, "", dict(environ))


def _there(
    code: object, run: str, member: str | None, command: Sequence[str], *, inside: str, wait: int, late: str
) -> str:
    """What a shell of the machine does."""
    return _THERE % {
        "code": shlex.quote(str(code)),
        "marks": shlex.join(f"{name}={value}" for name, value in _marks(run, member).items()),
        "line": shlex.quote(_line(command) if command else 'exec "${SHELL:-/bin/sh}" -l'),
        "wait": wait,
        "late": shlex.quote(late),
        "inside": inside,
    }


def _inside(service: Service, row: Mapping[Any, Any], member: str | None, command: Sequence[str]) -> str:
    """What goes into the container of a member; empty where none is in one, or the machine is meant."""
    from trainmaster.service.runs.stored_recipe import stored_recipe

    run, experiments = row["id"], stored_recipe(row).experiments.values()
    if (command and command[0].startswith(ON_MACHINE)) or not any(each.container for each in experiments):
        return ""
    if member is not None and member not in members_of(service, run):  # the name of a machine
        return ""
    said = f"echo {shlex.quote(f'{run}: its container does not run, so this is its machine')} >&2"
    is_always = all(each.container for each in experiments)
    inside = _INSIDE % {"inner": shlex.quote(_INNER), "outside": said if is_always else ":"}
    return inside if command else f"given=$line; line='exec bash'\n{inside}line=$given\n"


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
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with (
            subprocess.Popen(words, env=dict(environ), **pipes) as client,  # type: ignore[call-overload]
            selectors.DefaultSelector() as ready,
        ):
            said = {client.stdout: bytearray(), client.stderr: bytearray()}
            for pipe in said:
                ready.register(pipe, selectors.EVENT_READ)
            try:
                while ready.get_map() and max(map(len, said.values())) <= most:
                    if (left_s := until - time.monotonic()) <= 0:
                        raise subprocess.TimeoutExpired(words, timeout_s)
                    for key, _ in ready.select(left_s):
                        data = os.read(key.fd, _PIECE_BYTES)
                        said[key.fileobj] += data
                        if not data:
                            ready.unregister(key.fileobj)
            finally:
                client.kill()
        out, error = (bytes(each[:most]) for each in said.values())
        return out, error


def find_way(
    service: Service,
    run: str,
    member: str | None,
    environ: Mapping[str, str],
    tell: Callable[[str], None] = lambda _: None,
    patience_s: float = _MACHINES_S,
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


def _provider_of(service: Service, run: str, cluster: str) -> str:
    """Of a cluster of a run; that of the run where it has no record."""
    of = {each["id"]: each["provider"] for each in service.database.clusters_of(run)}
    return str(of.get(cluster) or service.database.run_row(run)["provider"])


def _line(command: Sequence[str]) -> str:
    """A command for a shell, as ssh gives it: one word is what the user has quoted as a whole.

    >>> _line(["pwd; ls"]), _line(["cat", "a b"])
    ('pwd; ls', "cat 'a b'")
    """
    return command[0] if len(command) == 1 else shlex.join(command)


def _environment_of(run: str, member: str | None) -> dict[str, str]:
    """What a member that runs on this machine has in its environment; empty if none does."""
    return next((environ for _, environ in processes_here(run, member)), {})


def processes_here(run: str, member: str | None) -> Iterator[tuple[int, dict[str, str]]]:
    """Number and environment of each process on this machine of a member, or of any of the run's."""
    wanted = _marks(run, member)
    for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            texts = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape").split("\0")
        except OSError:  # gone, or another user's
            continue
        found = {name: value for name, mark, value in (text.partition("=") for text in texts) if mark}
        if "TRAINMASTER_ROLE" in found and wanted.items() <= found.items():
            yield pid, found


def _marks(run: str, member: str | None) -> dict[str, str]:
    """What tells a member in the environments of processes; ids of machines are no members' names."""
    role, _, index = (member or "").rpartition("-")
    named = role and index.isdecimal()
    return {"TRAINMASTER_RUN": run} | (
        {"TRAINMASTER_ROLE": role, "TRAINMASTER_INDEX": index} if named else {}
    )


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
        raise NotFoundError(f"{run} has no member {member!r}", f"It has {', '.join(sorted(known))}.")


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
