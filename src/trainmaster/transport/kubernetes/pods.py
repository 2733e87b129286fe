"""`Pods`: pods as other machines are reached: commands by ``exec``, with the rights of one namespace."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Mapping
from typing import Final

from trainmaster.spec.errors import ProviderError
from trainmaster.transport.base import Target, Transport, UnreachableError
from trainmaster.transport.kubernetes.api import KubeApi, KubeRefusedError
from trainmaster.transport.kubernetes.exec_process import ExecProcess, load_websockets
from trainmaster.transport.kubernetes.login import read_login
from trainmaster.transport.process_connection import ProcessConnection

#: What stands in the place of the client `ssh`: a module; it gets `Node.way`, then what `ssh` gets.
CLIENT: Final = "trainmaster.transport.kubernetes.client"
#: Joins its input and output to a port; `python3` is what a node needs anyway.
_RELAY: Final = """\
import os, socket, sys, threading
line = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def down():
    try:
        while piece := line.recv(262144):
            while piece: piece = piece[os.write(1, piece):]
    finally: os._exit(0)
threading.Thread(target=down, daemon=True).start()
while piece := os.read(0, 262144): line.sendall(piece)
line.shutdown(1)
threading.Event().wait()
"""


def way_of(context: str, namespace: str, environ: Mapping[str, str]) -> str:
    """What `Node.way` says of a pod: which files, context and namespace it is in.

    >>> way_of("lab", "me", {"KUBECONFIG": "/k"})
    'KUBECONFIG=/k lab me'
    """
    return shlex.join([f"KUBECONFIG={environ.get('KUBECONFIG', '')}", context, namespace])


def api_of(way: str, environ: Mapping[str, str]) -> KubeApi:
    """The Kubernetes that a way leads to.

    Raises:
        UsageError: there is no login to it.
    """
    files, context, namespace = shlex.split(way)
    files = files.removeprefix("KUBECONFIG=")
    login = read_login(context, {**environ, "KUBECONFIG": files} if files else environ)
    return KubeApi(login, namespace)


class Pods(Transport):
    """Makes connections to pods. Threads share it."""

    def __init__(self) -> None:
        load_websockets()
        self._apis: dict[str, KubeApi] = {}
        self._lock = threading.Lock()

    def connect(self, target: Target) -> PodConnection:
        """A way to a pod that runs."""
        api = self._api(target)
        try:
            status = api.call("GET", f"pods/{target.address}", timeout_s=10.0).get("status") or {}
        except KubeRefusedError as refused:
            raise UnreachableError(f"{target.shown}: {refused.words}", "Has it ended?") from None
        except ProviderError as error:
            raise UnreachableError(f"{target.shown}: {Exception.__str__(error)}", error.hint) from None
        if status.get("phase") != "Running":
            raise UnreachableError(
                f"{target.shown}: it does not run ({status.get('phase')})", "Has it ended?"
            )
        return PodConnection(target, api)

    def _api(self, target: Target) -> KubeApi:
        with self._lock:
            if target.way not in self._apis:
                self._apis[target.way] = api_of(target.way, os.environ)
            return self._apis[target.way]


def pods_transport(place: object) -> Pods:
    """What pods are reached by: `Node.way` says with which login."""
    del place
    return Pods()


class PodConnection(ProcessConnection):
    """Each command is a connection of its own to Kubernetes; nothing else is kept open."""

    def __init__(self, target: Target, api: KubeApi) -> None:
        super().__init__(target)
        self._api = api

    async def start(self, command: str) -> ExecProcess:
        """See `ProcessConnection`."""
        return await ExecProcess.start(self._api, self.target.address, command, self.target.shown)

    async def reach(self, host: str, port: int) -> ExecProcess:
        """See `ProcessConnection`."""
        return await self.start(f"exec python3 -ISc {shlex.quote(_RELAY)} {shlex.quote(host)} {port}")
