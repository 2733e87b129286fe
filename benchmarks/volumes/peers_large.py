# ruff: noqa: D101, D102
# What a method is and what its methods mean is said once, in `Method` and where it reads small files.
"""The ways of reading, for large files: cold, in blocks of 8 MiB, so that nobody needs a file in memory.

What is timed ends after some seconds, for all alike, and each block is compared. Libraries that get objects
read blocks as ranges, many at once and in the order of a file; everything that is a file, or gives one, is
read from its beginning to its end, some files at once.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import peers_folder as folders
import peers_objects as objects
import peers_shards as shards
from peers_method import Method, Read, Seen, at_once
from peers_place import BLOCK_BYTES, Place, store

#: File, number of the block, first byte, size.
Block = tuple[str, int, int, int]
_RANGES, _FILES = 16, 4
_FOREVER_S = 1e6
#: Blocks, or files, a second without latency: as many more are under way far off.
_RANGES_PER_S, _FILES_PER_S = 320.0, 80.0


def blocks(method: Method, name: str) -> Iterator[Block]:
    """Those of a file."""
    size = method.index[name][0]
    for number, start in enumerate(range(0, size, BLOCK_BYTES)):
        yield name, number, start, min(BLOCK_BYTES, size - start)


def all_blocks(method: Method, seed: int) -> Iterator[Block]:
    """Those of all files, which are shuffled."""
    for name in method.shuffled(seed):
        yield from blocks(method, name)


def by_range(method: Method, seed: int, get: Callable[[str, int, int], bytes], threads: int) -> Read:
    """Reads blocks as ranges, by some threads."""

    def read(seen: Seen) -> None:
        waiting, lock = all_blocks(method, seed), threading.Lock()

        def run() -> None:
            while not seen.over:
                with lock:
                    block = next(waiting, None)
                if block is None:
                    return
                name, number, start, size = block
                seen.note_block(name, number, get(name, start, size))

        _in_threads(run, threads)

    return read


def by_file(method: Method, seed: int, streamed: Callable[[str], Iterable[bytes]], files: int) -> Read:
    """Reads files from their beginning, some at once."""

    def read(seen: Seen) -> None:
        waiting, lock = iter(method.shuffled(seed)), threading.Lock()

        def run() -> None:
            while not seen.over:
                with lock:
                    name = next(waiting, None)
                if name is None:
                    return
                for number, data in enumerate(streamed(name)):
                    seen.note_block(name, number, data)
                    if seen.over:
                        return

        _in_threads(run, files)

    return read


def _in_threads(run: Callable[[], None], threads: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        for one in [pool.submit(run) for _ in range(threads)]:
            one.result()


def ranges_at_once(place: Place) -> int:
    return at_once(place, _RANGES, _RANGES_PER_S)


def files_at_once(place: Place) -> int:
    return at_once(place, _FILES, _FILES_PER_S)


class Obstore(objects.Obstore):
    settings = "asynchronous ranges of 8 MiB, 16 at once, 32 at 50 ms"

    def cold(self, place: Place, seed: int) -> Read:
        import obstore

        async def read(seen: Seen) -> None:
            there, waiting = store(place, "objects"), all_blocks(self, seed)

            async def run() -> None:
                for name, number, start, size in waiting:
                    data = await obstore.get_range_async(there, name, start=start, length=size)
                    seen.note_block(name, number, memoryview(data))
                    if seen.over:
                        return

            await asyncio.gather(*(run() for _ in range(ranges_at_once(place))))

        return lambda seen: asyncio.run(read(seen))


class Boto3(objects.Boto3):
    settings = "ranges of 8 MiB, 16 threads, 32 at 50 ms"

    def cold(self, place: Place, seed: int) -> Read:
        client = self.client(place, ranges_at_once(place))

        def get(name: str, start: int, size: int) -> bytes:
            span = f"bytes={start}-{start + size - 1}"
            return client.get_object(Bucket=place.bucket, Key=f"objects/{name}", Range=span)["Body"].read()

        return by_range(self, seed, get, ranges_at_once(place))


class TorchConnector(objects.TorchConnector):
    settings = "range_based readers, unbuffered, 16 files at once; far away sequential ones, 8 at 50 ms"

    def cold(self, place: Place, seed: int) -> Read:
        from s3torchconnector import S3ReaderConstructor as Readers

        # Sequential readers fetch ahead, and copy what they have more than once.
        is_far = place.latency_ms > 0
        readers = Readers.sequential() if is_far else Readers.range_based(buffer_size=0)
        dataset = self.dataset(place, lambda reader: reader, readers)
        rows = {name: row for row, name in enumerate(self.names)}

        def streamed(name: str) -> Iterator[memoryview]:
            reader, buffer = dataset[rows[name]], memoryview(bytearray(BLOCK_BYTES))
            for _, _, _, size in blocks(self, name):
                done = 0
                while done < size and (got := reader.readinto(buffer[done:size])):
                    done += got
                yield buffer[:done]

        return by_file(self, seed, streamed, files_at_once(place) if is_far else _RANGES)


class FsspecS3(objects.FsspecS3):
    settings = "asynchronous ranges of 8 MiB, 16 at once, 32 at 50 ms"

    def cold(self, place: Place, seed: int) -> Read:
        return self.gathered(place, all_blocks(self, seed), ranges_at_once(place))

    async def one(self, there, place: Place, seen: Seen, block: Block) -> None:
        name, number, start, size = block
        path = f"{place.bucket}/objects/{name}"
        seen.note_block(name, number, await there._cat_file(path, start=start, end=start + size))


class _Folder(folders.Folder):
    def cold(self, place: Place, seed: int) -> Read:
        base = self.where(place)

        def streamed(name: str) -> Iterator[memoryview]:
            descriptor, buffer = os.open(base / name, os.O_RDONLY), memoryview(bytearray(BLOCK_BYTES))
            try:
                for _, _, start, size in blocks(self, name):
                    done = 0
                    while done < size:
                        got = os.preadv(descriptor, [buffer[done:size]], start + done)
                        if not got:
                            raise AssertionError(f"{name} ends after {start + done} bytes")
                        done += got
                    yield buffer[:size]
            finally:
                os.close(descriptor)

        return by_file(self, seed, streamed, files_at_once(place))


class LocalDisk(_Folder, folders.LocalDisk):
    settings = "ext4, evicted from the page cache; 4 files at once"


class OursMounted(_Folder, folders.Ours):
    settings = "defaults; 4 files at once, 8 at 50 ms"
    whole = False


class Rclone(_Folder, folders.Rclone):
    settings = folders.Rclone.settings + ", chunks of 16 MiB by 4 streams for each file; 4 files at once"
    more = "--vfs-read-chunk-size 16M --vfs-read-chunk-streams 4 --buffer-size 0"


class JuiceFS(_Folder, folders.JuiceFS):
    settings = folders.JuiceFS.settings + "; 4 files at once, 8 at 50 ms"


class S3fs(_Folder, folders.S3fs):
    settings = folders.S3fs.settings + "; 4 files at once, 8 at 50 ms"


class Ours(shards.Ours):
    whole = False
    settings = "files in a known order, each read by `view_range`; each chunk verified by its hash"

    def cold(self, place: Place, seed: int) -> Read:
        from trainmaster.volumes.reading import SampleOrder, samples

        def read(seen: Seen) -> None:
            volume = self.volume(place)
            names = list(volume.paths())
            for row in samples(SampleOrder(volume, seed=seed, window=shards.WINDOW)):
                for name, number, start, size in blocks(self, names[row]):
                    seen.note_block(name, number, volume.view_range(row, start, size))
                    if seen.over:
                        return

        return read


class OursAgain(Ours):
    settings = Ours.settings + "; its slots have been used before"

    def start(self, place: Place) -> None:
        if not self.cache.exists():
            super().start(place)

    def cold(self, place: Place, seed: int) -> Read:
        from reading_bench import forget_chunks

        read = super().cold(place, seed)
        if not any(self.cache.glob("chunks/*/slots")):
            read(Seen(self.index, thorough=True, seconds=_FOREVER_S))
        forget_chunks(self.volume(place))
        return read


class OursHalf(OursAgain):
    settings = OursAgain.settings + "; the cache holds half of the volume"

    def limit_bytes(self, place: Place, share: float) -> int:
        return super().limit_bytes(place, min(share, 0.5))


class OursFsspec(shards.OursFsspec):
    whole = False
    settings = "cat_file of ranges of 8 MiB, 16 threads, 32 at 50 ms; no known order"

    def cold(self, place: Place, seed: int) -> Read:
        cat_file = self.getter(place)
        return by_range(
            self,
            seed,
            lambda name, start, size: cat_file(name, start=start, end=start + size),
            ranges_at_once(place),
        )


METHODS: dict[str, Callable[[Place, str], Method]] = {
    "ext4": LocalDisk,
    "plain_chunks": objects.PlainChunks,
    "obstore": Obstore,
    "boto3": Boto3,
    "s3torchconnector": TorchConnector,
    "fsspec_s3fs": FsspecS3,
    "rclone": Rclone,
    "juicefs": JuiceFS,
    "s3fs": S3fs,
    "ours": Ours,
    "ours_again": OursAgain,
    "ours_half": OursHalf,
    "ours_fsspec": OursFsspec,
    "ours_mount": OursMounted,
}
