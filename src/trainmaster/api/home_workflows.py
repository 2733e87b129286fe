"""`HomeWorkflows`: workflows of the owner of a home, which its server keeps; fulfils `WorkflowsProtocol`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.service import Service
from trainmaster.service.driving.submissions import Submissions
from trainmaster.service.users.access import Access
from trainmaster.service.users.caller import caller
from trainmaster.service.workflows.workflows import Workflows
from trainmaster.spec.trigger import needs_server


class HomeWorkflows:
    """Those of a home; a server of it, if there is one, sees what is changed.

    Args:
        service: of the home.
        environ: of the caller.
    """

    def __init__(self, service: Service, environ: Mapping[str, str]) -> None:
        submissions = Submissions(service, Access(service.database), environ, is_private=True)
        self._workflows = Workflows(service, submissions, environ)
        self._caller = caller("owner", None, ["read", "run"])

    def listed(self) -> list[dict[str, Any]]:
        return self._workflows.listed(self._caller)

    def show(self, name: str) -> dict[str, Any]:
        return self._workflows.show(self._caller, name)

    def register(self, plan: str, *, starts_now: bool = False, keep_s: float = 0.0) -> dict[str, Any]:
        raise needs_server("of a plan of this home")

    def pause(self, name: str) -> dict[str, Any]:
        return self._workflows.pause(self._caller, name)

    def resume(self, name: str) -> dict[str, Any]:
        return self._workflows.resume(self._caller, name)

    def trigger(self, name: str) -> dict[str, Any]:
        return self._workflows.trigger(self._caller, name)

    def remove(self, name: str) -> None:
        self._workflows.remove(self._caller, name)

    def rotate(self, name: str) -> dict[str, Any]:
        return self._workflows.rotate(self._caller, name)
