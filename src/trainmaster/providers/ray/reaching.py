"""The way to machines of the Ray that a home's settings name: what `TRANSPORTS` names, and a client.

``python -m trainmaster.providers.ray.reaching WAY [-t] [-L FILE:HOST:PORT] MACHINE COMMAND``
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Final

from trainmaster.providers.base import ProviderPlace
from trainmaster.providers.ray.settings import RAY, RaySettings
from trainmaster.transport.ray.bundles import RayTransport
from trainmaster.transport.ray.proxy import RayProxy, proxy_of

#: What stands in the place of the client `ssh`: a module; it gets `Node.way`, then what `ssh` gets.
CLIENT: Final = "trainmaster.providers.ray.reaching"


def ray_transport(place: ProviderPlace) -> RayTransport:
    """What `TRANSPORTS` names."""
    return RayTransport(proxy_of(RAY.read(place.root, place.environ), place.root))


def way_of(settings: RaySettings, root: Path) -> str:
    """What `Node.way` says of a machine: which settings lead to it, and the home that knows host keys."""
    return shlex.join([str(settings.file), str(root)])


def proxy_at(way: str) -> RayProxy:
    """What speaks with the Ray that a way leads to.

    Raises:
        UsageError: its settings are not there, or are wrong.
    """
    file, root = shlex.split(way)
    return proxy_of(RAY.read(Path(root), {"TRAINMASTER_RAY": file}), Path(root))


if __name__ == "__main__":
    from trainmaster.transport.ray.client import main

    sys.exit(main(proxy_at))
