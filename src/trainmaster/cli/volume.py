"""``trainmaster volume``: packed, versioned sets of files on object storage."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.opening import context, open_client, server_of_volume
from trainmaster.cli.options import AsJson, NewDirectory
from trainmaster.cli.output import duration, parsed, print_json, say, show, table
from trainmaster.cli.removing import agree_to_remove
from trainmaster.cli.volume_push import index_objects, push
from trainmaster.cli.volume_tools import (
    VolumeProgressBar,
    collected_lines,
    entry_line,
    gc_command,
    interruptible,
    now_s,
    opened_volume,
    printed,
    verdict_lines,
)
from trainmaster.service.volumes import GRACE, GetProgress, OpenVolume, VersionCheck, volume_address
from trainmaster.service.volumes import get as fetch
from trainmaster.service.volumes.stored import (
    StoredVolume,
    content,
    entries,
    entry_document,
    head_document,
    verdict_document,
)
from trainmaster.spec.errors import UsageError
from trainmaster.spec.units import counted, format_bytes, parse_duration

if TYPE_CHECKING:
    from trainmaster.api.remote.volumes import RemoteVolume

app = typer.Typer(help="Data on object storage: packed, versioned, verified.", no_args_is_help=True)
app.command("push", no_args_is_help=True)(push)
app.command("index", no_args_is_help=True)(index_objects)

#: Of work that a server does.
_GOES_ON = "the server goes on with it"
_Volume = Annotated[
    str,
    typer.Argument(
        metavar="URL[@VERSION]", help="A volume's URL or short name; the newest version by default."
    ),
]
_Jobs = Annotated[int, typer.Option("--jobs", min=1, max=64, help="Chunks moved at the same time.")]


@app.command("ls")
def list_files(
    volume: Annotated[
        str | None,
        typer.Argument(metavar="URL[@VERSION]", help="A volume; without one, those that have short names."),
    ] = None,
    path: Annotated[str, typer.Argument(help="A file or directory in it.")] = "",
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Also what lies deeper.")] = False,
    as_json: AsJson = False,
) -> None:
    """List a volume's files, or the volumes."""
    if volume is None:
        _list_volumes(as_json)
        return

    opened: OpenVolume | RemoteVolume
    if (server := server_of_volume(volume)) is not None:
        from trainmaster.api.remote.volumes import RemoteVolume

        opened = RemoteVolume(server, volume)
        found = opened.entries(path, recursive=recursive)
    else:
        opened = opened_volume(volume)
        found = entries(opened, path, recursive=recursive)
    if as_json:
        import json

        # One object, but never all of it in memory: a volume may have a hundred million files.
        sys.stdout.write(f'{{"volume": {json.dumps(opened.uri)}, "entries": [')
        for number, entry in enumerate(found):
            sys.stdout.write((", " if number else "") + json.dumps(entry_document(entry)))
        sys.stdout.write("]}\n")
        return
    for entry in found:
        printed(entry_line(entry))


@app.command(no_args_is_help=True)
def cat(volume: _Volume, path: Annotated[str, typer.Argument(help="A file in it.")]) -> None:
    """Write a file's content to standard output, proved by its hash."""
    blocks: Iterator[bytes | memoryview]
    if (server := server_of_volume(volume)) is not None:
        from trainmaster.api.remote.volumes import RemoteVolume

        blocks = RemoteVolume(server, volume).content(path)
    else:
        blocks = content(opened_volume(volume), path)
    for block in blocks:
        sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()


@app.command(no_args_is_help=True)
def get(
    volume: _Volume,
    directory: NewDirectory,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PATH", help="Only this file or folder of it; may be repeated."),
    ] = None,
    jobs: _Jobs = 4,
    as_json: AsJson = False,
) -> None:
    """Download a version or a part of it, verified; the directory appears when it is complete."""
    began_s = now_s()
    opened: OpenVolume | RemoteVolume
    if (server := server_of_volume(volume)) is not None:
        from trainmaster.api.remote.volumes import RemoteVolume

        opened = RemoteVolume(server, volume)
        download, left = opened.get, "nothing was changed"
    else:
        opened = opened_volume(volume)
        download, left = partial(fetch, opened), "what is there already is used when you try again"
    progress = GetProgress()
    with interruptible(left), VolumeProgressBar("get", lambda: progress.shown):
        download(directory, only=only or (), jobs=jobs, progress=progress)
    taken_s = now_s() - began_s
    if as_json:
        print_json(
            {
                **head_document(opened.head, opened.uri),
                "directory": str(directory),
                "only": only or [],
                "got_files": progress.file_count,
                "got_bytes": progress.file_bytes,
                "fetched_bytes": progress.total_bytes,
                "seconds": round(taken_s, 3),
            }
        )
        return
    # Objects as they are have no known hash; but each request was for the ETag that was indexed.
    proof = "verified" if opened.head.kind == "packed" else "unchanged since they were indexed"
    got = f"{counted(progress.file_count, 'file')}, {format_bytes(progress.file_bytes)}"
    say(f"{got} in {directory}, {proof}, in {duration(taken_s)}")


@app.command(no_args_is_help=True)
def versions(
    volume: Annotated[str, typer.Argument(metavar="URL", help="A volume's URL or short name.")],
    as_json: AsJson = False,
) -> None:
    """List the versions of a volume."""
    found = open_client(makes=False).volume(volume)
    if as_json:
        print_json({"volume": found.url, "versions": [head_document(head) for head in found.versions]})
        return
    show(
        table(
            ["version", "published (UTC)", "files", "size", "chunks"],
            [
                [
                    str(head.version),
                    f"{head.created_at:%F %T}",
                    f"{head.file_count:,}",
                    format_bytes(head.total_bytes),
                    f"{head.chunk_count:,}",
                ]
                for head in found.versions
            ],
        )
    )


@app.command(no_args_is_help=True)
def rm(
    volume: _Volume,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before it goes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a version; without a version the whole volume. Chunks of a version are freed by `gc`."""
    client = open_client()  # whose runs are asked whether they need it
    if is_version := volume_address(volume).version is not None:
        what, hint = volume, "`--yes` agrees."
    else:  # without `whole` this removes nothing
        what = f"{client.remove_volume(volume).url} with all its versions"
        hint = "`--yes` agrees; URL@3 is one version."
    agree_to_remove(what, yes=yes, hint=hint)
    with interruptible("ask again; what is gone is gone"):
        done = client.remove_volume(volume, whole=not is_version)
    if as_json:
        print_json({"volume": done.url, "removed": done.removed})
        return
    say(
        f"{done.name} is gone"
        + ("; `trainmaster volume gc` frees its chunks" * (is_version and context() is None))
    )


@app.command(no_args_is_help=True)
def gc(
    volume: Annotated[str, typer.Argument(metavar="URL", help="A volume's URL or short name.")],
    grace: Annotated[
        str, typer.Option(help="Mark nothing younger than this, free nothing marked later than this ago.")
    ] = GRACE,
    now: Annotated[
        bool, typer.Option("--now", help="Free at once what is marked; pushes that sleep must begin again.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Mark the chunks that no version names; free what an earlier `gc` has marked. Safe beside pushes."""
    from dataclasses import asdict

    grace_s = parsed("--grace", parse_duration, grace)
    if (server := server_of_volume(volume)) is not None:
        from trainmaster.api.remote.volumes import collect_garbage

        url = volume
        with interruptible(_GOES_ON):
            done = collect_garbage(server, volume, grace_s, now=now)
    else:
        stored = StoredVolume(volume)
        url = stored.url
        with interruptible("collect again; what versions name is whole"):
            done = stored.collect_garbage(grace_s, now=now)
    if as_json:
        free_with = None if done.free_at_s is None else gc_command(volume, grace)
        print_json({"volume": url, **asdict(done), "free_with": free_with})
        return
    for line in collected_lines(done, url, grace, gc_command(volume, grace)):
        say(line)


@app.command(no_args_is_help=True)
def fsck(
    volume: Annotated[
        str, typer.Argument(metavar="URL[@VERSION]", help="URL or short name; all versions by default.")
    ],
    deep: Annotated[bool, typer.Option("--deep", help="Read every chunk too, and prove it.")] = False,
    jobs: _Jobs = 4,
    as_json: AsJson = False,
) -> None:
    """Look whether all that versions promise is there and readable. Changes nothing."""
    found: Iterable[VersionCheck]
    if (server := server_of_volume(volume)) is not None:
        from trainmaster.api.remote.volumes import check_volume

        url = volume.partition("@")[0]
        with interruptible(_GOES_ON):
            found = check_volume(server, volume, deep=deep, jobs=jobs, say=say)
    else:
        stored = StoredVolume(volume)
        url, found = stored.url, stored.verified(deep=deep, jobs=jobs)
    verdicts = []
    with interruptible("look again; nothing was changed"):
        for verdict in found:
            verdicts.append(verdict)
            for line in verdict_lines(verdict, deep):
                say(line) if as_json else show(line)
    damaged = sum(bool(verdict.damage) for verdict in verdicts)
    if as_json:
        documents = [verdict_document(verdict) for verdict in verdicts]
        print_json({"volume": url, "deep": deep, "damaged": damaged, "versions": documents})
    elif not verdicts:
        say("there are no versions")
    if damaged:
        raise typer.Exit(1)


def _list_volumes(as_json: bool) -> None:
    names = open_client(makes=False).volumes()
    if as_json:
        print_json({"volumes": names})
    elif names:
        for name in names:
            show(name)
    else:
        say("no volumes yet: `trainmaster volume push SRC NAME` makes one")


class MountMeans(StrEnum):
    """The process that answers for a mounted volume."""

    fuse = "fuse"
    kernel = "kernel"


@app.command("mount", no_args_is_help=True)
def mount_volume(
    uri: Annotated[str, typer.Argument(metavar="URL", help="URL or NAME, with @VERSION for an older one.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where; empty, or not there yet.")],
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Serve until Ctrl-C instead of in the background.")
    ] = False,
    means: Annotated[
        MountMeans | None,
        typer.Option(
            "--means", help="`fuse`: always through a process. `kernel`: fetch all, then without one."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a volume as a directory, read-only, for all programs."""
    from trainmaster.service.volumes import means_of, mount

    mounting: Callable[..., str] = mount
    if (server := server_of_volume(uri)) is not None:
        from trainmaster.api.remote.volume_objects import mount_served

        mounting = partial(mount_served, server)
    if foreground:
        say(f"mounting {uri} at {directory}; Ctrl-C ends it")
    mounted = mounting(uri, directory, foreground=foreground, means=means.value if means else None)
    if not foreground:
        place_words = shlex.quote(str(directory))
        say(f"{mounted} is mounted at {directory}; `trainmaster volume unmount {place_words}` ends it")
        if as_json:
            place = directory.absolute()
            print_json({"uri": mounted, "directory": str(place), "means": means_of(str(place))})


@app.command("unmount", no_args_is_help=True)
def unmount_volume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where it is mounted.")],
) -> None:
    """End a mount."""
    from trainmaster.service.volumes import withdraw

    if not withdraw(directory):
        raise UsageError(f"No volume is mounted at {directory}.", "See `findmnt -t fuse.trainmaster,erofs`.")
    say(f"{directory} is no longer mounted")
