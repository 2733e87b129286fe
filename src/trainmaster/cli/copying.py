"""``trainmaster cp``."""

from __future__ import annotations

import contextlib
import itertools
import os
import posixpath
import shlex
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Annotated, Final

import typer

from trainmaster.cli.opening import open_client
from trainmaster.cli.output import say
from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import ExecutorError, NotFoundError, UsageError
from trainmaster.spec.processes import ON_MACHINE

if TYPE_CHECKING:
    import tarfile

    from trainmaster.api import ClientProtocol

#: On the member: packs what is named, so that its own name is the first one in the archive. GNU's tar ends
#: with 1 if a file has grown meanwhile, as logs do: what it was at first is there, and tar has said so.
_PACK: Final = (
    ON_MACHINE
    + """\
[ -e %(path)s ] || [ -L %(path)s ] || { echo %(path)s is not there >&2; exit 66; }
cd "$(dirname -- %(path)s)" || exit
tar -cf - -- "$(basename -- %(path)s)" && exit
code=$?
case "$code $(tar --version 2>&1)" in "1 "*GNU*) exit 0;; esac
exit "$code"
"""
)
#: On the member: into a directory, or in place of what is named.
_UNPACK: Final = (
    ON_MACHINE
    + """\
set -e
to=%(path)s
if [ -d "$to" ]; then exec tar -xf - -C "$to"; fi
case "$to" in */) mkdir -p -- "$to"; exec tar -xf - -C "$to";; esac
mkdir -p -- "$(dirname -- "$to")"
draft=$(mktemp -d -- "$(dirname -- "$to")/.copied-XXXXXX")
trap 'rm -rf -- "$draft"' EXIT
tar -xf - -C "$draft"
mv -fT -- "$draft"/%(name)s "$to"
"""
)
_NOT_THERE: Final = 66
#: What a command ends with that SIGPIPE has ended.
_NOBODY_READS: Final = 141


@dataclass(frozen=True, slots=True)
class CopySide:
    """One side of a copy.

    Attributes:
        run: None for this machine.
        member: None for the first.
        path: relative ones are in the run's code.
    """

    run: str | None
    member: str | None
    path: str

    @classmethod
    def of(cls, text: str) -> CopySide:
        """What is written as ``RUN[/MEMBER]:PATH``, or a path here.

        >>> CopySide.of("job-1/worker-0:out/a.txt"), CopySide.of("./a:b").run
        (CopySide(run='job-1', member='worker-0', path='out/a.txt'), None)
        """
        head, mark, path = text.partition(":")
        if not mark or head.startswith((".", "/", "~")) or not head:
            return cls(None, None, text)
        run, _, member = head.partition("/")
        return cls(run, member or None, path or ".")


def cp(
    source: Annotated[str, typer.Argument(metavar="RUN[/MEMBER]:PATH|PATH", help="A file or directory.")],
    target: Annotated[
        str, typer.Argument(metavar="PATH|RUN[/MEMBER]:PATH", help="A new name, or a directory to put it in.")
    ],
) -> None:
    """Copy a file or directory from where a member works, or to there."""
    here, there = CopySide.of(source), CopySide.of(target)
    if (here.run is None) == (there.run is None):
        raise UsageError("one side of a copy is a member of a run", "Write RUN:PATH or RUN/MEMBER:PATH.")
    client = open_client()
    if here.run is not None:
        _bring(client, here, Path(target).expanduser())
    else:
        _send(client, Path(source).expanduser(), there)


def _bring(client: ClientProtocol, source: CopySide, target: Path) -> None:
    """Unpack beside the target first: what did not come whole is not there.

    A machine that was taken over may send anything: only what has the name that was asked for is taken.
    """
    name = posixpath.basename(source.path.rstrip("/"))
    if name in ("", ".", ".."):
        raise UsageError(f"{source.path} has no name to copy it under", "Name a file or directory: RUN:out.")
    parent = target if target.is_dir() else target.absolute().parent
    if not parent.is_dir():
        raise UsageError(f"there is no directory {parent}", "Make it first.")
    with tempfile.TemporaryDirectory(prefix=".copied-", dir=parent) as draft:
        import tarfile  # other verbs do not need it

        def unpack(stream: IO[bytes]) -> None:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for entry in archive:
                    archive.extract(entry, draft, filter=lambda found, to: _checked(found, to, name))

        _talk(client, source, _PACK % {"path": shlex.quote(source.path)}, reads=unpack)
        found = Path(draft, name)
        if not found.exists():
            raise UsageError(f"nothing has come of {source.path}", "Look whether `tar` works there.")
        into = target / name if target.is_dir() else target
        if into.is_dir() and not into.is_symlink():
            _make_way(found, into)
            shutil.copytree(found, into, symlinks=True, dirs_exist_ok=True)
        else:
            found.replace(into)


def _checked(entry: tarfile.TarInfo, draft: str, name: str) -> tarfile.TarInfo:
    """An entry that lies in what has the name, and leads nowhere else wherever that is moved.

    Links go up first, if at all, and then down: so they stay inside whatever others lead to.

    Raises:
        tarfile.FilterError: it does not.
    """
    import tarfile

    entry = tarfile.data_filter(entry, draft)  # no devices, nothing absolute; whose files they are here is us
    parts = PurePosixPath(entry.name).parts
    if parts[:1] != (name,) or not _is_plain(draft, parts[:-1]) or ".." in parts:
        raise tarfile.OutsideDestinationError(entry, entry.name)
    leads = PurePosixPath(entry.linkname).parts
    if entry.issym():
        ups = len(list(itertools.takewhile(lambda part: part == "..", leads)))
        is_inside = ups <= len(parts) - 2 and ".." not in leads[ups:]
    else:
        is_file = ".." not in leads and _is_plain(draft, leads) and Path(draft, *leads).is_file()
        is_inside = is_file or not entry.islnk()
    if not is_inside:
        raise tarfile.LinkOutsideDestinationError(entry, entry.linkname)
    return entry


def _is_plain(directory: str, parts: tuple[str, ...]) -> bool:
    """Whether no part of a path in a directory is a link."""
    return not any(Path(directory, *parts[:count]).is_symlink() for count in range(1, len(parts) + 1))


def _make_way(found: Path, into: Path) -> None:
    """Remove links where something is about to be put: it would be written to what they lead to."""
    for directory, folders, files in os.walk(found):
        for name in (*folders, *files):
            there = into / Path(directory).relative_to(found) / name
            if there.is_symlink() or (Path(directory, name).is_symlink() and there.is_file()):
                there.unlink()


def _send(client: ClientProtocol, source: Path, target: CopySide) -> None:
    if not source.exists():
        raise NotFoundError(f"{source} is not there", "Look at the path.")
    name = source.absolute().name

    import tarfile

    def pack(stream: IO[bytes]) -> None:
        with tarfile.open(fileobj=stream, mode="w|") as archive:
            archive.add(source, name)

    fields = {"path": shlex.quote(target.path), "name": shlex.quote(name)}
    _talk(client, target, _UNPACK % fields, writes=pack)


def _talk(
    client: ClientProtocol,
    place: CopySide,
    script: str,
    reads: Callable[[IO[bytes]], None] | None = None,
    writes: Callable[[IO[bytes]], None] | None = None,
) -> None:
    """Run a script on a member, and read what it says or write what it hears meanwhile."""
    assert place.run is not None
    run = client.resolve(place.run)
    ours, theirs = os.pipe() if reads is not None else os.pipe()[::-1]
    wrong: list[Exception] = []

    import tarfile

    def move() -> None:
        try:
            with open(ours, "rb" if reads is not None else "wb") as stream:  # noqa: PTH123 - a descriptor
                (reads or writes)(stream)  # type: ignore[misc]
                while reads is not None and stream.read(1 << 18):  # zeros behind the end of an archive
                    pass
        except (OSError, tarfile.TarError) as error:
            wrong.append(error)

    mover = threading.Thread(target=move, daemon=True)
    with open(os.devnull, "r+b") as nothing, contextlib.ExitStack() as left:  # noqa: PTH123
        left.callback(os.close, theirs)
        mover.start()
        stdin, stdout = (nothing.fileno(), theirs) if reads is not None else (theirs, nothing.fileno())
        code = client.execute(run, place.member, [script], (stdin, stdout, 2), tell=say)
    mover.join()
    if code == _NOT_THERE:
        raise NotFoundError(f"{run} has no {place.path} there", "Paths are relative to the run's code.")
    ours_first = [error for error in wrong if not isinstance(error, BrokenPipeError)]
    if ours_first and isinstance(ours_first[0], tarfile.FilterError):
        raise UsageError(
            f"copying has failed here: {ours_first[0]}",
            f"Only what lies and leads within {place.path} is taken; copy the rest by its own name.",
        )
    if ours_first and (writes is not None or code in (0, _NOBODY_READS)):
        raise UsageError(
            f"copying has failed here: {ours_first[0]}", "Is there room, and may you read and write there?"
        )
    if code != 0:
        raise ExecutorError(f"copying has failed there with exit code {code}", "What is above says why.")
