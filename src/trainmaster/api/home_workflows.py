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


class HomeWorkflows(Workflows):
    """Those of a home; a server of it, if there is one, sees what is changed.

    Args:
        service: of the home.
        environ: of the caller.
    """

    def __init__(self, service: Service, environ: Mapping[str, str]) -> None:
        submissions = Submissions(service, Access(service.database), environ, is_private=True)
        super().__init__(service, submissions, environ, caller("owner", None, ["read", "run"]))

    def register(
        self, plan: str, *, starts_now: bool = False, keep_s: float = 0.0, queue: bool = False
    ) -> dict[str, Any]:
        raise needs_server("of a plan of this home")
