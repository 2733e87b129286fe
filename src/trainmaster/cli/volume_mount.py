"""``trainmaster volume mount`` and ``trainmaster volume unmount``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def mount_volume(
    uri: Annotated[str, typer.Argument(metavar="URL", help="URL or NAME, with @VERSION for an older one.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where; empty, or not there yet.")],
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Serve until Ctrl-C instead of in the background.")
    ] = False,
) -> None:
    """Show a volume as a directory, read-only, for all programs."""
    from trainmaster.cli.output import say
    from trainmaster.volumes.mounting import mount

    if foreground:
        say(f"mounting {uri} at {directory}; Ctrl-C ends it")
    mounted = mount(uri, directory, foreground=foreground)
    if not foreground:
        say(f"{mounted} is mounted at {directory}; `trainmaster volume unmount {directory}` ends it")


def unmount_volume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where it is mounted.")],
) -> None:
    """End a mount."""
    from trainmaster.cli.output import say
    from trainmaster.spec.errors import UsageError
    from trainmaster.volumes.mounting import withdraw

    if not withdraw(directory):
        raise UsageError(f"No volume is mounted at {directory}.", "See `findmnt -t fuse.trainmaster`.")
    say(f"{directory} is no longer mounted")
