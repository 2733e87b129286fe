"""Routes of saved views: names that one gives to what one looks for in the list of runs."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from trainmaster.api.rest.bodies import Body
from trainmaster.api.rest.state import Reader, Routes, State
from trainmaster.service.users.saved_views import KEYS, MAX_QUERY, SavedViews

router = Routes(tags=["views"])


class View(Body):
    """What one looks for."""

    query: str = Field(
        max_length=MAX_QUERY, description=f"as in the address of the list of runs: of {', '.join(KEYS)}"
    )


@router.get("/views")
def views(state: State, caller: Reader) -> dict[str, Any]:
    """One's own by name; others do not see them."""
    return {"views": SavedViews(state.service.database, caller).listed()}


@router.put("/views/{view}")
def put_view(view: str, body: View, state: State, caller: Reader) -> dict[str, Any]:
    """Keep what one looks for under a name; an earlier one of that name is gone."""
    return {"name": view.strip(), "query": SavedViews(state.service.database, caller).put(view, body.query)}


@router.delete("/views/{view}", status_code=204)
def remove_view(view: str, state: State, caller: Reader) -> None:
    """Forget it."""
    SavedViews(state.service.database, caller).remove(view)
