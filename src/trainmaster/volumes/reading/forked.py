"""Stores read on behalf of forked processes.

The library that speaks with stores has threads, and a forked child has none of them: a request
there would wait for ever. So a child starts a small process of its own, which fetches chunks
straight into the slots of the cache. What ``DataLoader`` workers are by default is forked.
"""

import contextlib
import os
import pickle
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any

from trainmaster.objects.obstore_backend import runtime_is_lost
from trainmaster.spec.errors import PublishError, TrainmasterError

if TYPE_CHECKING:
    from pathlib import Path

    from trainmaster.volumes.packed import ChunkSource, FileTable, Head, OpenVolume

_LENGTH = struct.Struct("<I")


class SharedSource:
    """A :class:`ChunkSource` that also works in forked children; pickled, it is a new one."""

    def __init__(self, source: "ChunkSource", *, local: bool) -> None:
        self._source = source
        self._local = local
        self._pid = os.getpid()

    def __reduce__(self) -> "tuple[Callable[..., SharedSource], tuple[ChunkSource, bool]]":
        return _shared, (self._source, self._local)

    def blocks(self, chunk: int, start: int, length: int) -> Iterator[memoryview]:
        """See :class:`~trainmaster.volumes.reading.chunk.RangeSource`."""
        return self._own().blocks(chunk, start, length)

    def verify(self, chunk: int, data: memoryview) -> None:
        """See :class:`~trainmaster.volumes.reading.chunk.RangeSource`."""
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
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trainmaster.volumes.reading.forked"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._mutex = threading.Lock()
        self._waiting: dict[int, tuple[threading.Event, list[tuple[BaseException | None, Any]]]] = {}
        self._count = 0
        self._dead = False
        threading.Thread(target=self._listen, name="trainmaster-helper", daemon=True).start()

    def open(self, uri: str, cache: "Path | None") -> "OpenVolume":
        """Has a volume opened.

        Raises:
            The same as :func:`~trainmaster.volumes.packed.opening.open_volume`.
        """
        from trainmaster.objects.object_store import ObjectStore
        from trainmaster.volumes.packed import ChunkSource, FileTable, OpenVolume

        found: tuple[str, str, Head, FileTable] = self.ask(_open, uri, cache)
        uri, url, head, table = found
        return OpenVolume(uri, ObjectStore(url), head, table, ChunkSource(url, head, table))

    def ask(self, work: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - whatever it gives
        """Has a function of a module called there.

        Raises:
            PublishError: the store failed, or the process was ended.
        """
        done, answer = threading.Event(), list[tuple[BaseException | None, Any]]()
        with self._mutex:
            self._count += 1
            number = self._count
            if not self._dead:
                self._waiting[number] = (done, answer)
                with contextlib.suppress(OSError):
                    _send(self._process.stdin, (number, work, arguments))
            else:
                done.set()
        done.wait()
        if not answer:
            raise PublishError("The process that fetches chunks was ended.", "Read again.")
        error, value = answer[0]
        if error is not None:
            raise error
        return value

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return not self._dead

    def _listen(self) -> None:
        while True:
            try:
                number, error, value = _receive(self._process.stdout)
            except Exception:  # noqa: BLE001 - whatever it is, nobody may wait for ever
                break
            done, answer = self._waiting.pop(number)
            answer.append((error, value))
            done.set()
        with self._mutex:
            self._dead = True
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for done, _ in waiting:
            done.set()
        self._process.wait()


def _send(pipe: "IO[bytes] | None", message: Any) -> None:  # noqa: ANN401 - whatever pickles
    assert pipe is not None
    data = pickle.dumps(message)
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def _receive(pipe: "IO[bytes] | None") -> Any:  # noqa: ANN401 - whatever was sent
    assert pipe is not None
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    data = pipe.read(_LENGTH.unpack(head)[0])
    return pickle.loads(data)  # noqa: S301 - from our own parent or child


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
    from trainmaster.objects.object_store import ObjectStore
    from trainmaster.volumes.packed import open_volume, volume_address

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
    from concurrent.futures import ThreadPoolExecutor

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
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
                _send(answers, (number, error, value))
            except (pickle.PicklingError, TypeError, AttributeError) as raised:
                _send(answers, (number, PublishError(f"It could not be handed over: {raised!r}."), None))

    with ThreadPoolExecutor(16) as pool:
        while True:
            try:
                message = _receive(sys.stdin.buffer)
            except EOFError:
                os._exit(0)
            pool.submit(serve, *message)


# What a helper is asked to do.


def _open(uri: str, cache: "Path | None") -> "tuple[str, str, Head, FileTable]":
    from trainmaster.volumes.packed import open_volume

    opened = open_volume(uri, cache)
    return opened.uri, opened.store.url, opened.head, opened.table


def write_all(descriptor: int, data: memoryview, place: int) -> None:
    """Writes all of it at a place of a file."""
    while len(data):
        written = os.pwrite(descriptor, data, place)
        data, place = data[written:], place + written


if __name__ == "__main__":
    main()
