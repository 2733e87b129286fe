"""Volumes as directories: mounted read-only through FUSE, or fetched whole where that is not possible.

Importing this package costs nothing; each name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster.volumes.mounting.errors import MountError
    from trainmaster.volumes.mounting.lifecycle import mount, unmount
    from trainmaster.volumes.mounting.mounts import available
    from trainmaster.volumes.mounting.providing import provide, provided, withdraw

__all__ = ["MountError", "available", "mount", "provide", "provided", "unmount", "withdraw"]

_HOME = {
    "MountError": "errors",
    "available": "mounts",
    "mount": "lifecycle",
    "provide": "providing",
    "provided": "providing",
    "unmount": "lifecycle",
    "withdraw": "providing",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
