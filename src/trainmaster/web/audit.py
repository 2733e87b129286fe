"""The page of the audit: who did, or was refused, what."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Cursor, Manager, State
from trainmaster.service.users.audit import Audit, AuditFilter
from trainmaster.web.rendering import PAGE_ROWS, page

router = APIRouter(include_in_schema=False)


@router.get("/audit")
def audit(
    request: Request,
    state: State,
    caller: Manager,
    cursor: Cursor = None,
    name: str = "",
    action: str = "",
    denied: Annotated[bool, Query()] = False,
) -> Response:
    """The newest entries that are wanted, and a link to older ones."""
    which = AuditFilter(None, name.strip() or None, action.strip() or None, denied)
    found = Audit(state.service.database).page(caller, PAGE_ROWS, cursor, which)
    kept = {"name": name, "action": action, **({"denied": "true"} if denied else {})}
    more = urlencode({**kept, "cursor": found["next"]}) if found["next"] is not None else ""
    wanted = {"name": name, "action": action, "denied": denied}
    return page(request, "audit.html", entries=found["audit"], more=more, wanted=wanted)
