"""``trainmaster volume``: packed, versioned sets of files on object storage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from trainmaster.cli.volume_mount import mount_volume, unmount_volume

app = typer.Typer(help="Data on object storage: packed, versioned, verified.", no_args_is_help=True)
app.command("mount", no_args_is_help=True)(mount_volume)
app.command("unmount", no_args_is_help=True)(unmount_volume)

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
_Volume = Annotated[
    str,
    typer.Argument(
        metavar="URL[@VERSION]", help="A volume's URL or short name; the newest version by default."
    ),
]
_Jobs = Annotated[int, typer.Option("--jobs", min=1, max=64, help="Chunks moved at the same time.")]


@app.command(no_args_is_help=True)
def push(
    source: Annotated[
        str,
        typer.Argument(metavar="SRC", help="A directory, a tar, or the http(s):// or file:// URL of one."),
    ],
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Where the volume is or will be, or its short name.")
    ],
    chunk_size: Annotated[str, typer.Option(help="No chunk is larger.")] = "64MiB",
    jobs: _Jobs = 4,
    expect: Annotated[
        Optional[int],  # noqa: UP045 - typer reads the annotations
        typer.Option(min=0, help="Fail unless this is the newest version; 0: none."),
    ] = None,
    read_back: Annotated[
        bool, typer.Option("--read-back", help="Read every chunk again and prove it.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Make a new version of a volume from files. What is there already is not sent again."""
    from trainmaster.cli.output import duration, print_json, say, size
    from trainmaster.cli.volume_progress import Progress, chunk_bytes, interruptible, now_s
    from trainmaster.cli.volume_tools import files_text, head_document
    from trainmaster.volumes.packed import PushProgress
    from trainmaster.volumes.packed import push as make

    interruptible()
    progress = PushProgress()
    began_s = now_s()
    with Progress(
        "push",
        lambda: (progress.done_bytes, progress.total_bytes),
        lambda: f"{size(progress.sent_bytes)} sent",
    ):
        report = make(
            source,
            url,
            chunk_limit_bytes=chunk_bytes(chunk_size),
            jobs=jobs,
            expect=expect,
            read_back=read_back,
            progress=progress,
            say=say,
        )
    taken_s = now_s() - began_s
    for note in report.notes:
        say(note)
    if as_json:
        print_json(
            {
                **head_document(report.head, report.uri),
                "sent_chunks": report.sent_chunks,
                "sent_bytes": report.sent_bytes,
                "shared_chunks": report.shared_chunks,
                "seconds": round(taken_s, 3),
            }
        )
        return
    say(
        f"{report.uri}: {files_text(report.head)} in {report.head.chunk_count:,} chunks, of which "
        f"{report.sent_chunks:,} ({size(report.sent_bytes)}) were sent, in {duration(taken_s)}"
    )


@app.command("index", no_args_is_help=True)
def index_objects(
    source: Annotated[
        str, typer.Argument(metavar="URL", help="A folder of objects: any files, tars, or MDS shards.")
    ],
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Where the volume is or will be, or its short name.")
    ],
    kind: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--as", metavar="files|tar|mds", help="What the objects are; found out by default."),
    ] = None,
    expect: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=0, help="Fail unless this is the newest version; 0: none."),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Make a volume over objects as they are, by byte range; nothing is copied."""
    from trainmaster.cli.output import duration, print_json, say
    from trainmaster.cli.volume_progress import interruptible, now_s
    from trainmaster.cli.volume_tools import files_text, head_document
    from trainmaster.spec.errors import UsageError
    from trainmaster.volumes.packed import index

    if kind not in (None, "files", "tar", "mds"):
        raise UsageError(f"--as {kind}: objects are files, tar or mds.", "Leave it out to have it found out.")
    interruptible()
    began_s = now_s()
    report = index(source, url, kind=kind, expect=expect, say=say)  # type: ignore[arg-type] # checked above
    taken_s = now_s() - began_s
    if as_json:
        print_json({**head_document(report.head, report.uri), "seconds": round(taken_s, 3)})
        return
    say(f"{report.uri}: {files_text(report.head)}, nothing copied, in {duration(taken_s)}")


@app.command("ls")
def list_files(
    volume: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="URL[@VERSION]", help="A volume; without one, those that have short names."),
    ] = None,
    path: Annotated[str, typer.Argument(help="A file or directory in it.")] = "",
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Also what lies deeper.")] = False,
    as_json: _Json = False,
) -> None:
    """List a volume's files, or the volumes."""
    if volume is None:
        _list_volumes(as_json)
        return
    from trainmaster.cli.volume_progress import printed
    from trainmaster.cli.volume_tools import entry_document, entry_line, row_at, rows_below
    from trainmaster.volumes.packed import open_volume

    opened = open_volume(volume)
    table = opened.table
    row = row_at(opened, path)
    rows = rows_below(table, row, recursive) if table.kind(row) == "directory" else iter([row])
    if as_json:
        import json
        import sys

        # One object, but never all of it in memory: a volume may have a hundred million files.
        sys.stdout.write(f'{{"volume": {json.dumps(opened.uri)}, "entries": [')
        for number, found in enumerate(rows):
            sys.stdout.write((", " if number else "") + json.dumps(entry_document(table.entry(found))))
        sys.stdout.write("]}\n")
        return
    for found in rows:
        printed(entry_line(table.entry(found)))


@app.command(no_args_is_help=True)
def cat(
    volume: _Volume,
    path: Annotated[str, typer.Argument(help="A file in it.")],
) -> None:
    """Write a file's content to standard output, proved by its hash."""
    import sys

    from trainmaster.cli.volume_tools import followed, row_at
    from trainmaster.spec.errors import UsageError
    from trainmaster.volumes.packed import open_volume
    from trainmaster.volumes.packed.getting import file_blocks

    opened = open_volume(volume)
    row = row_at(opened, path)
    for _ in range(40):
        if opened.table.kind(row) != "symlink":
            break
        row = row_at(opened, followed(opened.table.path(row), opened.table.entry(row).target))
    if opened.table.kind(row) != "file":
        raise UsageError(f"{opened.uri}: {path!r} is no file.", "List it: `trainmaster volume ls`.")
    for block in file_blocks(opened, row):
        sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()


@app.command(no_args_is_help=True)
def get(
    volume: _Volume,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where to put it; must not exist or be empty.")
    ],
    jobs: _Jobs = 4,
    as_json: _Json = False,
) -> None:
    """Download a version, verified; the directory appears when it is complete."""
    from trainmaster.cli.output import duration, print_json, say
    from trainmaster.cli.volume_progress import Progress, interruptible, now_s
    from trainmaster.cli.volume_tools import files_text, head_document
    from trainmaster.volumes.packed import GetProgress, open_volume
    from trainmaster.volumes.packed import get as download

    interruptible()
    began_s = now_s()
    opened = open_volume(volume)
    progress = GetProgress(opened.table.total_bytes)
    with Progress("get", lambda: (progress.done_bytes, progress.total_bytes)):
        download(opened, directory, jobs=jobs, progress=progress)
    taken_s = now_s() - began_s
    if as_json:
        print_json(
            {
                **head_document(opened.head, opened.uri),
                "directory": str(directory),
                "seconds": round(taken_s, 3),
            }
        )
        return
    say(f"{files_text(opened.head)} in {directory}, verified, in {duration(taken_s)}")


@app.command(no_args_is_help=True)
def versions(
    volume: Annotated[str, typer.Argument(metavar="URL", help="A volume's URL or short name.")],
    as_json: _Json = False,
) -> None:
    """List the versions of a volume."""
    from trainmaster.cli.output import print_json, say, size, table
    from trainmaster.cli.volume_tools import head_document
    from trainmaster.spec.errors import NotFoundError
    from trainmaster.volumes import ObjectStore
    from trainmaster.volumes.packed import head_numbers, read_head, volume_address

    store = ObjectStore(volume_address(volume).url)
    alive, newest = head_numbers(store)
    if not newest:
        raise NotFoundError(f"{store.url}: there is no volume.", "Look at the URL.")
    heads = [read_head(store, number) for number in alive]
    if as_json:
        print_json({"volume": store.url, "versions": [head_document(head) for head in heads]})
        return
    say(
        table(
            ["version", "published (UTC)", "files", "size", "chunks"],
            [
                [
                    str(head.version),
                    f"{head.created_at:%F %T}",
                    f"{head.file_count:,}",
                    size(head.total_bytes),
                    f"{head.chunk_count:,}",
                ]
                for head in heads
            ],
        )
    )


@app.command(no_args_is_help=True)
def rm(
    volume: _Volume,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before a whole volume is deleted.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Remove a version; without a version the whole volume. Chunks of a version are freed by `gc`."""
    import sys

    from trainmaster.cli.output import print_json, say
    from trainmaster.spec.errors import UsageError
    from trainmaster.volumes import ObjectStore
    from trainmaster.volumes.packed import remove_version, remove_volume, volume_address

    address = volume_address(volume)
    store = ObjectStore(address.url)
    if address.version is not None:
        remove_version(store, address.version)
    else:
        if not yes:
            if not sys.stdin.isatty():
                raise UsageError(
                    f"{store.url}: this would delete the volume with all its versions.",
                    "Add --yes, or name a version: URL@3.",
                )
            typer.confirm(f"Delete {store.url} with all its versions?", abort=True, err=True)
        remove_volume(store)
    if as_json:
        print_json({"volume": store.url, "removed": address.version or "all"})
        return
    say(f"{address} is gone" + ("; `trainmaster volume gc` frees its chunks" if address.version else ""))


@app.command(no_args_is_help=True)
def gc(
    volume: Annotated[str, typer.Argument(metavar="URL", help="A volume's URL or short name.")],
    grace: Annotated[str, typer.Option(help="Delete nothing younger than this.")] = "24h",
    as_json: _Json = False,
) -> None:
    """Delete the chunks that no version names. Safe beside pushes."""
    from trainmaster.cli.output import print_json, say, size
    from trainmaster.cli.volume_progress import seconds
    from trainmaster.volumes import ObjectStore
    from trainmaster.volumes.packed import collect_garbage, volume_address

    store = ObjectStore(volume_address(volume).url)
    done = collect_garbage(store, seconds(grace))
    if as_json:
        print_json(
            {
                "volume": store.url,
                "deleted_chunks": done.deleted_chunks,
                "deleted_bytes": done.deleted_bytes,
                "young_chunks": done.young_chunks,
                "kept_chunks": done.kept_chunks,
                "under_way": done.under_way,
            }
        )
        return
    if done.under_way:
        say(f"{store.url}: a push or another collection is under way: nothing was deleted; try later")
        return
    young = f"; {done.young_chunks:,} more are younger than {grace}" if done.young_chunks else ""
    say(f"{done.deleted_chunks:,} chunks deleted, {size(done.deleted_bytes)} freed{young}")


def _list_volumes(as_json: bool) -> None:
    from trainmaster.cli.output import print_json, say
    from trainmaster.volumes.packed.addresses import named_volumes

    names = named_volumes()
    if as_json:
        print_json({"volumes": names})
    elif names:
        for name in names:
            say(name)
    else:
        say("no volumes yet: `trainmaster volume push SRC NAME` makes one")
