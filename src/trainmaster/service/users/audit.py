"""`Audit`: who did, or was refused, what; for whom, from where, with which token; is it whole."""

from __future__ import annotations

from typing import Any

from trainmaster.dataclass import dataclass
from trainmaster.db import Database, audit
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


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found by going through all of the audit.

    Attributes:
        entries: so many there are.
        head: hash of the newest.
        broken: id of the first entry that does not fit to those before it; None if all do.
        why: what is wrong; empty if nothing is.
    """

    entries: int
    head: str
    broken: int | None = None
    why: str = ""


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
        rows = audit.entries(
            self._database, team, after, limit + 1, which.name, which.action, is_denied=which.is_denied
        )
        found = [dict(row) for row in rows[:limit]]
        return {"audit": found, "next": found[-1]["id"] if len(rows) > limit else None}

    def verify(self, head: str = "") -> Verified:
        """Go through the chain.

        Args:
            head: a hash that was kept elsewhere: an entry must have it.

        Raises:
            StoreError: the database cannot be used.
        """
        while True:
            first = audit.first_id(self._database)
            found = self._walked(head)
            if not found.why or audit.first_id(self._database) == first:
                return found  # else entries were removed below our feet, as they were old

    def sent(self) -> list[dict[str, Any]]:
        """Where it is sent, how far that is, and why it is no further."""
        shown = ("target", "sent", "sent_at", "failures", "trouble")
        return [{key: row[key] for key in shown} for row in audit.sinks(self._database)]

    def _walked(self, head: str) -> Verified:
        entries = 0
        before, has_head = None, not head
        for row in audit.walk(self._database):
            entries += 1
            fits = {before or audit.BEGINNING}
            if before is None:
                fits |= audit.removed_up_to(self._database)
            if not any(audit.hash_of(each, row) == row["hash"] for each in fits):
                is_first = entries == 1
                why = "entries before it are missing" if is_first else "one before it was put in or taken out"
                return Verified(entries, before or "", row["id"], f"it was changed, or {why}")
            before = row["hash"]
            has_head = has_head or before == head
        why = "" if has_head else f"no entry has the hash {head}: the newest are missing, or it is long ago"
        return Verified(entries, before or "", None, why)
