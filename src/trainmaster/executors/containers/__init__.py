"""What members run in: containers of docker and podman, and sandboxes of Unix users."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def __getattr__(name: str) -> Any:  # noqa: ANN401 - as what it passes on
    """Of `command_line`: a supervisor that was started before an upgrade from 0.2.0 looks for it here."""
    import importlib

    return getattr(importlib.import_module(f"{__name__}.command_line"), name)
