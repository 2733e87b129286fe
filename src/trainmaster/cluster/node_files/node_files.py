"""Directories to and from nodes: `NodeFiles` moves them, `prepare_node` makes the place where they go."""

from __future__ import annotations

import json
import os
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from trainmaster.cluster.bootstrap.guest.answering import explain
from trainmaster.cluster.bootstrap.guest.trees import (
    FILE,
    FOLDER,
    LINK,
    MARK,
    Draft,
    TreeEntry,
    TreeError,
    Unpacker,
    digest,
    pack,
    scan,
)
from trainmaster.cluster.bootstrap.guest_calls import ask_guest, guest_trouble, guest_words
from trainmaster.cluster.node_files.data_look import end_mounts_command
from trainmaster.cluster.node_files.node_probe import NodeProbe
from trainmaster.cluster.node_files.node_trees import Tree, parse_trees
from trainmaster.cluster.node_links import NodeLinks
from trainmaster.control.store_verdicts import Moment, StoreVerdict, verdict
from trainmaster.library import library_of_nodes
from trainmaster.spec.errors import TrainmasterError, UsageError
from trainmaster.transport.base import Result
from trainmaster.transport.errors import CommandError

if TYPE_CHECKING:
    from trainmaster.cluster.node_access import NodeAccess

T = TypeVar("T")

#: Nodes that are talked to at the same time.
AT_ONCE: Final = 16
#: A node gives up what does not arrive for so long, or what somebody else writes for so long.
_PATIENCE_S: Final = 60
_WAIT_S: Final = 1800
_LIST_TIMEOUT_S: Final = 120.0
_PLACE_TIMEOUT_S: Final = 120.0
_MOVE_TIMEOUT_S: Final = 600.0
#: So slow may a connection be; one that is dead is found out by other means.
_SLOWEST_BYTES_PER_S: Final = 250_000
_LISTING_BYTES: Final = 1 << 28
_PROGRAM: Final = ("trees.py", "files.py")
_NOISE_BYTES: Final = 1 << 20
#: What to do about a full disk.
NO_ROOM_HINT: Final = "Free some space there, or ask for machines with a larger `hardware.disk`."


def each(nodes: Sequence[NodeAccess], work: Callable[[NodeAccess], T]) -> list[T]:
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

    def shell(self, access: NodeAccess, command: str, timeout_s: float = _LIST_TIMEOUT_S) -> Result:
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
        order = {"do": "make", "directories": list(directories)}
        result = self.links.use(
            access, lambda on: ask_guest(on, _python(access), _PROGRAM, order, _LIST_TIMEOUT_S)
        )
        if guest_words(result) != "done":
            raise _refused(access, result)

    def look(self, access: NodeAccess, directories: Sequence[str]) -> list[Tree]:
        """What lies in directories of a node; nothing in those that do not exist.

        Raises:
            CommandError: one cannot be read.
        """
        found = self._list(access, {"directories": list(directories)})
        assert found is not None, "no stamp was asked for"
        return found

    def freeze(self, access: NodeAccess, directory: str, frozen: str, paths: Sequence[str]) -> Tree:
        """Keep some files of a directory as they are, under names of their own; what lies in it then.

        Raises:
            CommandError: its file system cannot do so, or one is gone.
        """
        order = {"do": "freeze", "directories": [directory], "frozen": frozen, "paths": list(paths)}
        found = self._list(access, order)
        assert found is not None, "no stamp was asked for"
        return found[0]

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
            parent, _, name = target.rpartition("/")
            order = {"stamp": f"{parent}/.{name}.stamp" if is_shared else "", "digest": stamp}
            there = self._list(access, {"directories": [target], **order})
            if there is not None and (
                {e.content for e in there[0]} != {e.content for e in wanted} or is_shared
            ):
                self._send(access, source, target, wanted, there[0], order)
            elif there is not None:
                self.make(access, [target])
            if is_shared:
                with self._guard:
                    self._pushed[key] = stamp

    def receive(
        self, draft: Draft, number: int, access: NodeAccess, directory: str, entries: Sequence[TreeEntry]
    ) -> bool:
        """Take files of a node into a draft; False if they changed meanwhile.

        Args:
            draft: may take from several nodes at the same time.
            number: differs from that of the others.
            access: the node.
            directory: there.
            entries: files in it.

        Raises:
            CommandError: they do not arrive.
        """
        unpacker = Unpacker(draft.root, draft.wanted, f"part-{number}")
        noise = bytearray()
        started = False

        def take(data: bytes) -> None:
            nonlocal started
            try:
                if not started:
                    noise.extend(data)
                    before, mark, data = bytes(noise).partition(MARK)
                    started = bool(mark)
                    if not started and len(before) > _NOISE_BYTES:
                        raise TreeError("it says something else")
                if started:
                    unpacker.feed(data)
            except (TreeError, ValueError) as error:
                raise CommandError(f"{access.target.shown}: {error}") from error
            except OSError as error:
                raise CommandError(f"here: {explain(error, draft.target)}") from error

        order = {"do": "send", "directory": directory, "entries": entries}
        try:
            with self.links.own(access) as connection:
                result = ask_guest(connection, _python(access), _PROGRAM, order, _limit_s(entries), sink=take)
        finally:
            unpacker.close()
        if not unpacker.complete:
            raise _failed(access, result, TreeError("the files did not arrive whole"))
        return not unpacker.changed

    # -- one node

    def _list(self, access: NodeAccess, order: Mapping[str, object]) -> list[Tree] | None:
        directories = order["directories"]
        assert isinstance(directories, list)

        def ask(connection: object) -> list[Tree] | None:
            said = bytearray()

            def keep(data: bytes) -> None:
                said.extend(data[: max(0, _LISTING_BYTES - len(said))])

            result = ask_guest(
                connection,  # type: ignore[arg-type]
                _python(access),
                _PROGRAM,
                {"do": "list", **order},
                _LIST_TIMEOUT_S,
                sink=keep,
            )
            try:
                return parse_trees(bytes(said), len(directories))
            except (TreeError, ValueError) as error:
                raise _failed(access, result, error) from error

        return self.links.use(access, ask)

    def _send(
        self,
        access: NodeAccess,
        source: Path,
        target: str,
        wanted: list[TreeEntry],
        there: list[TreeEntry],
        order: dict[str, str],
    ) -> None:
        have = {entry.content for entry in there}
        missing = [entry for entry in wanted if entry.kind == FILE and entry.content not in have]

        def answer(line: str) -> Iterator[bytes] | None:
            return _pieces(source, wanted, missing) if line == "@@want" else None

        full = {
            "do": "receive",
            "root": access.root,
            "directory": target,
            "patience_s": _PATIENCE_S,
            "wait_s": _WAIT_S,
            **order,
        }
        with self.links.own(access) as connection:
            result = ask_guest(
                connection, _python(access), _PROGRAM, full, _limit_s(missing) + _WAIT_S, answer
            )
        if guest_words(result) not in ("done", "have"):
            raise _refused(access, result)


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
        result = ask_guest(connection, _python(access), "place.py", order, _PLACE_TIMEOUT_S)
    if guest_words(result) != "done":
        raise CommandError(f"{access.target.shown}: {guest_words(result)}")


def remove_run(access: NodeAccess, run: str) -> None:
    """Remove all that a run has on a node but data and environments, which others may use.

    Raises:
        CommandError: it cannot be removed.
    """
    with access.connect() as connection:
        place = f"{access.root}/runs/{run}"
        command = f"{end_mounts_command(place)}; exec rm -rf -- {shlex.quote(place)}"
        connection.check(command, timeout_s=_MOVE_TIMEOUT_S)


def _pieces(source: Path, wanted: list[TreeEntry], missing: list[TreeEntry]) -> Iterator[bytes]:
    try:
        yield json.dumps(wanted).encode() + b"\n"
        yield from pack(os.fspath(source), missing)
    except OSError as error:
        raise CommandError(f"here: {explain(error, os.fspath(source))}") from error


def _python(access: NodeAccess) -> str:
    assert access.result.plan is not None
    return access.result.plan.host_python.path


def _limit_s(entries: Sequence[TreeEntry]) -> float:
    return _MOVE_TIMEOUT_S + sum(entry.size for entry in entries) / _SLOWEST_BYTES_PER_S


def _refused(access: NodeAccess, result: Result) -> TrainmasterError:
    """What a program there says is wrong."""
    words = f"{access.target.shown}: {guest_words(result)}"
    if verdict(Moment.NODE, guest_trouble(result)) is StoreVerdict.USER_ERROR:
        return UsageError(words, NO_ROOM_HINT)
    return CommandError(words, "It is safe to try again.")


def _failed(access: NodeAccess, result: Result, error: Exception) -> CommandError:
    words = result.err.strip().splitlines()
    said = words[-1] if result.code != 0 and words else str(error)
    return CommandError(f"{access.target.shown}: {said}", code=result.code)
