"""``trainmaster volume push`` and ``trainmaster volume index``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.opening import refuse_volume_on_server, server_of_volume
from trainmaster.cli.options import AsJson
from trainmaster.cli.output import duration, print_json, say
from trainmaster.cli.volume_tools import (
    VolumeProgressBar,
    chunk_bytes,
    files_text,
    interruptible,
    now_s,
)
from trainmaster.service.volumes.stored import head_document
from trainmaster.spec.errors import UsageError
from trainmaster.spec.units import counted, format_bytes

if TYPE_CHECKING:
    from trainmaster.api.remote.connection import RestConnection

#: Of a task: whose volumes are known to be made by that run, so that workflows which they start see loops.
_RUN = "TRAINMASTER_RUN"
_CHUNKS, _JOBS = "64MiB", 4
_Jobs = Annotated[int, typer.Option("--jobs", min=1, max=64, help="Chunks moved at the same time.")]


def push(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="A directory or a tar; also the URL of one: http(s)://, file://, s3://, gs://, az://, hdfs://.",
        ),
    ],
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Where the volume is or will be, or its short name.")
    ],
    chunk_size: Annotated[str, typer.Option(help="No chunk is larger.")] = _CHUNKS,
    jobs: _Jobs = _JOBS,
    expect: Annotated[
        int | None, typer.Option(min=0, help="Fail unless this is the newest version; 0: none.")
    ] = None,
    read_back: Annotated[
        bool, typer.Option("--read-back", help="Read every chunk again and prove it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a new version of a volume from files. What is there already is not sent again."""
    from trainmaster.service.volumes import PushProgress
    from trainmaster.service.volumes import push as make

    if (server := server_of_volume(url)) is not None:
        if (chunk_size, jobs, expect, read_back) != (_CHUNKS, _JOBS, None, False):
            raise UsageError(
                "--chunk-size, --jobs, --expect and --read-back are for volumes that this machine packs",
                f"Leave them out: {server.url} packs {url}.",
            )
        _push_to_server(server, source, url, as_json)
        return
    progress = PushProgress()
    began_s = now_s()
    with (
        interruptible("no version was made; push again, and what was sent is not sent again"),
        VolumeProgressBar(
            "push", lambda: progress.shown, lambda: f"{format_bytes(progress.sent_bytes)} sent"
        ),
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
            made_by=os.environ.get(_RUN, ""),
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
    were = "was" if report.sent_chunks == 1 else "were"
    say(
        f"{report.uri}: {files_text(report.head)} in {counted(report.head.chunk_count, 'chunk')}, of which "
        f"{report.sent_chunks:,} ({format_bytes(report.sent_bytes)}) {were} sent, in {duration(taken_s)}"
    )


def _push_to_server(server: RestConnection, source: str, name: str, as_json: bool) -> None:
    from trainmaster.api.remote.volume_push import push as send
    from trainmaster.service.volumes import PushProgress

    progress = PushProgress()
    began_s = now_s()
    with (
        interruptible("no version was made; push again, and what was sent is not sent again"),
        VolumeProgressBar(
            "push", lambda: progress.shown, lambda: f"{format_bytes(progress.sent_bytes)} sent"
        ),
    ):
        done = send(server, source, name, progress, say, os.environ.get(_RUN, ""))
    taken_s = now_s() - began_s
    for note in done.notes:
        say(note)
    if as_json:
        document = {**head_document(done.head, done.uri), "sent_bytes": done.sent_bytes}
        print_json({**document, "seconds": round(taken_s, 3)})
        return
    say(
        f"{done.uri}: {files_text(done.head)} in {counted(done.head.chunk_count, 'chunk')}, "
        f"{format_bytes(done.sent_bytes)} sent, in {duration(taken_s)}"
    )


def index_objects(
    source: Annotated[
        str, typer.Argument(metavar="URL", help="A folder of objects: any files, tars, or MDS shards.")
    ],
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Where the volume is or will be, or its short name.")
    ],
    kind: Annotated[
        str | None,
        typer.Option("--as", metavar="files|tar|mds", help="What the objects are; found out by default."),
    ] = None,
    expect: Annotated[
        int | None, typer.Option(min=0, help="Fail unless this is the newest version; 0: none.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a volume over objects as they are, by byte range; nothing is copied."""
    from trainmaster.service.volumes import IndexProgress, index

    refuse_volume_on_server(
        "`volume index`",
        url,
        f"Send the files: `trainmaster volume push DIR {url}`; or name the URL where the index shall lie.",
    )
    if kind not in (None, "files", "tar", "mds"):
        raise UsageError(f"--as {kind}: objects are files, tar or mds.", "Leave it out to have it found out.")
    progress = IndexProgress()
    began_s = now_s()
    with (
        interruptible("no version was made"),
        VolumeProgressBar("index", lambda: progress.shown, lambda: counted(progress.found_objects, "object")),
    ):
        report = index(
            source,
            url,
            kind=kind,  # type: ignore[arg-type] # checked above
            expect=expect,
            progress=progress,
            say=say,
        )
    taken_s = now_s() - began_s
    if as_json:
        print_json({**head_document(report.head, report.uri), "seconds": round(taken_s, 3)})
        return
    for note in report.notes:
        say(note)
    say(f"{report.uri}: {files_text(report.head)}, nothing copied, in {duration(taken_s)}")
