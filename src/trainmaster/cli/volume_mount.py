"""``trainmaster volume mount`` and ``trainmaster volume unmount``."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from trainmaster.cli.output import print_json, say
from trainmaster.spec.errors import UsageError


class MountMeans(StrEnum):
    """The process that answers for a mounted volume."""

    fuse = "fuse"
    kernel = "kernel"


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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a volume as a directory, read-only, for all programs."""
    from trainmaster.cli.opening import server_of_volume
    from trainmaster.service.volumes import means_of, mount

    mounting: Callable[..., str] = mount
    if (server := server_of_volume(uri)) is not None:
        from trainmaster.api.remote.volume_objects import mount_served

        mounting = partial(mount_served, server)
    if foreground:
        say(f"mounting {uri} at {directory}; Ctrl-C ends it")
    mounted = mounting(uri, directory, foreground=foreground, means=means.value if means else None)
    if not foreground:
        say(f"{mounted} is mounted at {directory}; `trainmaster volume unmount {directory}` ends it")
        if as_json:
            place = directory.absolute()
            print_json({"uri": mounted, "directory": str(place), "means": means_of(str(place))})


def unmount_volume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where it is mounted.")],
) -> None:
    """End a mount."""
    from trainmaster.service.volumes import withdraw

    if not withdraw(directory):
        raise UsageError(f"No volume is mounted at {directory}.", "See `findmnt -t fuse.trainmaster,erofs`.")
    say(f"{directory} is no longer mounted")
