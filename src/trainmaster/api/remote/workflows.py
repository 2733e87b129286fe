"""`RemoteWorkflows`: workflows of a server; fulfils `WorkflowsProtocol` and is described there."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from trainmaster.api.remote.connection import quoted

if TYPE_CHECKING:
    from trainmaster.api.remote.connection import RestConnection


class RemoteWorkflows:
    """Those of the team.

    Args:
        connection: to the server.
    """

    def __init__(self, connection: RestConnection) -> None:
        self._to = connection

    def listed(self) -> list[dict[str, Any]]:
        return list(self._to.get("/workflows")["workflows"])

    def show(self, name: str) -> dict[str, Any]:
        return dict(self._to.get(f"/workflows/{quoted(name)}"))

    def register(self, plan: str, *, starts_now: bool = False, keep_s: float = 0.0) -> dict[str, Any]:
        body = {"plan": plan, "now": starts_now, "keep_s": keep_s}
        return dict(self._to.post("/workflows", body))

    def pause(self, name: str) -> dict[str, Any]:
        return dict(self._to.post(f"/workflows/{quoted(name)}/pause", repeats=True))

    def resume(self, name: str) -> dict[str, Any]:
        return dict(self._to.post(f"/workflows/{quoted(name)}/resume", repeats=True))

    def trigger(self, name: str) -> dict[str, Any]:
        return dict(self._to.post(f"/workflows/{quoted(name)}/trigger", key=secrets.token_hex(8)))

    def remove(self, name: str) -> None:
        self._to.ask("DELETE", f"/workflows/{quoted(name)}", {})

    def rotate(self, name: str) -> dict[str, Any]:
        return dict(self._to.post(f"/workflows/{quoted(name)}/secret"))
