"""Starts Ray on a node and stays while it runs: ``python -m trainmaster.executors.ray.start PARAMETERS``.

As ``ray start --block`` does, without what no gang needs: Ray's command line (to import it costs half as much
as Ray itself), the process of its dashboard, and two agents on each node, of the dashboard and of runtime
environments: 80 MB and 0.7 s of CPU each, and the raylet takes no work before they are up.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

#: Is printed when it has.
STARTED = "Ray runtime started"
#: Instead of an agent: the raylet ends when it does, and it when the raylet does, which holds its input.
_NO_AGENT = "cat"
_AGENTS = ("--dashboard_agent_command=", "--runtime_env_agent_command=")
_NOBODY = -1  # what an agent without a service says of its port
_LOOK_S = 1.0
#: What Ray ends with when it is ended in order.
_EXPECTED = (0, -signal.SIGTERM, 128 + signal.SIGTERM)


def main(parameters: Mapping[str, Any]) -> None:
    """Start it, and stay.

    Args:
        parameters: of Ray's `RayParams`, JSON; ports may be texts. ``head``: whether this is the first node.
    """
    from ray._private import services
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    def start_no_dashboard(self: Any, **_: object) -> None:  # noqa: ANN401 - Ray has no types
        self._webui_url = None

    Node.start_api_server = start_no_dashboard
    originally = services.start_ray_process
    services.start_ray_process = lambda command, *args, **more: originally(
        _without_agents(command), *args, **more
    )
    given = {name: int(it) if name.endswith("_port") else it for name, it in parameters.items()}
    is_head = given.pop("head")
    node = Node(RayParams(**given), head=is_head, shutdown_at_exit=True, spawn_reaper=True)
    sys.stdout.write(f"{STARTED}\n")
    sys.stdout.flush()
    while True:
        time.sleep(_LOOK_S)
        if dead := [kind for kind, it in node.dead_processes() if it.returncode not in _EXPECTED]:
            sys.stdout.write(f"{', '.join(dead)} ended; so does all of Ray here\n")
            sys.stdout.flush()
            node.kill_all_processes(check_alive=False, allow_graceful=False)
            os._exit(1)


def _without_agents(command: list[str]) -> list[str]:
    """The command of a raylet without agents, and what it would learn from them; any other one as it is."""
    if not any(part.startswith(_AGENTS) for part in command):
        return command
    from importlib import import_module

    ray: Any = import_module("ray._raylet")  # compiled: no types
    given = dict(part.partition("=")[::2] for part in command)
    ports = {
        ray.METRICS_AGENT_PORT_NAME: _NOBODY,
        ray.METRICS_EXPORT_PORT_NAME: _NOBODY,
        ray.DASHBOARD_AGENT_LISTEN_PORT_NAME: _NOBODY,
        ray.RUNTIME_ENV_AGENT_PORT_NAME: int(given["--runtime_env_agent_port"]),
    }
    for name, number in ports.items():
        ray.persist_port(given["--session_dir"], given["--node_id"], name, number)
    quiet = {agent.rstrip("=") for agent in _AGENTS}
    return [f"{name}={_NO_AGENT}" if (name := part.partition("=")[0]) in quiet else part for part in command]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
