"""Routes of the model registry: names, versions, aliases."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query, Response
from pydantic import Field

from trainmaster.api.rest.bodies import Body
from trainmaster.api.rest.state import Reader, Routes, State, Submitter
from trainmaster.service.models.registry import Registry
from trainmaster.service.users.caller import NO_TEAM, Caller
from trainmaster.spec.errors import NotFoundError
from trainmaster.spec.model_reference import ANY_VERSION

router = Routes(tags=["registry"])


class NewVersion(Body):
    """A model of a run that is to be a version."""

    model: str = Field(description="`RUN`, `RUN/EXPERIMENT` or `RUN/EXPERIMENT/TASK`")
    name: str = Field(description="of the registered model, which is made if there is none")
    alias: str | None = Field(None, description="that is to mean it from now on")
    tags: dict[str, str] = Field({}, description="of the version")


class About(Body):
    """What is said of a registered model; what is not named stays."""

    description: str | None = None
    tags: dict[str, str] | None = None


class Rollback(Body):
    """What is undone."""

    expected: int | None = Field(None, description="the version that the alias means now: else 409")


class AliasTarget(Rollback):
    """What an alias is to mean."""

    version: str = Field(description="a number, or another alias of the model")
    expected: int | None = Field(
        None, description="the version that the alias means now, null for none: else 409"
    )


def registry_of(state: State, caller: Caller) -> Registry:
    """That of the caller's team.

    Raises:
        NotFoundError: the caller is in no team.
    """
    if caller.team == NO_TEAM:
        raise NotFoundError("who is in no team has no models", "Ask a manager of a team for an invite.")
    return Registry(state.service, caller.team, caller.name, caller.own)


def _readable(state: State, caller: Reader) -> Registry:
    return registry_of(state, caller)


def _writable(state: State, caller: Submitter) -> Registry:
    return registry_of(state, caller)


Readable = Annotated[Registry, Depends(_readable)]
Writable = Annotated[Registry, Depends(_writable)]


@router.get("/registry")
def models(registry: Readable) -> dict[str, Any]:
    """The team's registered models by name, each with its aliases."""
    return {"models": registry.models()}


@router.post("/registry", status_code=201)
def register(body: NewVersion, registry: Writable, answer: Response) -> dict[str, Any]:
    """Make a model of a run a version; 200 if it is one already."""
    found = registry.register(body.model, body.name, body.alias, body.tags)
    if not found["new"]:
        answer.status_code = 200
    return found


@router.get("/registry/{name}")
def show(name: str, registry: Readable) -> dict[str, Any]:
    """A registered model: its versions, its aliases, and who moved them."""
    return registry.show(name)


@router.patch("/registry/{name}")
def describe(name: str, body: About, registry: Writable) -> dict[str, Any]:
    """Change its description or its tags."""
    return registry.describe(name, body.description, body.tags)


@router.get("/registry/{name}/versions/{version}")
def version(name: str, version: str, registry: Readable) -> dict[str, Any]:
    """A version, by its number or an alias, and its lineage."""
    return registry.made_of(f"{name}@{version}")


@router.delete("/registry/{name}/versions/{version}")
def remove(name: str, version: str, registry: Writable) -> dict[str, Any]:
    """Take a version out of the registry: its run keeps the model. 409 while an alias or a run needs it."""
    return registry.remove(f"{name}@{version}")


@router.put("/registry/{name}/aliases/{alias}")
def promote(name: str, alias: str, body: AliasTarget, registry: Writable) -> dict[str, Any]:
    """Have an alias mean a version. 409, with who did it, if it means another one than `expected`."""
    expected = body.expected if "expected" in body.model_fields_set else ANY_VERSION
    return registry.promote(f"{name}@{body.version}", alias, expected)


@router.post("/registry/{name}/aliases/{alias}/rollback")
def rollback(name: str, alias: str, body: Rollback, registry: Writable) -> dict[str, Any]:
    """Have an alias mean what it meant before."""
    return registry.rollback(f"{name}@{alias}", ANY_VERSION if body.expected is None else body.expected)


@router.delete("/registry/{name}/aliases/{alias}", status_code=204)
def remove_alias(name: str, alias: str, registry: Writable) -> None:
    """Take an alias away; the version stays."""
    registry.remove_alias(f"{name}@{alias}")


@router.get("/models-diff")
def difference(
    registry: Readable,
    a: Annotated[str, Query(description="`NAME@VERSION`, `NAME@ALIAS` or `RUN/EXPERIMENT/TASK`")],
    b: Annotated[str, Query(description="the other model, written as `a`")],
) -> dict[str, Any]:
    """In what two models differ: metrics, parameters, code, data, seed, environment, recipe."""
    return registry.diff(a, b)
