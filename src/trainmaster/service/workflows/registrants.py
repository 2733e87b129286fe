"""`registrants`: who has registered workflows, and what that allows now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from trainmaster.service.users.access import Access
from trainmaster.service.users.caller import Caller, Maker, caller
from trainmaster.spec.errors import AccessError

if TYPE_CHECKING:
    from trainmaster.db import Database


def registrants(database: Database, workflows: Collection[Mapping[Any, Any]]) -> list[Caller | str]:
    """As whom each of these workflows starts its runs, or why it may start none any more.

    Both the account and the token that it was registered with must be good, and may run something.
    """
    makers = [
        Maker(row["registered_by"], row["account"], row["token"], row["team"] or None) for row in workflows
    ]
    found = Access(database).left_by(makers)
    return [_as_whom(maker, found[maker]) for maker in makers]


def _as_whom(maker: Maker, found: Caller | AccessError) -> Caller | str:
    try:
        if isinstance(found, AccessError):
            raise found
        found.need("run")
    except AccessError as error:
        return f"{error.args[0]}: register it again"
    return caller(maker.name, maker.team, found.scopes & {"read", "run"})
