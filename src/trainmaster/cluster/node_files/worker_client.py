"""`NodeWorker`: the driver's end of `worker`, our program on a node, which does one order after the other."""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from trainmaster.artifacts import FileEntry, UnstableDirectory
from trainmaster.artifacts.sending import ToSend, listed_entry
from trainmaster.cluster.node_files.merging import Tree
from trainmaster.cluster.node_files.order_output import ENDING
from trainmaster.cluster.node_files.trees import TreeEntry, TreeError, digest
from trainmaster.control.decide.store_verdicts import NoticedAt, StoreVerdict, verdict
from trainmaster.objects.errors import known_trouble
from trainmaster.spec.errors import ProviderError, TrainmasterError, UsageError, one_line
from trainmaster.transport.base import CommandError, Connection, ConnectionLostError, RemoteTimeoutError

if TYPE_CHECKING:
    from trainmaster.cluster.node_access import NodeAccess
    from trainmaster.cluster.node_links import NodeLinks

#: For one question to the store; one that is out of reach would be waited for much longer.
REACH_S: Final = 15.0
#: What to do about a full disk.
NO_ROOM_HINT: Final = "Free some space there, or ask for machines with a larger `hardware.disk`."
#: Python, and our libraries, on a node that is busy.
_START_S: Final = 60.0
_LOOK_S: Final = 120.0
_CARRY_S: Final = 600.0
_STORE_S: Final = 1800.0
#: Of terabytes, on a slow line.
_PROVIDE_S: Final = 48 * 3600.0
#: An image may have many gigabytes.
_IMAGE_S: Final = 6 * 3600.0
#: It may build things. Another attempt's is waited for as long.
_SET_UP_S: Final = 12 * 3600.0
#: A node gives up what does not arrive for so long, or what somebody else writes for so long.
_PATIENCE_S: Final = 60
_WAIT_S: Final = 1800
#: So slow may a store or a connection be; a dead one is found out by other means.
_SLOWEST_BYTES_PER_S: Final = 250_000
_ANSWER_BYTES: Final = 1 << 28
_LINE_BYTES: Final = 1 << 24
_SHOWN_CHARACTERS: Final = 500
_PROGRAM: Final = "from trainmaster.cluster.node_files.worker import main; main()"


class OrderError(CommandError):
    """A node could not do what it was ordered to.

    Attributes:
        message, words: its own, without and with what it advises.
        advice: the latter.
        kind: the name of the error's type there; empty if it has ended without a word.
        trouble: what is wrong with a store, or with its disk.
        url: of which store or object; empty if it is not known.
    """

    def __init__(
        self,
        access: NodeAccess,
        message: str,
        kind: str = "",
        trouble: str = "",
        url: str = "",
        advice: str = "",
    ) -> None:
        self.message, self.advice = message, advice
        self.words = one_line(TrainmasterError(message, advice))
        super().__init__(f"{access.target.shown}: {self.words}", "It is safe to try again.")
        self.kind = kind
        self.trouble = known_trouble(trouble)
        self.url = url


class StoreRefusedError(TrainmasterError):
    """A node cannot use the store, or not any more.

    Attributes:
        node: its machine's id.
        trouble: of what kind that is.
    """

    def __init__(self, access: NodeAccess, message: str, trouble: str = "") -> None:
        super().__init__(f"{access.target.shown}: {message}")
        self.node = access.id
        self.trouble = known_trouble(trouble)


class NodeWorker:
    """The program on one node: it begins with the first order, and ends with ``with``. Threads take turns.

    Args:
        links: connections are made, and known, there.
        access: the node.
    """

    def __init__(self, links: NodeLinks, access: NodeAccess) -> None:
        self._links = links
        self._access = access
        self._turn = threading.Lock()
        self._held = contextlib.ExitStack()
        self._connection: Connection | None = None
        self._stream: socket.socket
        self._lines: BinaryIO

    def __enter__(self) -> NodeWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up: it ends."""
        with self._turn:
            self._end(None, None, None)

    # -- files

    def look(self, directory: str) -> tuple[Tree, bool]:
        """What lies in a directory, nothing if there is none; and whether the one around it is there.

        Raises:
            OrderError: it cannot be read.
        """
        found, is_placed = self._ask({"do": "look", "directory": directory}, _LOOK_S)
        return self._tree(found), bool(is_placed)

    def freeze(self, directory: str, frozen: str, paths: Sequence[str]) -> Tree:
        """Keep some files of a directory as they are, under names of their own; what lies in it then.

        Raises:
            OrderError: its file system cannot do so, or one is gone.
        """
        order = {"do": "freeze", "directory": directory, "frozen": frozen, "paths": list(paths)}
        return self._tree(self._ask(order, _LOOK_S)[0])

    def thaw(self, frozen: str) -> Tree:
        """Take those names away; what lay there until then."""
        return self._tree(self._ask({"do": "thaw", "frozen": frozen}, _LOOK_S)[0])

    def carry(self, directory: str, entries: Sequence[TreeEntry], take: Callable[[bytes], None]) -> None:
        """Have the bytes of files brought here, as `pack` has them.

        Args:
            directory: there.
            entries: files in it.
            take: is given piece by piece.
        """
        limit_s = _limit_s(_CARRY_S, sum(entry.size for entry in entries))
        self._ask({"do": "carry", "directory": directory, "entries": entries}, limit_s, take)

    def make(self, directories: Sequence[str]) -> None:
        """Make directories, and those above them.

        Raises:
            UsageError: there is no room.
            OrderError: it is not possible.
        """
        with _usage_errors():
            self._ask({"do": "make", "directories": list(directories)}, _LOOK_S)

    def push(
        self,
        target: str,
        wanted: Tree,
        give: Callable[[set[TreeEntry]], tuple[int, Iterable[bytes]]],
        *,
        is_shared: bool,
    ) -> None:
        """Make a directory there what one here is; only what differs is sent, whole or not at all.

        Args:
            target: the directory.
            wanted: what it is to hold.
            give: given what it holds, how many bytes are to be sent, and these, as `pack` has them.
            is_shared: others look for the same content there: it is stamped, and sent once.

        Raises:
            UsageError: there is no room.
            OrderError: the node cannot take it.
        """
        parent, _, name = target.rpartition("/")
        stamp = {"stamp": f"{parent}/.{name}.stamp", "digest": digest(wanted)} if is_shared else {}
        with _usage_errors():
            found, is_placed = self._ask({"do": "look", "directory": target, **stamp}, _LOOK_S)
            if is_placed is None:
                return
            there = {entry.content for entry in self._tree(found)}
            if there == {entry.content for entry in wanted} and not is_shared:
                self._ask({"do": "make", "directories": [target]}, _LOOK_S)
                return
            size_bytes, pieces = give(there)
            patience = {"patience_s": _PATIENCE_S, "wait_s": _WAIT_S}
            order = {"do": "receive", "directory": target, "root": self._access.root, "wanted": wanted}
            limit_s = _limit_s(_CARRY_S, size_bytes) + _WAIT_S
            self._ask({**order, **stamp, **patience}, limit_s, give=pieces)

    # -- an object store

    def reach(self, uri: str, credentials: Mapping[str, str]) -> None:
        """See that the node can use a store.

        Args:
            uri: of anything there.
            credentials: see `store_environment`.

        Raises:
            StoreRefusedError: it cannot.
            ProviderError: the node cannot be reached.
        """
        order = {"do": "reach", "uri": uri, "limit_s": REACH_S}
        self._ask_store(order, REACH_S + _START_S, credentials)

    def send(
        self, uri: str, folder: str, journal: str, files: Sequence[ToSend], credentials: Mapping[str, str]
    ) -> list[FileEntry]:
        """Have files uploaded to where an artifact will be; what was sent before a cut is not sent again.

        Args:
            uri: of the artifact.
            folder: for this part alone.
            journal: a file there.
            files: there.
            credentials: see `store_environment`.

        Raises:
            UnstableDirectory: a file is no longer as it was seen.
            StoreRefusedError: the node cannot read a file, or not use the store.
            ProviderError: the node cannot be reached.
        """
        limit_s = _limit_s(_STORE_S, sum(file.size_bytes for file in files))
        order = {"do": "send", "uri": uri, "folder": folder, "journal": journal, "files": files}
        said = self._ask_store(order, limit_s, credentials)
        try:
            entries = [listed_entry(each) for each in said]
        except ValueError as error:
            raise StoreRefusedError(self._access, str(error)) from error
        # What a node says is named in a manifest: nothing but what it was asked for.
        asked = {file.path: file.size_bytes for file in files}
        if {entry.path: entry.size_bytes for entry in entries} != asked or any(
            not entry.object.startswith(f"{folder}/") for entry in entries
        ):
            raise StoreRefusedError(self._access, "it has sent something else than it was asked for")
        return entries

    def restore(self, uri: str, directory: str, credentials: Mapping[str, str]) -> None:
        """Have a directory made what an artifact is.

        Raises:
            StoreRefusedError: it cannot be.
            ProviderError: the node cannot be reached.
        """
        self._ask_store({"do": "restore", "uri": uri, "directory": directory}, 12 * _STORE_S, credentials)

    def _ask_store(
        self, order: Mapping[str, Any], limit_s: float, credentials: Mapping[str, str]
    ) -> list[Any]:
        try:
            return self._ask({**order, "environment": dict(credentials)}, limit_s)[0]
        except OrderError as error:
            if error.kind == UnstableDirectory.__name__:
                shown = self._access.target.shown
                raise UnstableDirectory(
                    f"{shown}: {error.words}", "Nothing was published; try later."
                ) from None
            raise StoreRefusedError(self._access, error.words, error.trouble) from error

    def provide(
        self,
        order: Mapping[str, Any],
        environment: Mapping[str, str],
        hear: Callable[[Mapping[str, Any]], None],
    ) -> str:
        """Have data brought there; by what means, or what was found.

        Args:
            order: see `data_orders`.
            environment: credentials, and what the caches of volumes heed.
            hear: is given what it says meanwhile.

        Raises:
            OrderError: it has failed.
            ProviderError: the node cannot be reached.
        """
        return str(self._ask({**order, "environment": dict(environment)}, _PROVIDE_S, hear=hear)[1])

    # -- images and environments

    def image(self, order: Mapping[str, Any], archive: Iterable[bytes] = ()) -> dict[str, Any]:
        """Have an image brought there: what is known of it, or for which reason it ``wants`` an archive.

        Args:
            order: see `image_orders`.
            archive: of the image, in pieces.

        Raises:
            OrderError: it cannot be had, or cannot be used.
            ProviderError: the node cannot be reached.
        """

        def pieces() -> Iterator[bytes]:
            for piece in archive:
                yield b"%d\n" % len(piece)
                yield piece
            yield b"0\n"

        found = self._ask({"do": "image", **order}, _IMAGE_S, give=pieces())[1]
        return found if isinstance(found, dict) else {}

    def set_up(self, order: Mapping[str, Any], hear: Callable[[Mapping[str, Any]], None]) -> bool:
        """Have a virtual environment made there unless it is; whether it was not.

        Args:
            order: see `image_orders`.
            hear: is given its log.

        Raises:
            OrderError: it failed.
            ProviderError: the node cannot be reached.
        """
        return bool(self._ask({"do": "setup", **order}, _SET_UP_S, hear=hear)[1])

    # -- one order

    def _ask(
        self,
        order: Mapping[str, Any],
        limit_s: float,
        take: Callable[[bytes], None] = lambda _: None,
        give: Iterable[bytes] = (),
        hear: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> tuple[list[Any], Any]:
        """What was found, and the result.

        Args:
            order: see `worker`.
            limit_s: after which the node is given up.
            take: given the bytes of files.
            give: the bytes of files, if the program wants them.
            hear: given what else it says.

        Raises:
            OrderError: it was not done.
            ConnectionLostError: the connection was lost meanwhile.
            RemoteTimeoutError: it takes too long.
        """
        with self._turn:
            try:
                if self._connection is None:
                    self._begin()
                return self._converse(order, time.monotonic() + limit_s, take, give, hear)
            except TimeoutError:
                self._end(*sys.exc_info())
                shown = self._access.target.shown
                raise RemoteTimeoutError(
                    f"{shown}: not done after {limit_s:g} s: {order['do']}", "It was ended."
                ) from None
            except OrderError as error:
                if not error.kind or order["do"] in ENDING:
                    self._end(None, None, None)
                raise
            except BaseException:
                self._end(*sys.exc_info())
                raise

    def _converse(
        self,
        order: Mapping[str, Any],
        deadline_s: float,
        take: Callable[[bytes], None],
        give: Iterable[bytes],
        hear: Callable[[Mapping[str, Any]], None],
    ) -> tuple[list[Any], Any]:
        found: list[Any] = []
        left_bytes, noise = _ANSWER_BYTES, ""
        pieces: Iterable[bytes] = (json.dumps(order).encode() + b"\n",)
        while True:
            for piece in pieces:
                self._send(piece, deadline_s)
            pieces = ()
            line = self._read(deadline_s)
            left_bytes -= len(line)
            if not line.endswith(b"\n") or left_bytes < 0:
                raise self._lost(noise)
            try:
                said = json.loads(line)
            except (ValueError, RecursionError):
                noise = line.decode(errors="replace").strip() or noise
                continue
            if isinstance(said, list):
                found.append(said)
            elif not isinstance(said, dict):
                continue
            elif "bytes" in said:
                data = self._read(deadline_s, said["bytes"])
                take(data)
            elif "want" in said:
                pieces = give
            elif "done" in said:
                return found, said["done"]
            elif "error" in said:
                told = [str(said.get(name, "")) for name in ("words", "error", "trouble", "url", "hint")]
                raise OrderError(self._access, *told)
            else:
                hear(said)

    def _send(self, piece: bytes, deadline_s: float) -> None:
        self._wait_until(deadline_s)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # what it said before tells why
            self._stream.sendall(piece)

    def _read(self, deadline_s: float, size_bytes: object = None) -> bytes:
        """A line, or so many bytes; less if the connection or the program has ended."""
        self._wait_until(deadline_s)
        try:
            if size_bytes is None:
                return self._lines.readline(_LINE_BYTES)
            is_size = isinstance(size_bytes, int) and 0 <= size_bytes <= _LINE_BYTES
            data = self._lines.read(size_bytes) if is_size else b""  # type: ignore[arg-type]
        except ConnectionError:
            data = b""
        if size_bytes is not None and len(data) != size_bytes:
            raise self._lost("the files did not arrive whole")
        return data

    def _wait_until(self, deadline_s: float) -> None:
        if (left_s := deadline_s - time.monotonic()) <= 0:
            raise TimeoutError
        self._stream.settimeout(left_s)

    def _lost(self, noise: str) -> Exception:
        """Why nothing more is said: the connection was lost, or the program has ended."""
        assert self._connection is not None
        shown = self._access.target.shown
        try:
            self._connection.run("exit 0")
        except ProviderError as error:
            why, lost = error.args[0].removeprefix(f"{shown}: "), "the connection was lost"
            return ConnectionLostError(f"{shown}: {why if why.startswith(lost) else f'{lost} ({why})'}")
        return OrderError(self._access, noise[-_SHOWN_CHARACTERS:] or "our program there has ended")

    def _begin(self) -> None:
        with contextlib.ExitStack() as held:
            self._connection = held.enter_context(self._links.own(self._access))
            # What Python says when it cannot begin comes in the same stream; see `worker.main` for the rest.
            command = f"exec {shlex.quote(self._access.python)} -Iu -c {shlex.quote(_PROGRAM)} 2>&1"
            self._stream = held.enter_context(contextlib.closing(self._connection.stream(command)))
            self._lines = held.enter_context(self._stream.makefile("rb"))
            self._held = held.pop_all()

    def _end(self, *error: Any) -> None:  # noqa: ANN401 - as `__exit__` gets it
        held, self._held, self._connection = self._held, contextlib.ExitStack(), None
        with contextlib.suppress(Exception):
            held.__exit__(*error)

    def _tree(self, found: list[Any]) -> Tree:
        try:
            return [TreeEntry.read(said) for said in found]
        except TreeError as error:
            raise OrderError(self._access, str(error)) from error


@contextlib.contextmanager
def _usage_errors() -> Iterator[None]:
    """What a user can mend is told so: a full disk."""
    try:
        yield
    except OrderError as error:
        if verdict(NoticedAt.NODE, error.trouble) is StoreVerdict.USER_ERROR:
            raise UsageError(str(error.args[0]), NO_ROOM_HINT) from error
        raise


def _limit_s(least_s: float, size_bytes: int) -> float:
    return least_s + size_bytes / _SLOWEST_BYTES_PER_S
