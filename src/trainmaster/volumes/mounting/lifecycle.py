# ruff: noqa: PTH100, PTH103, PTH112
"""Mounting a volume and ending the mount."""

import hashlib
import json
import os
import selectors
import shlex
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from trainmaster.spec.errors import MissingPartError, UsageError
from trainmaster.volumes.errors import InUseError, MountError
from trainmaster.volumes.mounting.delegated_credentials import hand_over
from trainmaster.volumes.mounting.kernel import new_record
from trainmaster.volumes.mounting.mounts import (
    SERVER,
    Means,
    available,
    detach,
    is_dead,
    is_looked_after,
    is_ours,
    mounted_at,
)
from trainmaster.volumes.mounting.server import command, environment, guard
from trainmaster.volumes.packed.opening import open_volume
from trainmaster.volumes.reading.place import cache_directory

_PATIENCE_S = 60.0
_GUARD_PATIENCE_S = 10.0
_END_PATIENCE_S = 20.0
_LOOK_AGAIN_S = 0.02


def mount(
    uri: str,
    directory: Path,
    *,
    cache: Path | None = None,
    foreground: bool = False,
    means: Means | None = None,
    module: str = SERVER,
) -> str:
    """Shows a volume as a directory, read-only, for all programs.

    What is there twice is read from the kernel's own cache, as from a local disk. As soon as all of
    the volume is in the node's cache, and takes at most three quarters of it, the kernel reads it
    there and needs no server, where it can (root, Linux 6.5 or newer, loop devices). A mount that a
    crash has left there is cleared first. It ends with :func:`unmount`, or when its process gets
    SIGTERM.

    Args:
        uri: ``URL``, ``NAME``, ``URL@VERSION`` or ``NAME@VERSION``.
        directory: where; made if it does not exist.
        cache: see :meth:`Volume.open`.
        foreground: serve until SIGTERM, Ctrl-C or :func:`unmount`, instead of in the background.
        means: ``fuse``: never the kernel by itself; ``kernel``: nothing else, so all of it is fetched first.
        module: what its processes run: one that knows more kinds of URLs, then calls ``server.main``.

    Returns:
        The URI of the version that is mounted.

    Raises:
        MissingPartError: this machine cannot mount; the message says why.
        MountError: the kernel refused, or something else is mounted there.
        NotFoundError: there is no such volume.
        UsageError: the directory is not empty.
        PublishError: the volume is damaged, or its store fails.
    """
    place = os.path.abspath(directory)
    cache = Path(os.path.abspath(cache)) if cache is not None else None  # its processes are elsewhere
    clear_stale(place)
    if means != "kernel" and (problem := available()):
        raise MissingPartError(f"Volumes cannot be mounted here: {problem}.", "Use `volume get` instead.")
    if (mounted := mounted_at(place)) is not None:
        raise MountError(
            f"{place}: something is mounted there already ({mounted.source}).",
            f"Run `trainmaster volume unmount {shlex.quote(str(place))}` first, or choose another directory.",
        )
    uri = open_volume(uri, cache).uri
    made = _make_empty(place)
    record = new_record()
    try:
        if foreground:
            code = guard(uri, place, str(cache or ""), -1, means or "", record, module)
            if code:
                raise MountError(f"{place}: the mount of {uri} ended by itself.", "Its last words are above.")
        else:
            _start(uri, place, cache, means, record, module)
    except BaseException:
        if made:
            with suppress(OSError):
                os.rmdir(place)  # noqa: PTH106
        raise
    finally:
        os.close(record)
    return uri


def unmount(directory: Path, *, waits: bool = False) -> bool:
    """Ends a mount. Programs that still have files open there keep them until they close them.

    Args:
        directory: where it is.
        waits: one that is in use stays.

    Returns:
        False if no volume was mounted there.

    Raises:
        InUseError: it is in use, and stays.
        MountError: it could not be ended.
    """
    place = os.path.abspath(directory)
    mounted = mounted_at(place)
    if mounted is None or not is_ours(place):
        if mounted is not None:
            raise MountError(f"{place}: that is no volume but {mounted.source}.", "Unmount it with umount.")
        return False
    is_free = detach(place, lazily=False)
    if not is_free and waits and is_ours(place):
        raise InUseError(f"{place}: {mounted.source} is still read there.", "End what reads it.")
    if not is_free and not detach(place) and is_ours(place):
        raise MountError(f"{place} cannot be unmounted.", "Only who mounted it may, and root.")
    began_s = time.monotonic()
    while is_ours(place) and time.monotonic() < began_s + _PATIENCE_S:
        time.sleep(_LOOK_AGAIN_S)
    # The next mount may get the same device: it shall not begin before its guard has ended.
    while is_free and is_looked_after(mounted) and time.monotonic() < began_s + _GUARD_PATIENCE_S:
        time.sleep(_LOOK_AGAIN_S)
    return True


def clear_stale(place: str) -> None:
    """Takes a mount of ours away whose processes were killed."""
    while is_ours(place) and is_dead(place):
        if not detach(place):
            raise MountError(
                f"{place}: an orphaned mount cannot be taken away.",
                f"Run `fusermount3 -u -z {place}` as who mounted it.",
            )


def mount_log(place: str, cache: Path | None = None) -> Path:
    """Where the processes of a mount write; it goes when they end as they should."""
    name = hashlib.sha256(os.fsencode(place)).hexdigest()[:16]
    return (cache or cache_directory()) / "mounts" / f"{name}.log"


def _make_empty(place: str) -> bool:
    try:
        os.makedirs(place)
    except FileExistsError:
        if not os.path.isdir(place):
            raise UsageError(f"{place} is no directory.", "Name one that is empty.") from None
        if os.listdir(place):  # noqa: PTH208
            raise UsageError(
                f"{place} is not empty: its files would be hidden.", "Name an empty directory."
            ) from None
        return False
    except OSError as error:
        raise MountError(f"{place} cannot be made: {error.strerror}.", "Choose another directory.") from error
    return True


def _start(uri: str, place: str, cache: Path | None, means: Means | None, record: int, module: str) -> None:
    """Starts a guard in the background and waits until it is mounted."""
    log = mount_log(place, cache)
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)  # a mount that readers still hold goes on writing into its own
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError:
        log, output = Path(os.devnull), os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    taken = hand_over()
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            command("guard", uri, place, str(cache or ""), writing, means or "", record, module),
            stdin=taken,
            stdout=output,
            stderr=output,
            pass_fds=[writing, record],
            cwd="/",
            start_new_session=True,
            env=environment(),
        )
        os.close(writing)
        writing = -1
        try:
            problem = _answer(reading, None if means == "kernel" else _PATIENCE_S)
            if problem is None:
                process.returncode = 0  # it outlives us and is never waited for
                return
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_PATIENCE_S)  # its server has ended, or will
            words = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
        except BaseException as error:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_PATIENCE_S)
            if not isinstance(error, TimeoutError):
                raise
            problem, words = str(error), []
        raise MountError(
            f"{place}: {uri} could not be mounted: {problem.rstrip('.')}."
            + (f" ({words[-1]})" if words else ""),
            "Use `volume get` instead." if not words else f"All its words are in {log}.",
        )
    finally:
        os.close(output)
        os.close(taken)
        os.close(reading)
        if writing >= 0:
            os.close(writing)


def _answer(reading: int, patience_s: float | None) -> str | None:
    """Waits for the server's word: None if it is mounted, else what is wrong.

    Raises:
        TimeoutError: there was none.
    """
    words = b""
    deadline_s = None if patience_s is None else time.monotonic() + patience_s
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        while selector.select(deadline_s and max(deadline_s - time.monotonic(), 0)):
            piece = os.read(reading, 65536)
            words += piece
            if not piece or words.endswith(b"\n"):
                break
        else:
            raise TimeoutError(f"it took longer than {patience_s:.0f} s")
    try:
        problem: str | None = json.loads(words)["problem"]
    except ValueError:
        return "its process ended"
    return problem
