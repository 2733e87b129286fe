"""The way to machines of the Ray that a home's settings name: what `TRANSPORTS` names, and a client.

``python -m trainmaster.providers.ray.reaching WAY [-t] [-L FILE:HOST:PORT] MACHINE COMMAND``
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Final

from trainmaster.providers.base import ProviderPlace
from trainmaster.providers.ray.settings import RAY, RaySettings
from trainmaster.transport.checked_connection import TEAM_VARIABLE, team_may_reach
from trainmaster.transport.ray.bundles import RayTransport
from trainmaster.transport.ray.proxy import RayProxy, proxy_of

#: What stands in the place of the client `ssh`: a module; it gets `Node.way`, then what `ssh` gets.
CLIENT: Final = "trainmaster.providers.ray.reaching"


def ray_transport(place: ProviderPlace) -> RayTransport:
    """What `TRANSPORTS` names."""
    settings = RAY.read(place.root, place.environ)
    return RayTransport(proxy_of(settings, place.root, team_may_reach(place.environ)))


def way_of(settings: RaySettings, place: ProviderPlace) -> str:
    """What `Node.way` says of a machine: settings that lead to it, who knows host keys, whose login it is."""
    return shlex.join([str(settings.file), str(place.root), *([place.team] if place.team else [])])


def proxy_at(way: str) -> RayProxy:
    """What speaks with the Ray that a way leads to.

    Raises:
        UsageError: its settings are not there, or are wrong.
    """
    file, root, *team = shlex.split(way)
    may_reach = team_may_reach({**os.environ, TEAM_VARIABLE: team[0]}) if team else None
    return proxy_of(RAY.read(Path(root), {"TRAINMASTER_RAY": file}), Path(root), may_reach)


if __name__ == "__main__":
    from trainmaster.transport.ray.client import main

    sys.exit(main(proxy_at))
