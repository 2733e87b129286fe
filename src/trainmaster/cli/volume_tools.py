"""What the verbs of ``trainmaster volume`` say of versions and files."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from trainmaster.cli.output import for_terminal, say
from trainmaster.spec.errors import UsageError
from trainmaster.spec.units import counted, format_bytes

if TYPE_CHECKING:
    from trainmaster.service.volumes import Collected, Entry, Head, OpenVolume, VersionCheck

now_s = time.monotonic
_REDRAWN_EVERY_S = 0.2
# Each chunk is an object and a request: below this a volume would be as slow as its files.
_LEAST_CHUNK_BYTES = 64 << 10
_MOST_CHUNK_BYTES = 1 << 30


def opened_volume(uri: str) -> OpenVolume:
    """Opens a version; what a script would be warned of is said.

    Raises:
        NotFoundError: there is no such volume or version.
        UsageError: this is no address of a volume.
        PublishError: it is damaged, or the store fails.
    """
    import warnings

    from trainmaster.service.volumes import open_volume

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        opened = open_volume(uri)
    for warning in caught:
        say(str(warning.message))
    return opened


def entry_line(entry: Entry) -> str:
    """Gives a line of ``ls``."""
    mark = {"file": "", "directory": "/", "symlink": f" -> {entry.target}"}[entry.kind]
    size = f"{entry.size_bytes:>14,}" if entry.kind == "file" else " " * 14
    return f"{size}  {entry.path}{mark}"


def files_text(head: Head) -> str:
    """Says how much a version is."""
    return f"{counted(head.file_count, 'file')}, {format_bytes(head.total_bytes)}"


def gc_command(volume: str, grace: str) -> str:
    """Gives the command that frees what was marked.

    >>> gc_command("pets", "24h"), gc_command("pets", "0s")
    ('trainmaster volume gc pets', 'trainmaster volume gc pets --grace 0s')
    """
    from shlex import join

    from trainmaster.service.volumes import GRACE

    return join(["trainmaster", "volume", "gc", volume, *([] if grace == GRACE else ["--grace", grace])])


def collected_lines(done: Collected, url: str, grace: str, command: str) -> list[str]:
    """Says what `gc` has done.

    Args:
        done: by it.
        url: of the volume.
        grace: as the user has given it.
        command: what frees what was marked.
    """
    from datetime import UTC, datetime

    def counts(chunks: int, tables: int) -> str:
        return counted(chunks, "chunk") + (f" and {counted(tables, 'table')}" if tables else "")

    lines = []
    has_deleted = bool(done.deleted_chunks or done.deleted_tables)
    if done.under_way:
        owners = f" ({', '.join(done.owners)})" if done.owners else ""
        lines.append(
            f"{url}: a push or another collection is under way{owners}: "
            f"{'not all' if has_deleted else 'nothing'} was deleted; try later. "
            "One that was killed on another machine counts for an hour."
        )
    if has_deleted or not done.under_way:
        young = (
            f"; {counted(done.young_chunks, 'chunk')} younger than {grace} left alone"
            if done.young_chunks
            else ""
        )
        freed = counts(done.deleted_chunks, done.deleted_tables)
        lines.append(f"{freed} deleted, {format_bytes(done.deleted_bytes)} freed{young}")
    if done.free_at_s is not None:
        at = datetime.fromtimestamp(done.free_at_s, UTC)
        marked = f"{counts(done.marked_chunks, done.marked_tables)} ({format_bytes(done.marked_bytes)})"
        lines.append(f"{marked} marked; from {at:%F %T} UTC on this frees them: {command}")
    return lines


# Of one version; --json has all.
_MOST_TOLD = 20


def verdict_lines(verdict: VersionCheck, deep: bool) -> list[str]:
    """Says what `fsck` has found of a version."""
    name = f"version {verdict.version}"
    if not verdict.damage:
        head = verdict.head
        proof = "as they were indexed" if head and head.kind == "indexed" else "proved" if deep else "there"
        what = files_text(head) if head else ""
        chunks = f" in {counted(head.chunk_count, 'chunk')}" if head and head.kind == "packed" else ""
        return [f"{name}: {what}{chunks}, all {proof}"]
    lines = [f"{name}: {one.what}" for one in verdict.damage[:_MOST_TOLD]]
    if len(verdict.damage) > _MOST_TOLD:
        lines.append(f"{name}: and {len(verdict.damage) - _MOST_TOLD:,} more")
    advice = dict.fromkeys(one.advice for one in verdict.damage)
    return lines + [f"{name}: {one}" for one in advice]


class VolumeProgressBar:
    """A bar with rate and time left, on a terminal only; drawn by a thread of its own.

    Args:
        verb: what is being done.
        state: gives the bytes that are done, and all of them or None.
        more: gives what else is to be said.
    """

    def __init__(
        self, verb: str, state: Callable[[], tuple[int, int | None]], more: Callable[[], str] = lambda: ""
    ) -> None:
        self._verb = verb
        self._state = state
        self._more = more
        self._bar: Any = None

    def __enter__(self) -> VolumeProgressBar:
        if sys.stderr.isatty():
            import threading

            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                TextColumn,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[more]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(self._verb, total=None, more="")
            self._stopped = threading.Event()
            self._bar.start()
            self._drawer = threading.Thread(target=self._draw, daemon=True)
            self._drawer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._stopped.set()
            self._drawer.join()
            self._bar.stop()

    def _draw(self) -> None:
        while not self._stopped.wait(_REDRAWN_EVERY_S):
            done, total = self._state()
            self._bar.update(self._task, completed=done, total=total, more=self._more())


class _Ended(BaseException):
    """A signal asks for the end; no exception that anybody would handle on the way."""


@contextmanager
def interruptible(hint: str) -> Iterator[None]:
    """Lets Ctrl-C and SIGTERM unwind: leases on the store and scratch files are taken away again.

    Args:
        hint: what has become of the work, and how to go on.

    Raises:
        SystemExit: with 130, after the hint was said.
    """
    import signal

    def end(_number: int, _frame: FrameType | None) -> None:
        raise _Ended

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # `nohup`
            signal.signal(number, end)
    try:
        yield
    except _Ended:
        say(f"interrupted: {hint}")
        raise SystemExit(130) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def printed(line: str) -> None:
    """A line of standard output; bytes of names that are not UTF-8 as they are."""
    if sys.stdout.isatty():
        line = for_terminal(line)
    sys.stdout.buffer.write(os.fsencode(line.replace("\n", "\\n")) + b"\n")


def chunk_bytes(text: str) -> int:
    """Reads the size of a chunk; K, M and G are those of computers (1024).

    >>> chunk_bytes("64MiB"), chunk_bytes("64M"), chunk_bytes("1000000"), chunk_bytes("8 MB")
    (67108864, 67108864, 1000000, 8000000)

    Raises:
        UsageError: it is none, or too small or large for a chunk.
    """
    import re

    powers = {"": 0, "B": 0, "K": 1, "M": 2, "G": 3}
    found = re.fullmatch(r"\s*(\d{1,12})\s*([KMG]?)(|B|IB)\s*", text.upper())
    if found is None or (not found[2] and found[3] == "IB"):
        raise UsageError(f"--chunk-size {text}: this is no size.", "Write 64MiB or 8MB.")
    size_bytes: int = int(found[1]) * (1000 if found[3] == "B" else 1024) ** powers[found[2]]
    if not _LEAST_CHUNK_BYTES <= size_bytes <= _MOST_CHUNK_BYTES:
        fault = "small" if size_bytes < _LEAST_CHUNK_BYTES else "large"
        raise UsageError(
            f"--chunk-size {text}: chunks of {size_bytes:,} bytes are too {fault}.",
            "Give 64KiB to 1GiB; the default of 64MiB suits nearly everything.",
        )
    return size_bytes
