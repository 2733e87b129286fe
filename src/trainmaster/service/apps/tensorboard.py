"""`TensorBoard`: the app that shows event files of runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.executors._processes import kept_environment
from trainmaster.service.apps.app_host import AppKind, without_tensorflow
from trainmaster.service.apps.event_mirror import EventMirror

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.service.service import Service


class TensorBoard(AppKind):
    """A TensorBoard of runs."""

    def __init__(self, service: Service, row: RowMapping, directory: Path) -> None:
        super().__init__(service, row, directory)
        self._mirror = EventMirror(service, json.loads(row["runs"]), directory / "events")

    def command(self, port: int, token: str) -> tuple[list[str], dict[str, str]]:
        """TensorBoard itself; it has no login, and knows no token."""
        options = {
            "--logdir": str(self.directory / "events"),
            "--host": "127.0.0.1",
            "--port": str(port),
            "--path_prefix": self.prefix.rstrip("/"),
            "--reload_interval": "5",
            "--window_title": ", ".join(json.loads(self.row["runs"])),
        }
        words = [word for option in options.items() for word in option]
        return [*without_tensorflow("tensorboard.main"), *words], kept_environment()

    def look(self) -> None:
        """Bring what runs have written since."""
        self._mirror.look()
