"""`Agent`: a way of reading in a process of its own, with its peer's packages, told what to do line by line.

``python peers_agent.py NAME`` with the place as JSON on its first line. Every timed run is a fork of this
process; its CPU time is that of the fork, of what the fork starts, and of the method's own daemons.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from peers_install import PACKAGES, PROGRAMS, folder, provide
from peers_method import Method, Seen
from peers_place import HERE, Place, environment

_FOREVER_S = 1e6
_WORD = (1 << 64) - 1


def methods(large: bool) -> dict[str, Callable[[Place, str], Method]]:
    """How each is made, by name; other ones for large files."""
    if large:
        from peers_large import METHODS

        return METHODS
    import peers_folder as folders
    import peers_objects as objects
    import peers_shards as shards

    return {
        "ext4": folders.LocalDisk,
        "plain_chunks": objects.PlainChunks,
        "obstore": objects.Obstore,
        "boto3": objects.Boto3,
        "s3torchconnector": objects.TorchConnector,
        "fsspec_s3fs": objects.FsspecS3,
        "rclone": folders.Rclone,
        "juicefs": folders.JuiceFS,
        "s3fs": folders.S3fs,
        "webdataset": shards.WebDataset,
        "webdataset_w2": lambda place, name: shards.WebDataset(place, name, workers=2),
        "webdataset_w8": lambda place, name: shards.WebDataset(place, name, workers=8),
        "mosaicml": shards.MosaicML,
        "mosaicml_w2": lambda place, name: shards.MosaicML(place, name, workers=2),
        "mosaicml_w8": lambda place, name: shards.MosaicML(place, name, workers=8),
        "mosaicml_full": lambda place, name: shards.MosaicML(place, name, full=True),
        "ours": shards.Ours,
        "ours_w2": lambda place, name: shards.Ours(place, name, workers=2),
        "ours_full": lambda place, name: shards.Ours(place, name, full=True),
        "ours_again": shards.OursAgain,
        "ours_view": shards.OursView,
        "ours_fsspec": shards.OursFsspec,
        "ours_mount": folders.Ours,
    }


PEERS = {
    "s3torchconnector": "s3torchconnector",
    "fsspec_s3fs": "fsspec_s3fs",
    "rclone": "rclone",
    "juicefs": "juicefs",
    "s3fs": "s3fs",
    "webdataset": "webdataset",
    "webdataset_w2": "webdataset",
    "webdataset_w8": "webdataset",
    "mosaicml": "mosaicml",
    "mosaicml_w2": "mosaicml",
    "mosaicml_w8": "mosaicml",
    "mosaicml_full": "mosaicml",
}


class Agent:
    """The process of a method, from outside.

    Args:
        name: of the method.
        place: where.

    Raises:
        RuntimeError: the peer cannot be had; the message says why.
    """

    def __init__(self, name: str, place: Place) -> None:
        peer = PEERS.get(name, "")
        if peer and (problem := provide(peer)):
            raise RuntimeError(problem)
        path = f"{folder(peer)}:{HERE}" if peer in PACKAGES else str(HERE)
        self.name = name
        self._log = Path(place.root, f"{name}.log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", str(HERE / "peers_agent.py"), name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **environment(place), "PYTHONPATH": path},
            )

    def ask(self, what: str, **arguments: Any) -> Any:
        """Has it do something.

        Raises:
            RuntimeError: it failed; the message is its last words.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"what": what, **arguments}) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise RuntimeError(f"{self.name} ended: {self._log.read_text(errors='replace')[-600:]}")
        found = json.loads(answer)
        if "error" in found:
            raise RuntimeError(f"{self.name}: {found['error']}")
        return found["result"]

    def hang_up(self) -> None:
        """Has it end, and what it started."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def close(self) -> None:
        """The same, and waits for it."""
        self.hang_up()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Worker:
    """The same from inside."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.method: Method | None = None

    def place(self, **place: Any) -> dict[str, Any]:
        """Makes the method, or tells it where the store is now."""
        self.at = Place(**place)
        os.environ.update(environment(self.at))  # some clients trust it more than what they are told
        if self.method is None:
            self.method = methods(self.at.large)[self.name](self.at, self.name)
            self.method.prepare()
        one = self.method
        return {
            "shuffle": one.shuffle,
            "settings": one.settings,
            "caches": one.caches,
            "whole": one.whole,
            "layout": one.layout,
        }

    def cold(self, seed: int, seconds: float, fill: bool = False) -> dict[str, float]:
        """Reads with an empty cache, every byte compared; ``fill``: everything, and so that it is kept."""
        began = time.perf_counter()
        self.method.start(self.at)
        os.sync()
        start_s = time.perf_counter() - began
        self.method.filling = fill
        seconds = _FOREVER_S if self.method.whole or fill else seconds
        [found] = self._forked(1, lambda: self.method.cold(self.at, seed), seconds, thorough=True)
        return {**found, "start_s": start_s}

    def drop(self) -> None:
        """Takes the cache's files out of the page cache, so that all are read back from the disk once."""
        os.sync()
        for path in self.method.root.rglob("*"):
            if path.is_file() and not str(path).startswith(f"{self.method.root}/mnt/"):
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def warm(self, seed: int, seconds: float, readers: int, thorough: bool = False) -> dict[str, float]:
        """Reads what is cached, by some processes at once, each with an order of its own."""
        found = self._forked(
            readers,
            lambda: self.method.warm(self.at, seed),
            _FOREVER_S if thorough else seconds,
            thorough=thorough,
            again=not thorough,
        )
        wall_s = max(one["end"] for one in found) - min(one["begun"] for one in found)
        files, size = sum(one["files"] for one in found), sum(one["bytes"] for one in found)
        cpu_s = sum(one["cpu_s"] for one in found)
        return {"files": files, "bytes": size, "seconds": wall_s, "cpu_s": cpu_s, "sum": found[0]["sum"]}

    def train(self, **how: Any) -> list[dict[str, float]]:
        """Trains epochs, the first with an empty cache; arguments are those of `epochs`."""
        from peers_training import epochs

        self.method.start(self.at)
        os.sync()
        [found] = self._forked(
            1, lambda: lambda seen: epochs(self.method, self.at, seen, **how), _FOREVER_S, thorough=False
        )
        return found["value"]

    def empty(self) -> None:
        """Ends what the method started and removes what it keeps."""
        self.method.stop()
        shutil.rmtree(self.method.root, ignore_errors=True)

    def _forked(
        self,
        readers: int,
        prepared: Callable[[], Callable[[Seen], Any]],
        seconds: float,
        *,
        thorough: bool,
        again: bool = False,
    ) -> list[dict[str, Any]]:
        """Runs readers in forks of this process; ``again``: what is timed is their second time."""
        context = multiprocessing.get_context("fork")
        barrier = context.Barrier(readers)

        def run(answer: Connection) -> None:
            try:
                work = prepared()
                if again:
                    work(Seen(self.method.index, thorough=False, seconds=seconds))
                barrier.wait()
                spent, begun = self._cpu_s(), time.perf_counter()
                seen = Seen(self.method.index, thorough=thorough, seconds=seconds)
                value = work(seen)
                end = time.perf_counter()
                answer.send(
                    {
                        "files": seen.files,
                        "bytes": seen.bytes,
                        "sum": f"{seen.sum & _WORD:016x}",
                        "seconds": end - begun,
                        "begun": begun,
                        "end": end,
                        "cpu_s": [b - a for a, b in zip(spent, self._cpu_s(), strict=True)],
                        "value": value,
                    }
                )
            except BaseException as error:  # noqa: BLE001 - told to what waits
                traceback.print_exc()
                answer.send({"error": f"{type(error).__name__}: {error}"})

        running = []
        for _ in range(readers):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=run, args=(theirs,))
            process.start()
            theirs.close()
            running.append((process, ours))
        found = []
        for process, answer in running:
            try:
                found.append(answer.recv())
            except EOFError:
                found.append({"error": f"the reading process ended with {process.exitcode}"})
        for process, _ in running:
            process.join(20)
            if process.is_alive():  # a thread of a peer that does not end
                process.kill()
                process.join()
        for one in found:
            if "error" in one:
                raise RuntimeError(one["error"])
        for number, one in enumerate(found):  # each reader saw the same daemons
            one["cpu_s"] = one["cpu_s"][0] + (one["cpu_s"][1] if number == 0 else 0.0)
        return found

    def _cpu_s(self) -> tuple[float, float]:
        """CPU seconds of this process and what it started, and of the method's daemons."""
        total = 0.0
        for pid in self.method.pids():
            try:
                used = psutil.Process(pid).cpu_times()
            except psutil.Error:
                continue
            total += used.user + used.system
        return _own_cpu_s(), total


def _own_cpu_s() -> float:
    """Of this process and of all that it started and that ended."""
    children = sum(
        used.user + used.system
        for used in (one.cpu_times() for one in psutil.Process().children(recursive=True))
    )
    ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in ended) + children


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what peers say goes to the log
    worker = Worker(sys.argv[1])
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                result = {"result": getattr(worker, asked.pop("what"))(**asked)}
            except Exception as error:  # noqa: BLE001 - it is told to the caller
                traceback.print_exc()
                result = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(result), file=answers, flush=True)
    finally:
        if worker.method is not None:
            worker.method.stop()


assert set(PEERS.values()) <= {*PACKAGES, *PROGRAMS}

if __name__ == "__main__":
    main()
