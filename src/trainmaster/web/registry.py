"""Pages of registered models: the list, and one with its versions, aliases and who moved them."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from trainmaster.api.rest.registry import Readable, Writable
from trainmaster.api.rest.state import State
from trainmaster.spec.metric_names import in_order
from trainmaster.web.new_run import volumes_of
from trainmaster.web.rendering import page, redirect

router = APIRouter(include_in_schema=False)


@router.get("/registry")
def models(request: Request, registry: Readable) -> Response:
    """What the team has given names."""
    return page(request, "registry.html", models=registry.models())


@router.post("/registry")
def register(
    registry: Writable,
    model: Annotated[str, Form()],
    name: Annotated[str, Form()],
    alias: Annotated[str, Form()] = "",
) -> Response:
    """Makes a model of a run the next version of a registered one."""
    registry.register(model, name, alias or None)
    return redirect(f"/registry/{quote(name)}")


@router.get("/registry/{name}")
def model(request: Request, name: str, registry: Readable, state: State) -> Response:
    """One of them."""
    found = registry.show(name)
    metrics = in_order(dict.fromkeys(key for each in found["versions"] for key in each["metrics"]))
    caller = request.state.caller
    may_move = "run" in caller.scopes
    volumes = volumes_of(state, caller) if may_move else []
    return page(
        request, "registered_model.html", model=found, metrics=metrics, may_move=may_move, volumes=volumes
    )


@router.post("/registry/{name}/aliases/{alias}")
def move(
    name: str,
    alias: str,
    registry: Writable,
    version: Annotated[str, Form()],
    expected: Annotated[int, Form()],
) -> Response:
    """Has an alias mean another version, if it means what the page has shown."""
    registry.promote(f"{name}@{version}", alias, expected)
    return redirect(f"/registry/{quote(name)}")


@router.post("/registry/{name}/aliases")
def add(
    name: str, registry: Writable, alias: Annotated[str, Form()], version: Annotated[str, Form()]
) -> Response:
    """A new alias."""
    registry.promote(f"{name}@{version}", alias, None)
    return redirect(f"/registry/{quote(name)}")


@router.post("/registry/{name}/aliases/{alias}/rollback")
def rollback(name: str, alias: str, registry: Writable, expected: Annotated[int, Form()]) -> Response:
    """Undoes the last move."""
    registry.rollback(f"{name}@{alias}", expected)
    return redirect(f"/registry/{quote(name)}")


@router.post("/registry/{name}/versions/{version}/remove")
def remove(name: str, version: int, registry: Writable) -> Response:
    """Takes a version out of the registry."""
    registry.remove(f"{name}@{version}")
    return redirect(f"/registry/{quote(name)}")
