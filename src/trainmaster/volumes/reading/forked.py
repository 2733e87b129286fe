"""Stores read on behalf of forked processes.

The library that speaks with stores has threads, and a forked child has none of them: a request
there would wait for ever. So a child starts a small process of its own, which fetches chunks
straight into the slots of the cache. What ``DataLoader`` workers are by default is forked.
"""

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from trainmaster.objects.object_store import ObjectStore
from trainmaster.objects.obstore_backend import runtime_is_lost
from trainmaster.spec.errors import PublishError, TrainmasterError

if TYPE_CHECKING:
    from pathlib import Path

    from trainmaster.volumes.packed.chunk_source import ChunkSource
    from trainmaster.volumes.packed.head import Head
    from trainmaster.volumes.packed.opening import OpenVolume
    from trainmaster.volumes.packed.table import FileTable


class SharedSource:
    """A :class:`ChunkSource` that also works in forked children; pickled, it is a new one."""

    def __init__(self, source: "ChunkSource", *, local: bool) -> None:
        self._source = source
        self._local = local
        self._pid = os.getpid()

    def __reduce__(self) -> "tuple[Callable[..., SharedSource], tuple[ChunkSource, bool]]":
        return _shared, (self._source, self._local)

    def blocks(self, chunk: int, start: int, length: int) -> Iterator[memoryview]:
        """See :class:`~trainmaster.volumes.reading.download.RangeSource`."""
        return self._own().blocks(chunk, start, length)

    def verify(self, chunk: int, data: memoryview) -> None:
        """See :class:`~trainmaster.volumes.reading.download.RangeSource`."""
        self._source.verify(chunk, data)

    @property
    def needs_help(self) -> bool:
        """Whether a request of this process would hang."""
        return not self._local and (os.getpid() != self._pid or runtime_is_lost())

    def _own(self) -> "ChunkSource":
        if os.getpid() != self._pid and self._local:
            # Its threads stayed with the parent.
            self._source = pickle.loads(pickle.dumps(self._source))  # noqa: S301 - our own
            self._pid = os.getpid()
        return self._source


def _shared(source: "ChunkSource", local: bool) -> SharedSource:
    return SharedSource(source, local=local)


class Helper:
    """The process that fetches for this one; it ends with it."""

    def __init__(self) -> None:
        from multiprocessing.connection import Pipe

        self._channel, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trainmaster.volumes.reading.forked", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._mutex = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._count = 0
        self._dead = False
        threading.Thread(target=self._listen, name="trainmaster-helper", daemon=True).start()

    def open(self, uri: str, cache: "Path | None") -> "OpenVolume":
        """Has a volume opened.

        Raises:
            The same as :func:`~trainmaster.volumes.packed.opening.open_volume`.
        """
        from trainmaster.volumes.packed.chunk_source import ChunkSource
        from trainmaster.volumes.packed.opening import OpenVolume
        from trainmaster.volumes.packed.table import FileTable

        found: tuple[str, str, Head, FileTable] = self.ask(_open, uri, cache)
        uri, url, head, table = found
        return OpenVolume(uri, ObjectStore(url), head, table, ChunkSource(url, head, table))

    def ask(self, work: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - whatever it gives
        """Has a function of a module called there.

        Raises:
            PublishError: the store failed, or the process was ended.
        """
        answer = Future[Any]()
        with self._mutex:
            self._count += 1
            if self._dead:
                raise _ended()
            self._waiting[self._count] = answer
            with contextlib.suppress(OSError):
                self._channel.send((self._count, work, arguments))
        return answer.result()

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return not self._dead

    def _listen(self) -> None:
        while True:
            try:
                number, error, value = self._channel.recv()
            except Exception:  # noqa: BLE001 - whatever it is, waiters must be released
                break
            answer = self._waiting.pop(number)
            answer.set_result(value) if error is None else answer.set_exception(error)
        with self._mutex:
            self._dead = True
        for answer in self._waiting.values():
            answer.set_exception(_ended())
        self._process.wait()


def _ended() -> PublishError:
    return PublishError("The process that fetches chunks was ended.", "Read again.")


_helper: Helper | None = None
_starting = threading.Lock()


def helper() -> Helper:
    """Gives this process's helper, starting it when it is first needed, or was ended."""
    global _helper
    with _starting:
        if _helper is None or not _helper.alive:
            _helper = Helper()
        return _helper


def opened_volume(uri: str, cache: "Path") -> "OpenVolume":
    """Opens a volume, through the helper where a request of this process would hang.

    Raises:
        The same as :func:`~trainmaster.volumes.packed.opening.open_volume`.
    """
    from trainmaster.volumes.packed.addresses import volume_address
    from trainmaster.volumes.packed.opening import open_volume

    if runtime_is_lost() and not ObjectStore(volume_address(uri).url).is_local:
        return helper().open(uri, cache)
    return open_volume(uri, cache)


def _forget() -> None:
    global _helper, _starting
    _helper, _starting = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def main() -> None:
    """Serves the parent until it closes the pipe."""
    import signal
    from multiprocessing.connection import Connection

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Connection(int(sys.argv[1]))
    os.dup2(2, 1)
    mutex = threading.Lock()

    def serve(number: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        error: BaseException | None = None
        value = None
        try:
            value = work(*arguments)
        except TrainmasterError as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001 - the other side raises it
            error = PublishError(f"It could not be fetched: {raised!r}.")
        with mutex:
            try:
                channel.send((number, error, value))
            except (pickle.PicklingError, TypeError, AttributeError) as raised:
                channel.send((number, PublishError(f"It could not be handed over: {raised!r}."), None))

    with ThreadPoolExecutor(16) as pool:
        while True:
            try:
                message = channel.recv()
            except EOFError:
                os._exit(0)
            pool.submit(serve, *message)


# What a helper is asked to do.


def _open(uri: str, cache: "Path | None") -> "tuple[str, str, Head, FileTable]":
    from trainmaster.volumes.packed.opening import open_volume

    opened = open_volume(uri, cache)
    return opened.uri, opened.store.url, opened.head, opened.table


def write_all(descriptor: int, data: memoryview, place: int) -> None:
    """Writes all of it at a place of a file."""
    while len(data):
        written = os.pwrite(descriptor, data, place)
        data, place = data[written:], place + written


if __name__ == "__main__":
    main()
