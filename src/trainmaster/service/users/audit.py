"""`Audit`: who did, or was refused, what; for whom, from where, and with which token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmaster.db import access

if TYPE_CHECKING:
    from trainmaster.db import Database
    from trainmaster.service.users.caller import Caller


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries are wanted; all without.

    Attributes:
        team: on whose behalf.
        name: who, whole.
        action: a part of method and path.
        is_denied: only what was refused.
    """

    team: str | None = None
    name: str | None = None
    action: str | None = None
    is_denied: bool = False


class Audit:
    """What was asked of the servers of a database: all writes, and what was refused.

    Args:
        database: of the home.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(
        self, caller: Caller, limit: int, after: int | None = None, which: AuditFilter | None = None
    ) -> dict[str, Any]:
        """``audit``, newest first, and ``next``: where the page after it begins, or None.

        A manager sees what was done for the team, an admin of the server everything.

        Raises:
            ForbiddenError: the caller may not manage.
        """
        caller.need("manage")
        which = which or AuditFilter()
        team = which.team if caller.sees_all else caller.team or ""
        rows = access.requests(
            self._database, team, after, limit + 1, which.name, which.action, is_denied=which.is_denied
        )
        found = [dict(row) for row in rows[:limit]]
        return {"audit": found, "next": found[-1]["id"] if len(rows) > limit else None}
