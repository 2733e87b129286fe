"""Pushing: files into chunks, chunks onto the store, and a new version that names them.

What a user means by the source of a volume.
"""
# ruff: noqa: PTH100, PTH111, PTH112, PTH113

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from trainmaster.artifacts.scratch import scratch_directory
from trainmaster.dataclass import dataclass, field
from trainmaster.objects.errors import explained, explaining
from trainmaster.objects.object_store import ObjectStore
from trainmaster.objects.plugins import split_url
from trainmaster.spec.errors import UsageError
from trainmaster.volumes.packed.addresses import VolumeAddress, volume_address
from trainmaster.volumes.packed.chunk_upload import ChunkUploader, PackedChunk
from trainmaster.volumes.packed.directory_source import DirectorySource
from trainmaster.volumes.packed.hashes import FILE_HASH_BYTES, joined_digest
from trainmaster.volumes.packed.head import MADE_BY, Head
from trainmaster.volumes.packed.journal import PushJournal
from trainmaster.volumes.packed.leases import REAL_CLOCKS, Clocks, leased
from trainmaster.volumes.packed.materialising import tables_directory
from trainmaster.volumes.packed.object_source import ObjectSource, single_object
from trainmaster.volumes.packed.opening import usable_cache
from trainmaster.volumes.packed.packing import FilePart, planned_chunks
from trainmaster.volumes.packed.push_source import PushSource
from trainmaster.volumes.packed.releasing import VersionRelease, check_creates, check_expected
from trainmaster.volumes.packed.table import VersionWriter
from trainmaster.volumes.packed.tar_members import TarSource
from trainmaster.volumes.packed.tar_stream import TarStream
from trainmaster.volumes.reading.place import cache_directory

# Names are any bytes: os functions on plain text are exact.


def source_of(text: str) -> PushSource:
    """Finds out what a user means by a source.

    Args:
        text: a directory, a tar, the http://, https:// or file:// URL of one, or the URL of a folder
            or tar on a store.

    Raises:
        UsageError: it is none of these.
        PublishError: the store fails.
    """
    if not text:
        raise UsageError("The source is an empty text.", "Name a directory or a tar; `.` is this directory.")
    if text.startswith(("http://", "https://")):
        return TarStream(text)
    if text.startswith("file://"):
        text = split_url(text)[1]
    elif "://" in text:
        return _source_on_store(text)
    place = os.path.abspath(os.path.expanduser(text))
    if os.path.isdir(place):
        return DirectorySource(place)
    if not os.path.isfile(place):
        fault = (
            "is neither a directory nor a file"
            if os.path.lexists(place)
            else "there is no such file or directory"
        )
        raise UsageError(f"{text}: {fault}.", "Give a directory or a tar.")
    source = TarSource(place)
    return source if source.is_plain else TarStream(place)


def _source_on_store(url: str) -> PushSource:
    """A tar, if the URL is that of an object; else the objects below it."""
    store = ObjectStore(url)
    if not url.endswith("/"):
        folder, details = single_object(store)
        if details:
            return TarStream(store.url, (folder, details[0]))
    return ObjectSource(store)


DEFAULT_CHUNK_BYTES = 64 << 20
DEFAULT_JOBS = 4
_NO_HASH = bytes(FILE_HASH_BYTES)
# A million tiny files would else take more memory than the chunks that they make.
_MOST_PIECES = 1 << 17


@dataclass(slots=True)
class PushProgress:
    """How far a push is; read by others while it goes on.

    Attributes:
        total_bytes: of all files; None if that is not known before.
        done_bytes: packed, whether they had to be sent or not.
        sent_bytes: sent to the store.
        archive: of a source that is read as a stream: how many bytes of it were read, and how many
            it has.
    """

    total_bytes: int | None = None
    done_bytes: int = 0
    sent_bytes: int = 0
    archive: Callable[[], tuple[int, int | None]] | None = None

    @property
    def shown(self) -> tuple[int, int | None]:
        """What a bar shows: done, and all of it if that is known."""
        if self.archive is not None:
            return self.archive()
        total = self.total_bytes
        return (self.done_bytes if total is None else min(self.done_bytes, total)), total


@dataclass(frozen=True, slots=True)
class PushReport:
    """What a push has done.

    Attributes:
        uri: of the new version.
        head: what it is.
        sent_chunks: chunks that had to be uploaded.
        sent_bytes: their bytes.
        shared_chunks: chunks that were there already.
        notes: what was left out and why.
    """

    uri: str
    head: Head
    sent_chunks: int
    sent_bytes: int
    shared_chunks: int
    notes: tuple[str, ...] = field(default=())

    @property
    def version(self) -> int:
        """The number of the new version."""
        return self.head.version


def push(
    source: Path | str,
    uri: str,
    *,
    cache: Path | None = None,
    chunk_limit_bytes: int = DEFAULT_CHUNK_BYTES,
    jobs: int = DEFAULT_JOBS,
    expect: int | None = None,
    read_back: bool = False,
    progress: PushProgress | None = None,
    say: Callable[[str], None] = lambda _: None,
    clocks: Clocks = REAL_CLOCKS,
    made_by: str = "",
) -> PushReport:
    """Makes a new version of a volume out of files.

    Memory is bounded by ``(jobs + 1) * chunk_limit_bytes``. Nothing is visible before the
    end; what a killed push has uploaded is found again by the next one.

    Args:
        source: a directory, a tar, the http(s):// or file:// URL of one, or the URL of a folder or tar
            on a store (s3://, gs://, az://, hdfs://).
        uri: ``URL`` or ``NAME`` of the volume, without a version.
        cache: where to remember what was read; by default ``TRAINMASTER_CACHE``.
        chunk_limit_bytes: no chunk is larger; 64 KiB to 1 GiB.
        jobs: how many chunks are read and sent at the same time.
        expect: fail unless this is the newest version; 0 for none at all.
        read_back: read every chunk of the new version again and prove it; what has other bytes is sent again.
        progress: filled in on the way.
        say: told what a user would like to know.
        clocks: tell the time.
        made_by: a run, whose task makes it: it is among the notes of the version.

    Raises:
        UsageError: the source or the address is none.
        UnstableDirectory: a file changed meanwhile.
        VersionConflictError: ``expect`` is not met.
        OverwritingStoreError: the store cannot create an object only once.
        PublishError: something in the source cannot be pushed, or the store fails.
    """
    address = volume_address(uri)
    if address.version is not None:
        raise UsageError(f"{uri}: a push makes a new version.", f"Leave out @{address.version}.")
    if not 1 <= chunk_limit_bytes <= 1 << 30:
        raise UsageError(f"Chunks of {chunk_limit_bytes:,} bytes are not possible.", "Use up to 1 GiB.")
    files = source_of(os.fspath(source))
    store = ObjectStore(address.url)
    progress = progress or PushProgress()
    if expect is not None:
        check_expected(store, expect)  # checked again at the end; an early error is better
    check_creates(store)
    progress.total_bytes = files.survey()
    if isinstance(files, TarStream):
        stream = files
        progress.archive = lambda: stream.bytes_read
    place = cache or told_cache(say)
    journal = PushJournal(place / "volumes" / "push", f"{files.label}\n{chunk_limit_bytes}")
    try:
        with leased(store, "pushes", clocks) as lease, push_scratch(place) as scratch:
            publication = VersionRelease(store, lease, say, clocks)
            known = publication.deletions
            uploader = ChunkUploader(
                files, store, journal, known, chunk_limit_bytes, max(1, jobs), proves=read_back
            )
            work = _Push(files, uploader, progress, scratch, chunk_limit_bytes, max(1, jobs))
            head = work.pack()
            if made_by:
                head = replace(head, notes=(f"{MADE_BY}{made_by}", *head.notes))
            files.confirm()
            paths, keys = work.writer.paths, lambda: uploader.keys
            head = publication.release(head, paths, scratch, place, expect, keys, uploader.confirm)
        journal.close(forget_unused=True)
    except OSError as error:
        raise explained(error, "write", str(place)) from error
    finally:
        journal.close()
    return PushReport(
        str(VolumeAddress(store.url, head.version)),
        head,
        uploader.sent_chunks,
        uploader.sent_bytes,
        uploader.shared_chunks,
        head.notes,
    )


def told_cache(say: Callable[[str], None]) -> Path:
    """Gives the cache; says so if it is not the one that was meant.

    Raises:
        PublishError: its disk is full, or broken.
    """
    with explaining("write", str(cache_directory())):
        place, note = usable_cache()
    if note:
        say(note)
    return place


def push_scratch(cache: Path) -> AbstractContextManager[Path]:
    """Gives a directory beside the columns of volumes, so that they can be renamed into place."""
    return scratch_directory(tables_directory(cache) / f"push-{os.getpid()}")


class _Push:
    def __init__(
        self,
        source: PushSource,
        uploader: ChunkUploader,
        progress: PushProgress,
        scratch: Path,
        limit_bytes: int,
        jobs: int,
    ) -> None:
        self._source = source
        self._jobs = jobs
        self._progress = progress
        self.uploader = uploader
        self.writer = VersionWriter(scratch, ("files", "chunks"), limit_bytes)
        self._digests: list[bytes] = []
        self._generations: list[tuple[int, int, int]] = []
        self._first_chunk = 0

    def pack(self) -> Head:
        """Writes chunks to the store and tables to files; gives the head but for its number."""
        for pieces, chunk in self._packed():
            self._write(pieces, chunk)
        extras = self._source.extras
        return self.writer.head(
            extras.folders,
            extras.links,
            kind="packed",
            order=self._source.order,
            notes=tuple(extras.notes[:100]),
            generations=tuple(self._generations),
        )

    def _packed(self) -> Iterator[tuple[list[FilePart], PackedChunk]]:
        """Gives chunks in their order, while the next ones are already read and sent."""
        under_way: deque[tuple[list[FilePart], Future[PackedChunk]]] = deque()
        pieces_under_way = 0
        pool, limit_bytes = ThreadPoolExecutor(self._jobs, "push"), self.writer.limit_bytes
        try:
            for pieces in planned_chunks(self._source.files(limit_bytes), limit_bytes):
                # A stream is read here, in order; the pool only hashes and sends.
                loaded = self.uploader.loaded(pieces) if self._source.is_stream else None
                under_way.append((pieces, pool.submit(self.uploader.packed, pieces, loaded)))
                pieces_under_way += len(pieces)
                while (
                    len(under_way) > 2 * self._jobs
                    or (pieces_under_way > _MOST_PIECES and len(under_way) > 1)
                    or (under_way and under_way[0][1].done())
                ):
                    done, future = under_way.popleft()
                    pieces_under_way -= len(done)
                    yield done, future.result()
            while under_way:
                done, future = under_way.popleft()
                yield done, future.result()
        finally:
            self.uploader.stop()
            pool.shutdown(cancel_futures=True)

    def _write(self, pieces: list[FilePart], chunk: PackedChunk) -> None:
        number = self.writer.chunk_count
        if chunk.size_bytes:
            self.writer.tables["chunks"].append(chunk.size_bytes, chunk.digest)
            if chunk.generation:
                self._note_generation(number, chunk.generation)
        for position, piece in enumerate(pieces):
            file, offset = piece.file, piece.offset
            if piece.length < file.size_bytes:
                self._first_chunk = number if piece.start == 0 else self._first_chunk
                self._digests.append(chunk.digest)
                if not piece.is_last:
                    continue
                first, content = self._first_chunk, joined_digest(self._digests)
                self._digests = []
            else:
                first, content = number, chunk.hash_of(position)
            described = (file.path, file.size_bytes, file.mode, file.mtime_ns)
            self.writer.add_file(*described, first, offset, content)
        self._progress.done_bytes += sum(piece.length for piece in pieces)
        self._progress.sent_bytes = self.uploader.sent_bytes

    def _note_generation(self, number: int, generation: int) -> None:
        first, count, last = self._generations[-1] if self._generations else (number, 0, generation)
        if first + count == number and last == generation:
            self._generations[-1:] = [(first, count + 1, generation)]
        else:
            self._generations.append((number, 1, generation))
