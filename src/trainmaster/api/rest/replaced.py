"""`LoadedFiles`: whether the package was installed again below a server that goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from trainmaster import __version__
from trainmaster.spec.errors import StoreError

_PACKAGE: Final = "trainmaster"


class ReplacedError(StoreError):
    """Files of ours are others than those that this process has begun with (HTTP 503)."""


class LoadedFiles:
    """The files of our modules that are loaded when it is made.

    Args:
        files: these; without, those of this process.
    """

    def __init__(self, files: Iterable[str] | None = None) -> None:
        modules = [each for name, each in sys.modules.items() if name.partition(".")[0] == _PACKAGE]
        found = files or [file for each in modules if (file := getattr(each, "__file__", None))]
        self._were = {file: _state(file) for file in found}

    def replaced(self) -> ReplacedError | None:
        """What to tell of an error of ours if they were replaced since; None if they were not.

        A part that is loaded late is then of another version than those that use it.
        """
        if all(_state(file) == was for file, was in self._were.items()):
            return None
        return ReplacedError(
            f"this server began as trainmaster {__version__}, and its files were replaced since",
            "Restart the server, then do it again: runs go on meanwhile.",
        )


def _state(file: str) -> tuple[int, ...]:
    try:
        found = Path(file).stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns
