"""`NodeRoles`: the roles of an experiment on the nodes of a gang, once per node and content.

`RoleState`: what a machine keeps of its roles, and how what a call has left on it is ended. Pure.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import shlex
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from trainmaster.cluster.member_places import Members, distinct
from trainmaster.cluster.node_access import NodeAccess
from trainmaster.cluster.node_files.files import NodeFiles, each
from trainmaster.cluster.roles.ansible_output import AnsibleOutput, read_output
from trainmaster.cluster.roles.playbook import (
    VARIABLE,
    RoleHost,
    host_names,
    known_lines,
    make_inventory,
    make_playbook,
    settings_of,
    wanted_of,
)
from trainmaster.cluster.roles.role_sources import RoleSources
from trainmaster.control.checks import ansible
from trainmaster.control.checks.ansible import CALL_VARIABLE, RUN_VARIABLE, find_program
from trainmaster.control.checks.role_files import read_role
from trainmaster.control.task.job_context import TaskContext
from trainmaster.dataclass import dataclass, field
from trainmaster.spec.errors import TrainmasterError, UsageError
from trainmaster.spec.processes import end_marked
from trainmaster.spec.roles import Roles
from trainmaster.transport.base import CommandError, UnreachableError


@dataclass(frozen=True, slots=True)
class RoleState:
    """What stands in a file of the machine.

    Attributes:
        have: digests of the roles that it has, by how the recipe names them.
        call: that gives it roles now, or did when its driver was killed.
    """

    have: Mapping[str, str] = field(default_factory=dict)
    call: str = ""

    @classmethod
    def from_text(cls, text: str) -> RoleState:
        """Read it; a machine whose file says nothing that we understand has no roles."""
        try:
            found = json.loads(text)
        except ValueError:
            return cls()
        have, call = (found.get("have"), found.get("call")) if isinstance(found, dict) else (None, None)
        return cls(have if isinstance(have, dict) else {}, call if isinstance(call, str) else "")

    def begun(self, names: Iterable[str], call: str) -> RoleState:
        """While these roles are run: if that ends in between, it has none of them."""
        gone = set(names)
        return RoleState({name: digest for name, digest in self.have.items() if name not in gone}, call)

    def ended(self, has: Mapping[str, str]) -> RoleState:
        """When nothing runs any more, and it has these roles besides."""
        return RoleState({**self.have, **has})

    def lacks(self, wanted: Mapping[str, str]) -> bool:
        """Whether one of these roles is missing, or was another one when it was run."""
        return any(self.have.get(name) != digest for name, digest in wanted.items())


def read_command(root: str) -> str:
    """A command that says what the file says; nothing without one."""
    return f"cat -- {shlex.quote(_file(root))} 2>/dev/null || true"


def write_command(root: str, state: RoleState) -> str:
    """A command that replaces the file."""
    file = shlex.quote(_file(root))
    said = shlex.quote(json.dumps({"have": dict(state.have), "call": state.call}))
    folder = shlex.quote(f"{root}/roles")
    return f"mkdir -p -- {folder} && printf %s {said} > {file}.new && mv -f -- {file}.new {file}"


def end_command(call: str) -> str:
    """A command that kills what tasks of a call have left: a login that is lost does not end it."""
    mark = shlex.quote(f"{CALL_VARIABLE}={call}")
    script = (
        f"n=0; while found=$(grep -lF -- {mark} /proc/[0-9]*/environ 2>/dev/null); "
        '[ -n "$found" ] && [ $n -lt 50 ]; do '
        "for each in $found; do pid=${each#/proc/}; kill -9 ${pid%/environ}; done; n=$((n + 1)); done"
    )
    as_root = f"[ $(id -u) = 0 ] || sudo -n sh -c {shlex.quote(script)}"  # of tasks with `become`
    return f"{{ sh -c {shlex.quote(script)}; {as_root}; }} >/dev/null 2>&1 || true"


def _file(root: str) -> str:
    return f"{root}/roles/state.json"


#: Machines that Ansible works at together; a task of it costs this machine a process each.
_MOST_FORKS: Final = 32
#: What they are called in `trainmaster logs`.
_LOG: Final = "roles"
_LOOK_S: Final = 0.2
_ENDED: Final = "roles: ended with its run"
_AGAIN: Final = "`trainmaster resume` runs them again."


@dataclass(frozen=True, slots=True)
class _Pending:
    """A node that gets its roles now."""

    node: NodeAccess
    host: RoleHost
    state: RoleState
    wanted: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Call:
    """What all commands of Ansible for an attempt share: where they keep things, and who hears them."""

    context: TaskContext
    roles: Roles
    directory: Path
    say: _Masked


class NodeRoles:
    """Threads share it; close it.

    Args:
        files: of nodes.
        run_directory: of the run here.
    """

    def __init__(self, files: NodeFiles, run_directory: Path) -> None:
        self._files = files
        self._run_directory = run_directory
        self._over = threading.Event()
        self._guard = threading.Lock()
        self._is_swept = False

    def close(self) -> None:
        """End what goes on."""
        self._over.set()

    def play(self, members: Members, context: TaskContext) -> None:
        """Give the nodes of an attempt the roles of its experiment, those that have them not; safe to repeat.

        Raises:
            UsageError: a role failed, hangs, or is none.
            TrainmasterError: a node cannot be reached.
        """
        roles = context.experiment.roles
        if roles is None:
            return
        self._sweep()
        with _call_directory() as directory, context.place.log(_LOG).open("ab") as log:
            call = _Call(context, roles, directory, _Masked(context, log))
            sources = RoleSources(
                roles,
                context.home.code_directory(context.run),
                context.home.cache / "roles",
                lambda order: self._fetch(order, call),
            )
            found = sources.directories()
            nodes = distinct(members)
            hosts = [
                _host_of(shown, node, tuple(name for name, its in members if its.id == node.id))
                for shown, node in zip(host_names([node.id for node in nodes]), nodes, strict=True)
            ]
            digests = _digests(found, hosts, call)
            with self._locked(nodes, context):
                states = each(nodes, self._settled)
                pending = [
                    _Pending(node, host, state, wanted)
                    for node, host, state in zip(nodes, hosts, states, strict=True)
                    if state.lacks(wanted := wanted_of(host.groups, digests))
                ]
                if pending:
                    self._run(pending, hosts, found, call, sources.settings)

    def _run(
        self,
        pending: Sequence[_Pending],
        hosts: Sequence[RoleHost],
        found: Mapping[str, Mapping[str, Path]],
        call: _Call,
        collections: Mapping[str, str],
    ) -> None:
        context, directory = call.context, call.directory
        known = directory / "known_hosts"
        known.write_text("".join(f"{line}\n" for line in known_lines(hosts)))
        now = [one.host.name for one in pending]
        (directory / "inventory.json").write_text(json.dumps(make_inventory(hosts, now, known), indent=1))
        directories = {group: list(its.values()) for group, its in found.items()}
        given = {
            group: {path: call.roles.variables_of(group, name) for name, path in its.items()}
            for group, its in found.items()
        }
        playbook = make_playbook(directories, context.variables, {CALL_VARIABLE: str(directory)}, given)
        (directory / "playbook.json").write_text(json.dumps(playbook, indent=1))
        variables = {
            **settings_of(directory, min(len(now), _MOST_FORKS), pending[0].node.root, _above(found)),
            **{f"{VARIABLE}{name}": value for name, value in context.variables.items()},
            **collections,
        }
        each(pending, lambda one: self._write(one.node, one.state.begun(one.wanted, str(directory))))
        command = ["ansible-playbook", "-i", str(directory / "inventory.json")]
        code = self._call([*command, str(directory / "playbook.json")], call, variables)
        if code == 0:
            each(pending, lambda one: self._write(one.node, one.state.ended(one.wanted)))
            return
        with contextlib.suppress(TrainmasterError):  # what stays, the next one ends
            each(pending, lambda one: self._end(one, code, directory))
        self._refuse(code, read_output(call.say.text), {one.host.name: one.node for one in pending}, call)

    def _refuse(
        self, code: int | None, said: AnsibleOutput, nodes: Mapping[str, NodeAccess], call: _Call
    ) -> None:
        """Say what went wrong: a role's fault is the user's, a silent node's is not."""
        context = call.context
        top = f"{context.home.code_directory(context.run)}/"
        log = context.place.log(_LOG)
        hint = f"All that Ansible said: {log}, or trainmaster logs {context.run} --member {_LOG}"
        failed = [each_ for each_ in said.failed if not each_.is_unreachable]
        if code is None and not self._over.is_set():
            silent = ", ".join(nodes[name].target.shown for name in said.silent(list(nodes)))
            where = f" at {said.task.removeprefix(top)!r}" if said.task else ""
            place = f" ({said.place.removeprefix(top)})" if said.place else ""
            raise UsageError(
                f"roles: not done after {call.roles.timeout_s:g} s: {silent} still{where}{place}",
                f"Allow more by `timeout` in `roles`, or mend the task. {hint}",
            )
        if code is None:
            raise CommandError(_ENDED, _AGAIN)
        if failed:
            words = "; ".join(
                f"{nodes[f.host].target.shown if f.host in nodes else f.host}: {f.task.removeprefix(top)}"
                f"{f' ({f.place.removeprefix(top)})' if f.place else ''}: {f.words}"
                for f in failed
            )
            if "sudo" in words:
                hint = (
                    f"`become: true` needs a sudo there that asks for no password, or a login as root. {hint}"
                )
            raise UsageError(context.masked(f"roles: {words}"), hint)
        if said.failed:
            first = said.failed[0]
            shown = nodes[first.host].target.shown if first.host in nodes else first.host
            raise UnreachableError(f"{shown}: roles: {first.words}", hint)
        place = f"{said.error_place.removeprefix(top)}: " if said.error_place else ""
        if said.collection:
            hint = (
                f"ansible-galaxy collection install {said.collection}, where the run is driven; "
                "or name it under `collections` of a requirements.yml in `roles`."
            )
        words = said.error or f"Ansible ended with exit code {code}"
        raise UsageError(context.masked(f"roles: {place}{words}"), hint)

    # --- which nodes have theirs ----------------------------------------------------------------------------

    def _settled(self, node: NodeAccess) -> RoleState:
        """What a node has; nothing of a driver that was killed goes on there or here."""
        result = self._files.shell(node, read_command(node.root))
        state = RoleState.from_text(result.out)
        if state.call:
            end_marked(CALL_VARIABLE, state.call)
            self._files.shell(node, end_command(state.call))
        return state

    def _end(self, one: _Pending, code: int | None, directory: Path) -> None:
        if code is None:  # it was ended in the middle of a task
            self._files.shell(one.node, end_command(str(directory)))
        self._write(one.node, one.state.begun(one.wanted, ""))

    def _write(self, node: NodeAccess, state: RoleState) -> None:
        result = self._files.shell(node, write_command(node.root, state))
        if result.code != 0:
            raise CommandError(f"{node.target.shown}: {result.last_words}")

    @contextmanager
    def _locked(self, nodes: Sequence[NodeAccess], context: TaskContext) -> Iterator[None]:
        """Attempts that share a machine come one after the other, those of other runs, too."""
        places = sorted({_lock_name(node) for node in nodes})
        with ExitStack() as stack:
            for place in places:
                path = context.home.cache / "roles" / "machines" / f"{place}.lock"
                path.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(path.open("w"))
                while True:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        if self._over.wait(_LOOK_S):
                            raise CommandError(_ENDED, _AGAIN) from None
            yield

    def _sweep(self) -> None:
        """What a driver has left that was killed must not go on beside us."""
        with self._guard:
            if not self._is_swept:
                end_marked(RUN_VARIABLE, str(self._run_directory))
                self._is_swept = True

    def _fetch(self, order: Sequence[str], call: _Call) -> str | None:
        """Run a command of ansible-galaxy; its last words if it failed."""
        begin = len(call.say.text)
        is_done = self._call(order, call, settings_of(call.directory, 1, "", ())) == 0
        return None if is_done else call.say.text[begin:]

    def _call(self, command: Sequence[str], call: _Call, variables: Mapping[str, str]) -> int | None:
        marked = {**variables, RUN_VARIABLE: str(self._run_directory)}
        code = call.context.home.code_directory(call.context.run)
        command = [find_program(command[0]), *command[1:]]
        return ansible.call(command, code, marked, call.directory, call.say, call.roles.timeout_s, self._over)


class _Masked:
    """Takes what Ansible says, keeps it, and writes it to a log without the values of secrets."""

    def __init__(self, context: TaskContext, log: BinaryIO) -> None:
        from trainmaster.executors.telemetry.masking import SecretMask

        secrets = (context.variables.get(name, "") for name in context.experiment.secrets)
        self._mask = SecretMask([value for value in secrets if value])
        self._log = log
        self._said = bytearray()

    def __call__(self, piece: bytes) -> None:
        shown = self._mask.feed(piece)
        self._said += shown
        with contextlib.suppress(OSError):  # a full disk; what it says matters more
            self._log.write(shown)
            self._log.flush()

    @property
    def text(self) -> str:
        """All of it."""
        return (self._said + self._mask.rest()).decode(errors="replace")


@contextmanager
def _call_directory() -> Iterator[Path]:
    """A directory of ours with a short path, as sockets want it."""
    directory = Path(tempfile.mkdtemp(prefix="tm-"))
    try:
        for name in ("s", "tmp"):
            (directory / name).mkdir(mode=0o700)
        (directory / "ansible.cfg").write_text("")
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _host_of(name: str, node: NodeAccess, members: tuple[str, ...]) -> RoleHost:
    plan, facts = node.result.plan, node.result.facts
    assert plan is not None
    jump = node.target.jump
    return RoleHost(
        name=name,
        target=node.target,
        private=node.address,
        python=plan.host_python.path,
        members=members,
        gpus=len(facts.gpus) if facts is not None else 0,
        keys=node.transport.known_keys(node.target),
        jump_keys=() if jump is None else node.transport.known_keys(jump),
    )


def _digests(
    found: Mapping[str, Mapping[str, Path]], hosts: Sequence[RoleHost], call: _Call
) -> dict[str, dict[str, str]]:
    """Of the roles of each group, by how they are named."""
    peers = sorted([host.name, host.private, *host.members] for host in hosts)
    above, variables = _above(found), call.context.variables
    return {
        group: {
            name: read_role(path, above).digest_with(peers, variables, call.roles.variables_of(group, name))
            for name, path in its.items()
        }
        for group, its in found.items()
    }


def _above(found: Mapping[str, Mapping[str, Path]]) -> list[Path]:
    """Folders of roles: others that these depend on lie beside them."""
    return list(dict.fromkeys(path.parent for its in found.values() for path in its.values()))


def _lock_name(node: NodeAccess) -> str:
    """Of a machine, for a connection from here."""
    target = node.target
    way = [f"{each_.address}:{each_.port}" for each_ in (target.jump, target) if each_ is not None]
    return hashlib.sha256(" ".join(way).encode()).hexdigest()[:20]
