"""Directories to and from nodes: `NodeFiles` moves them, `prepare_node` makes the place where they go.

`NodeProbe`: whether anything was left in directories of nodes, asked for many attempts in one go.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from trainmaster.cluster.bootstrap.host_programs.answering import explain
from trainmaster.cluster.bootstrap.host_result import program_answer, run_host_program
from trainmaster.cluster.node_access import NodeAccess
from trainmaster.cluster.node_files.trees import FILE, FOLDER, LINK, TreeEntry, digest, pack, scan
from trainmaster.cluster.node_files.worker_client import NodeWorker
from trainmaster.cluster.node_links import NodeLinks
from trainmaster.control.task.layout import Home
from trainmaster.dataclass import dataclass
from trainmaster.library import library_of_nodes
from trainmaster.transport.base import CommandError, Result

_PROBE_S: Final = 60.0
_BEGIN, _END = "@@begin", "@@end"
# What goes wrong is something, too: then it is looked at more closely.
_ASK: Final = 't() { n=$1; shift; [ -z "$(find -H "$@" -mindepth 1 -print -quit 2>&1)" ] || echo "$n"; }'
_LOST: Final = "@@lost"
_RUN: Final = "@@run "
_ERROR: Final = "error: "
#: Whether data are at a place: a link that leads somewhere, a mount that answers, or files.
_HOLDS: Final = (
    'h() { if [ -L "$1" ]; then [ -d "$1/" ]; return; fi; '
    'timeout 20 stat -f -- "$1" >/dev/null 2>&1 || return 1; '
    '[ "$(stat -c %d -- "$1")" != "$(stat -c %d -- "${1%/*}")" ] || '
    '[ -n "$(find "$1" -mindepth 1 -maxdepth 1 -print -quit 2>/dev/null)" ]; }; '
)
_DIGEST_CHARACTERS: Final = 20


class NodeProbe:
    """Asks nodes; threads share it, and the answers that are awaited.

    Args:
        links: to the nodes.
    """

    def __init__(self, links: NodeLinks) -> None:
        self._links = links
        self._changed = threading.Condition()
        self._waiting: dict[str, list[tuple[Sequence[str], Future[bool]]]] = {}
        self._busy: set[str] = set()

    def are_empty(self, access: NodeAccess, directories: Sequence[str]) -> bool:
        """Whether directories are there and nothing at all is in them.

        Raises:
            CommandError: the node answers something else.
            UnreachableError: it cannot be reached.
        """
        answer, node = Future[bool](), access.id
        with self._changed:
            self._waiting.setdefault(node, []).append((directories, answer))
            self._changed.wait_for(lambda: answer.done() or node not in self._busy)
            if answer.done():
                return answer.result()
            self._busy.add(node)
            asked, answers = zip(*self._waiting.pop(node), strict=True)
        try:
            for each, is_empty in zip(answers, self._ask(access, asked), strict=True):
                each.set_result(is_empty)
        except Exception as error:  # noqa: BLE001 - each of them gets it
            for each in answers:
                each.set_exception(error)
        finally:
            with self._changed:
                self._busy.discard(node)
                self._changed.notify_all()
        return answer.result()

    def _ask(self, access: NodeAccess, asked: Sequence[Sequence[str]]) -> list[bool]:
        calls = "".join(f"t {n} {shlex.join(each)}; " for n, each in enumerate(asked))
        command = f"{_ASK}; echo {_BEGIN}; {calls}echo {_END}"
        result = self._links.use(access, lambda link: link.run(command, timeout_s=_PROBE_S))
        lines = result.out.partition(f"{_BEGIN}\n")[2].splitlines()
        if result.code != 0 or lines[-1:] != [_END]:
            raise CommandError(f"{access.target.shown}: {result.last_words}")
        full = set(lines[:-1])
        return [str(number) not in full for number in range(len(asked))]


S = TypeVar("S")
T = TypeVar("T")

#: Nodes that are talked to at the same time.
AT_ONCE: Final = 16
_TIMEOUT_S: Final = 120.0
_REMOVED_S: Final = 600.0


def each(nodes: Sequence[S], work: Callable[[S], T]) -> list[T]:
    """Do something to several nodes at the same time; results in their order, or the first error."""
    if len(nodes) <= 1:
        return [work(node) for node in nodes]
    with ThreadPoolExecutor(min(AT_ONCE, len(nodes)), "nodes") as pool:
        return list(pool.map(work, nodes))


class NodeFiles:
    """Moves directories. Threads share it; close it."""

    def __init__(self) -> None:
        self.links = NodeLinks()
        self.probe = NodeProbe(self.links)
        self._pushed: dict[tuple[str, str, str], str] = {}
        self._locks: dict[tuple[str, str, str], threading.Lock] = {}
        self._guard = threading.Lock()

    def close(self) -> None:
        """Hang up."""
        self.links.close()

    def shell(self, access: NodeAccess, command: str, timeout_s: float = _TIMEOUT_S) -> Result:
        """Run a command that may be repeated."""
        return self.links.use(access, lambda connection: connection.run(command, timeout_s=timeout_s))

    def make(self, access: NodeAccess, directories: Sequence[str]) -> None:
        """Make directories, and those above them.

        Raises:
            UsageError: there is no room.
            CommandError: it is not possible.
        """
        if self.shell(access, f"mkdir -p -- {shlex.join(directories)}").code == 0:
            return
        # A shell says why in words only; our program takes longer to begin.
        with self.worker(access) as worker:
            worker.make(directories)

    def worker(self, access: NodeAccess) -> NodeWorker:
        """Our program on a node, for a ``with``."""
        return NodeWorker(self.links, access)

    def reach(self, access: NodeAccess, uri: str, credentials: Mapping[str, str]) -> None:
        """See that a node can use a store; see `NodeWorker.reach`."""
        with self.worker(access) as worker:
            worker.reach(uri, credentials)

    @contextlib.contextmanager
    def workers(self) -> Iterator[Callable[[NodeAccess], NodeWorker]]:
        """Our program on nodes, one on each that is asked for, while inside ``with``."""
        known: dict[str, NodeWorker] = {}
        guard = threading.Lock()

        def of(access: NodeAccess) -> NodeWorker:
            with guard:
                return known.setdefault(access.id, self.worker(access))

        try:
            yield of
        finally:
            for worker in known.values():
                worker.close()

    def push(self, access: NodeAccess, source: Path, target: str, *, is_shared: bool = False) -> None:
        """Make a directory on a node what one here is; only what differs is sent, whole or not at all.

        Args:
            access: the node.
            source: here; its links that lead outside are followed.
            target: there.
            is_shared: others look for the same content there: it is stamped, and sent once.

        Raises:
            UsageError: there is no room.
            CommandError: the node cannot take it.
            OSError: it cannot be read here.
        """
        wanted = scan(os.fspath(source), follow=True)
        stamp = digest(wanted)
        key = (access.seat, access.id, target)
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if is_shared and self._pushed.get(key) == stamp:
                return

            def give(there: set[TreeEntry]) -> tuple[int, Iterable[bytes]]:
                missing = [entry for entry in wanted if entry.kind == FILE and entry.content not in there]
                return sum(entry.size for entry in missing), _pieces(source, missing)

            with self.worker(access) as worker:
                worker.push(target, wanted, give, is_shared=is_shared)
            if is_shared:
                with self._guard:
                    self._pushed[key] = stamp


def prepare_node(access: NodeAccess, run: str, snapshot: Path) -> None:
    """Make our directory on a node, and in it the run's working copy of the code; safe to repeat.

    What the bootstrap put at the plan's ``code_directory`` is copied: members may write into theirs.

    Args:
        access: the node, bootstrapped with the code.
        run: its id.
        snapshot: the code here: layers know nothing of links and of empty directories.

    Raises:
        CommandError: the node cannot take it, or the directory is somebody else's.
    """
    plan = access.result.plan
    assert plan is not None
    entries = scan(os.fspath(snapshot))
    order = {
        "root": access.root,
        "run": run,
        "layer": plan.code_directory,
        "links": [[entry.path, entry.target] for entry in entries if entry.kind == LINK],
        "folders": [entry.path for entry in entries if entry.kind == FOLDER],
        "python": access.target.python or "python3",
        "otherwise": plan.host_python.path,
        "files": {f"lib/{name}": text for name, text in library_of_nodes().items()},
    }
    with access.connection() as connection:
        result = run_host_program(connection, _python(access), "place.py", order, _TIMEOUT_S)
    if program_answer(result) != "done":
        raise CommandError(f"{access.target.shown}: {program_answer(result)}")


def remove_run(access: NodeAccess, run: str) -> None:
    """Remove all that a run has on a node but data and environments, which others may use.

    Raises:
        CommandError: it cannot be removed.
    """
    with access.connect() as connection:
        place = f"{access.root}/runs/{run}"
        command = f"{end_mounts_command(place)}; exec rm -rf -- {shlex.quote(place)}"
        connection.check(command, timeout_s=_REMOVED_S)


def _pieces(source: Path, missing: list[TreeEntry]) -> Iterator[bytes]:
    try:
        yield from pack(os.fspath(source), missing)
    except OSError as error:
        raise CommandError(f"here: {explain(error, os.fspath(source))}") from error


def _python(access: NodeAccess) -> str:
    assert access.result.plan is not None
    return access.result.plan.host_python.path


def look_command(there: str, cache: str) -> str:
    """What to ask a node's shell; `heard` understands the answer.

    Args:
        there: where the data are.
        cache: that of the node's mounts.
    """
    from trainmaster.volumes.mounting.providing import SETTLED

    log = f"{cache}/mounts/{hashlib.sha256(os.fsencode(there)).hexdigest()[:16]}.log"
    return (
        f"{_HOLDS} h {shlex.quote(there)} || echo {_LOST}; "
        f"grep -s -e '^{_ERROR}' -e '^{SETTLED}$' {shlex.quote(log)} | tail -n 1; true"
    )


def heard(said: str) -> tuple[bool, str]:
    r"""Whether nothing is there any more, and what went wrong last with a mount, in its own words.

    >>> heard("@@lost\nerror: the token has expired\n")
    (True, 'the token has expired')
    """
    lines = said.splitlines()
    words = next((line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)), "")
    return _LOST in lines, words


def end_mounts_command(directory: str) -> str:
    """A shell command that ends what is mounted below a directory, and removes an HDFS that lies there.

    What reads a mount still may finish. Without it, removing the directory would go through a whole
    volume, file by file, in vain; and daemons would go on writing there.
    """
    return (
        # The process that looks after daemons ends them when its order is gone, and then lets go of its lock.
        f"for tm in {shlex.quote(directory)}/hdfs {shlex.quote(directory)}/*/hdfs; do "
        'if [ -e "$tm/order.json" ]; then rm -f -- "$tm/order.json"; '
        'timeout 20 flock -s "$tm/pid" true && rm -rf -- "$tm"; fi; done; '
        # The kernel's table knows no links.
        f"below=$(cd -- {shlex.quote(directory)} 2>/dev/null && pwd -P) && "
        'while read -r _ _ _ _ at _; do case $at in "$below"/*) '
        'umount -l -- "$at" 2>/dev/null || fusermount3 -u -z -q -- "$at" 2>/dev/null || '
        'fusermount -u -z -q -- "$at" ;; '
        "esac; done < /proc/self/mountinfo"
    )


def end_setups_command(code: str) -> str:
    """A shell command that ends what makes an environment for the code in a directory.

    The worker that has started it ends its container, if it has one.
    """
    from trainmaster.control.attempt.setup import OF_VARIABLE  # few runs need it

    mark = shlex.quote(f"{OF_VARIABLE}={code}")
    return (  # again and again: a process may fork between the look and its end
        'tm_try=0; while [ "$tm_try" -lt 50 ]; do '
        f"tm_all=$(grep -lzxF -- {mark} /proc/[0-9]*/environ 2>/dev/null); "
        '[ -n "$tm_all" ] || break; tm_try=$((tm_try + 1)); '
        'for tm in $tm_all; do tm=${tm#/proc/}; kill -KILL "${tm%/environ}" 2>/dev/null; done; done; true'
    )


def mounted_runs_command(runs: str) -> str:
    """What to ask a node's shell for the runs that have a mount, an HDFS or a setup; see `mounted_runs`.

    Args:
        runs: the directory of all runs there.
    """
    from trainmaster.control.attempt.setup import OF_VARIABLE

    return (
        f"below=$(cd -- {shlex.quote(runs)} 2>/dev/null && pwd -P) && "
        'while read -r _ _ _ _ at _; do case $at in "$below"/*) '
        f'at=${{at#"$below"/}}; echo "{_RUN}${{at%%/*}}" ;; esac; done < /proc/self/mountinfo && '
        'for at in "$below"/*/*/hdfs/order.json; do [ ! -e "$at" ] || '
        f'{{ at=${{at#"$below"/}}; echo "{_RUN}${{at%%/*}}"; }}; done; '
        f"grep -hazo -- {shlex.quote(f'^{OF_VARIABLE}=.*')} /proc/[0-9]*/environ 2>/dev/null | "
        f"tr '\\0' '\\n' | while read -r at; do case $at in {shlex.quote(f'{OF_VARIABLE}={runs}/')}*) "
        f'at=${{at#*={shlex.quote(f"{runs}/")}}}; echo "{_RUN}${{at%%/*}}" ;; esac; done; true'
    )


def mounted_runs(said: str) -> list[str]:
    r"""The ids of the runs.

    >>> mounted_runs("hello\n@@run a-1\n@@run a-1\n@@run b-2\n")
    ['a-1', 'b-2']
    """
    found = (line.removeprefix(_RUN) for line in said.splitlines() if line.startswith(_RUN))
    return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class NodePaths:
    """Maps paths of this machine to paths of nodes, the same on all of them.

    Attributes:
        home: here.
        run: whose directory is meant.
        root: on the nodes.
    """

    home: Home
    run: str
    root: str

    def there(self, here: Path) -> str:
        """The place on nodes of the run's own directory, of environments, or of data of the user.

        >>> home = Home(Path("/home/me/.tm"), Path("/home/me/.cache"), "", "")
        >>> NodePaths(home, "r1", "/var/tmp/tm").there(Path("/home/me/.tm/runs/r1/code"))
        '/var/tmp/tm/runs/r1/code'
        """
        for base, below in (
            (self.home.run_directory(self.run), f"runs/{self.run}"),
            (self.home.cache / "environments", "environments"),
        ):
            if here.is_relative_to(base):
                return str(Path(self.root, below, here.relative_to(base)))
        digest = hashlib.sha256(str(here).encode("utf-8", "surrogateescape")).hexdigest()[:_DIGEST_CHARACTERS]
        return f"{self.root}/data/{digest}/{here.name or 'data'}"

    def here(self, there: str) -> Path:
        """The place here of something in the run's directory of a node.

        Raises:
            ValueError: it lies somewhere else.
        """
        return self.home.run_directory(self.run) / Path(there).relative_to(f"{self.root}/runs/{self.run}")
