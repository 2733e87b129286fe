"""`NodeRoles`: the roles of an experiment on the nodes of a gang, once per node and content."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from trainmaster.cluster.attempt_nodes import distinct
from trainmaster.cluster.node_files.node_files import each
from trainmaster.cluster.roles.ansible_output import AnsibleOutput, read_output
from trainmaster.cluster.roles.playbook import (
    VARIABLE,
    RoleHost,
    digest_of,
    host_names,
    known_lines,
    make_inventory,
    make_playbook,
    settings_of,
)
from trainmaster.cluster.roles.role_files import digest_of_tree, require_role, required_names
from trainmaster.control.ansible import RUN_VARIABLE, call, find_program
from trainmaster.control.locking import locked
from trainmaster.control.marked_processes import end_marked
from trainmaster.spec.errors import UsageError
from trainmaster.spec.roles import Roles, is_requirements
from trainmaster.transport.errors import CommandError, UnreachableError

if TYPE_CHECKING:
    from trainmaster.cluster.attempt_nodes import Members
    from trainmaster.cluster.node_access import NodeAccess
    from trainmaster.cluster.node_files.node_files import NodeFiles
    from trainmaster.control.job_context import TaskContext

#: Machines that Ansible works at together; a task of it costs this machine a process each.
_MOST_FORKS: Final = 32
#: What they are called in `trainmaster logs`.
_LOG: Final = "roles"


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
        self._locks: dict[str, threading.Lock] = {}
        self._have: set[tuple[str, str]] = set()
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
        code = context.home.code_directory(context.run)
        self._sweep()
        with _call_directory() as directory, context.place.log(_LOG).open("ab") as log:
            say = _Masked(context, log)
            directories = self._directories(roles, code, context, directory, say)
            digests = {
                group: [digest_of_tree(path) for path in paths] for group, paths in directories.items()
            }
            nodes = distinct(members)
            names = [tuple(name for name, node in members if node.id == each_.id) for each_ in nodes]
            hosts = [
                _host_of(shown, node, its)
                for shown, node, its in zip(host_names([n.id for n in nodes]), nodes, names, strict=True)
            ]
            wanted = {
                node.id: digest_of(host.groups, digests) for node, host in zip(nodes, hosts, strict=True)
            }
            with self._locked([node.id for node in nodes]):
                has = each(nodes, lambda node: self._has(node, wanted[node.id]))
                pending = [
                    (node, host) for node, host, is_done in zip(nodes, hosts, has, strict=True) if not is_done
                ]
                if not pending:
                    return
                self._run(pending, hosts, roles, directories, context, directory, say)
                each([node for node, _ in pending], lambda node: self._mark(node, wanted[node.id]))

    def _run(
        self,
        pending: Sequence[tuple[NodeAccess, RoleHost]],
        hosts: Sequence[RoleHost],
        roles: Roles,
        directories: Mapping[str, Sequence[Path]],
        context: TaskContext,
        directory: Path,
        say: _Masked,
    ) -> None:
        known = directory / "known_hosts"
        known.write_text("".join(f"{line}\n" for line in known_lines(hosts)))
        now = [host.name for _, host in pending]
        (directory / "inventory.json").write_text(json.dumps(make_inventory(hosts, now, known), indent=1))
        playbook = make_playbook(directories, context.variables)
        (directory / "playbook.json").write_text(json.dumps(playbook, indent=1))
        above = {path.parent: None for paths in directories.values() for path in paths}
        settings = settings_of(directory, min(len(now), _MOST_FORKS), pending[0][0].root, list(above))
        variables = {f"{VARIABLE}{name}": value for name, value in context.variables.items()}
        command = [find_program("ansible-playbook"), "-i", str(directory / "inventory.json")]
        code = self._call(
            [*command, str(directory / "playbook.json")],
            context,
            {**settings, **variables, **self._collections(context)},
            directory,
            say,
            roles.timeout_s,
        )
        if code != 0:
            self._refuse(
                code, read_output(say.text), dict(zip(now, (n for n, _ in pending), strict=True)), context
            )

    def _refuse(
        self, code: int | None, said: AnsibleOutput, nodes: Mapping[str, NodeAccess], context: TaskContext
    ) -> None:
        """Say what went wrong: a role's fault is the user's, a node that does not answer is nobody's."""
        top = f"{context.home.code_directory(context.run)}/"
        log = context.place.log(_LOG)
        hint = f"All that Ansible said: {log}, or trainmaster logs {context.run} --member {_LOG}"
        failed = [each_ for each_ in said.failed if not each_.is_unreachable]
        if code is None and not self._over.is_set():
            silent = ", ".join(nodes[name].target.shown for name in said.silent(list(nodes)))
            where = f" at {said.task.removeprefix(top)!r}" if said.task else ""
            place = f" ({said.place.removeprefix(top)})" if said.place else ""
            timeout_s = context.experiment.roles.timeout_s if context.experiment.roles else 0
            raise UsageError(
                f"roles: not done after {timeout_s:g} s: {silent} still{where}{place}",
                f"Allow more by `timeout` in `roles`, or mend the task. {hint}",
            )
        if code is None:
            raise CommandError("roles: ended with its run", "`trainmaster resume` runs them again.")
        if failed:
            words = "; ".join(
                f"{nodes[f.host].target.shown if f.host in nodes else f.host}: {f.task.removeprefix(top)}"
                f"{f' ({f.place.removeprefix(top)})' if f.place else ''}: {f.words}"
                for f in failed
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

    # --- where roles come from ------------------------------------------------------------------------------

    def _directories(
        self, roles: Roles, code: Path, context: TaskContext, directory: Path, say: _Masked
    ) -> dict[str, list[Path]]:
        """Directories of roles, by group."""
        found: dict[str, list[Path]] = {}
        for group, entries in roles.groups.items():
            for entry in entries:
                if is_requirements(entry):
                    paths = self._required(code / entry, entry, context, directory, say)
                else:
                    paths = [require_role(code / entry, entry)]
                found.setdefault(group, []).extend(paths)
        return found

    def _required(
        self, file: Path, entry: str, context: TaskContext, directory: Path, say: _Masked
    ) -> list[Path]:
        """Have what a requirements.yml names brought here, once per content of the file."""
        place = self._place_of(file, entry, context)
        names, has_collections = required_names(_document(file, entry), entry)
        with locked(place):
            if not (place / "ready").exists():
                shutil.rmtree(place, ignore_errors=True)
                for kind, is_wanted in (("role", bool(names)), ("collection", has_collections)):
                    if is_wanted:
                        order = [find_program("ansible-galaxy"), kind, "install", "-r", str(file)]
                        order += ["-p", str(place / f"{kind}s")]
                        self._galaxy(order, entry, context, directory, say)
                place.mkdir(parents=True, exist_ok=True)
                (place / "ready").touch()
        return [require_role(place / "roles" / name, f"{entry}: {name}") for name in names]

    def _galaxy(
        self, order: list[str], entry: str, context: TaskContext, directory: Path, say: _Masked
    ) -> None:
        settings = settings_of(directory, 1, "", ())
        timeout_s = context.experiment.roles.timeout_s if context.experiment.roles else 0
        if self._call(order, context, settings, directory, say, timeout_s) != 0:
            tail = " / ".join(say.text.strip().splitlines()[-3:])
            raise UsageError(
                f"roles: what {entry} names cannot be had: {tail}",
                "Can this machine reach where it lies? Roles can also lie in the code.",
            )

    def _collections(self, context: TaskContext) -> dict[str, str]:
        """Where collections of requirements lie, before those of the user."""
        roles = context.experiment.roles
        code = context.home.code_directory(context.run)
        own = [
            str(self._place_of(code / entry, entry, context) / "collections")
            for entry in (roles.entries if roles else ())
            if is_requirements(entry)
        ]
        if not own:
            return {}
        usual = os.environ.get("ANSIBLE_COLLECTIONS_PATH")
        rest = usual or f"{Path('~/.ansible/collections').expanduser()}:/usr/share/ansible/collections"
        return {"ANSIBLE_COLLECTIONS_PATH": ":".join([*own, rest])}

    @staticmethod
    def _place_of(file: Path, entry: str, context: TaskContext) -> Path:
        try:
            digest = hashlib.sha256(file.read_bytes()).hexdigest()[:20]
        except OSError:
            raise UsageError(
                f"roles: there is no file {entry} in the code", "A path begins at the code's top."
            ) from None
        return context.home.cache / "roles" / digest

    # --- which nodes have theirs ----------------------------------------------------------------------------

    def _has(self, node: NodeAccess, digest: str) -> bool:
        if not digest or (node.id, digest) in self._have:
            return True
        if self._files.shell(node, f"test -e {shlex.quote(_marker(node, digest))}").code != 0:
            return False
        self._have.add((node.id, digest))
        return True

    def _mark(self, node: NodeAccess, digest: str) -> None:
        marker = shlex.quote(_marker(node, digest))
        result = self._files.shell(node, f"mkdir -p -- $(dirname {marker}) && touch -- {marker}")
        if result.code != 0:
            raise CommandError(f"{node.target.shown}: {result.last_words}")
        self._have.add((node.id, digest))

    @contextmanager
    def _locked(self, machines: Sequence[str]) -> Iterator[None]:
        """Attempts that share a machine come one after the other."""
        with self._guard:
            locks = [self._locks.setdefault(machine, threading.Lock()) for machine in sorted(machines)]
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            yield

    def _sweep(self) -> None:
        """What a driver has left that was killed must not go on beside us."""
        with self._guard:
            if not self._is_swept:
                end_marked(RUN_VARIABLE, str(self._run_directory))
                self._is_swept = True

    def _call(
        self,
        command: Sequence[str],
        context: TaskContext,
        variables: Mapping[str, str],
        directory: Path,
        say: _Masked,
        timeout_s: float,
    ) -> int | None:
        marked = {**variables, RUN_VARIABLE: str(self._run_directory)}
        code = context.home.code_directory(context.run)
        return call(command, code, marked, directory, say, timeout_s, self._over)


class _Masked:
    """Takes what Ansible says, keeps it, and writes it to a log without the values of secrets."""

    def __init__(self, context: TaskContext, log: BinaryIO) -> None:
        from trainmaster.executors.masking import SecretMask

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
    keys = node.ssh.host_keys
    jump = node.target.jump
    return RoleHost(
        name=name,
        target=node.target,
        private=node.address,
        python=plan.host_python.path,
        members=members,
        gpus=len(facts.gpus) if facts is not None else 0,
        keys=tuple(pin.key for pin in keys.pins(node.target)),
        jump_keys=tuple(pin.key for pin in keys.pins(jump)) if jump is not None else (),
    )


def _marker(node: NodeAccess, digest: str) -> str:
    return f"{node.root}/roles/{digest}"


def _document(file: Path, entry: str) -> object:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"roles: {entry} cannot be read: {said}") from None
