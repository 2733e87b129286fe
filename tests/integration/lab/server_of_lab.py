"""`LabServer`: a `trainmaster server` with a home of its own that rents in the lab."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from renter import Renter
from running_server import RunningServer


class LabServer(RunningServer):
    """A server with a home of its own, which shares database, object store, key and lab."""

    def __init__(self, renter: Renter, place: Path, env: dict[str, str]) -> None:
        self.home, cache = place / "home", place / "cache"
        for directory in (self.home, cache):
            directory.mkdir(parents=True)
        (self.home / "lab").symlink_to(renter.lab.directory)
        runtimes = Path(renter.env["TRAINMASTER_CACHE"]) / "runtimes"
        runtimes.mkdir(parents=True, exist_ok=True)
        (cache / "runtimes").symlink_to(runtimes)  # as large as it is, and the same for all
        self.env = {**env, "TRAINMASTER_HOME": str(self.home), "TRAINMASTER_CACHE": str(cache)}
        super().__init__(lambda *arguments: renter.start(*arguments, **self.env))

    def read(self, path: str) -> bytes:
        with self.open("GET", "/api/v1" + path) as answer:
            found: bytes = answer.read()
            return found

    def json(self, path: str) -> Any:
        return self.ask("GET", path)[1]

    def kill_all(self) -> None:
        """Whatever is still there of it: drivers outlive their servers."""
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and f"TRAINMASTER_HOME={self.home}".encode() in (
                    entry / "environ"
                ).read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
