"""The one process per cluster that speaks with Ray: a daemon on the head node.

Drivers reach it through a socket (from elsewhere through `relay` over SSH). Nothing of Ray gets into a
driver's process, one process may drive several clusters, and no port of Ray's answers anybody who has no
certificate of the cluster's. When it is killed, the next one finds what runs: reservations are detached, and
nodes have records of their gangs.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from trainmaster.executors.fences import Fences
from trainmaster.executors.process_limits import forbid_core_dumps
from trainmaster.executors.ray.commands import authentication
from trainmaster.executors.ray.tls import is_there
from trainmaster.executors.supervisor import note

_HEAD_TIMEOUT_S = 5.0
_NAMESPACE = "trainmaster"
_BACKLOG = 128


def main(arguments: list[str]) -> None:
    """Become the gateway of a cluster, unless it has one."""
    forbid_core_dumps()
    directory = Path(arguments[0])
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(0)  # there is one
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    node = json.loads((directory.parent / "node.json").read_text())
    place = str(directory.parent)
    os.environ.update(authentication(place, tls=is_there(place)), RAY_USAGE_STATS_ENABLED="0")
    try:
        _connect(node)
        asyncio.run(_serve(directory))
    except (OSError, RuntimeError, ValueError) as error:
        note(
            f"the cluster's head at {node['cluster']} does not answer: {str(error).strip().splitlines()[-1:]}"
        )
        os._exit(1)
    (directory / "socket").unlink(missing_ok=True)
    os._exit(0)  # Ray's own leave-taking takes seconds


async def _serve(directory: Path) -> None:
    from trainmaster.executors.gangs.gateway import Gateway
    from trainmaster.executors.ray.engine import RayEngine

    gateway = Gateway(RayEngine(), Fences(str(directory / "fences.json"), note), note)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, gateway.end)
    listener = _listen(directory)

    async def serve() -> None:
        await asyncio.start_unix_server(gateway.accept, sock=listener, limit=1 << 20)

    await gateway.run(serve)


def _connect(node: dict[str, str]) -> None:
    host, _, port = node["cluster"].rpartition(":")
    socket.create_connection((host, int(port)), _HEAD_TIMEOUT_S).close()  # Ray would try for a minute
    import ray

    ray.init(
        address=node["cluster"],
        namespace=_NAMESPACE,
        _node_ip_address=node["address"],
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=False,
    )


def _listen(directory: Path) -> socket.socket:
    (directory / "socket").unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(directory / "socket"))
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


if __name__ == "__main__":
    main(sys.argv[1:])
