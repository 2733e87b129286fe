"""Routes of models: list, files, one file, all as a zip."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Query, Response
from fastapi.responses import RedirectResponse, StreamingResponse
from pydantic import BaseModel, Field

from trainmaster.api.rest.state import Routes, Runs, Transfer
from trainmaster.service.models.model_files import ModelFiles
from trainmaster.service.teams.team_runs import MAX_PAGE

router = Routes(tags=["models"])


class ModelPage(BaseModel):
    """A page of models, those of the newest runs first."""

    models: list[dict[str, Any]]
    next: str | None = Field(description="the `cursor` of the page after it; null after the last")


class ModelFile(BaseModel):
    """A file of a model."""

    path: str
    size_bytes: int
    sha256: str
    mode: int = Field(description="permission bits")


class ModelLink(BaseModel):
    """A symbolic link of a model."""

    path: str
    target: str = Field(description="relative to the link's directory, and in the model")


class ModelListing(BaseModel):
    """What a model consists of."""

    model: str
    uri: str
    files: list[ModelFile]
    links: list[ModelLink]
    lineage: dict[str, Any] = Field(description="what it was made of: code, seed, attempt, data")


class ModelCheck(BaseModel):
    """What was looked at, and what of it is not whole."""

    models: int
    checkpoints: int
    damaged: list[dict[str, Any]] = Field(description="`run`, `uri`, `fault` and `advice` of each")
    unnamed: list[dict[str, Any]] = Field(description="`run`, `uri` and `bytes` of what nothing needs")
    unread: list[dict[str, Any]] = Field(description="`run` and `error`, if its store cannot be read")


@router.get("/models")
def page(
    runs: Runs,
    run: Annotated[str | None, Query(description="only those of this run")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    cursor: str | None = None,
) -> ModelPage:
    """What tasks left in their output directories."""
    return ModelPage(**runs.models(run, limit, cursor))


@router.get("/runs/{run}/models/check")
def check(run: str, runs: Runs) -> ModelCheck:
    """Look whether the models and checkpoints of a run are there, with all files in their sizes."""
    return ModelCheck(**runs.check_models(run))


@router.get("/models/{run}/{experiment}/{task}.zip")
def packed(run: str, experiment: str, task: int, runs: Runs, transfer: Transfer) -> StreamingResponse:
    """All files in one zip, without compression."""
    found = ModelFiles(*runs.manifest(run, experiment, task))
    name = f"{run}-{experiment}-{task}.zip"
    return StreamingResponse(transfer.sent(found.zipped()), headers=saved(name), media_type="application/zip")


@router.get("/models/{run}/{experiment}/{task}")
def listing(run: str, experiment: str, task: int, runs: Runs) -> ModelListing:
    """The files of a model."""
    found = ModelFiles(*runs.manifest(run, experiment, task))
    files = [
        ModelFile(path=f.path, size_bytes=f.size_bytes, sha256=f.sha256, mode=f.mode) for f in found.files
    ]
    links = [ModelLink(path=link.path, target=link.target) for link in found.links]
    lineage = runs.details(run).lineage(experiment, task)
    model = f"{run}/{experiment}/{task}"
    return ModelListing(model=model, uri=found.uri, files=files, links=links, lineage=lineage)


@router.get("/models/{run}/{experiment}/{task}/files/{path:path}")
def file(
    run: str, experiment: str, task: int, path: str, runs: Runs, transfer: Transfer, redirect: bool = True
) -> Response:
    """One file. Browsers save it: it is somebody's upload, and no page of ours.

    From S3, Google and Azure it is had there: 302 to a URL that is good for ten minutes, unless `redirect`
    says no.
    """
    found = ModelFiles(*runs.manifest(run, experiment, task))
    entry = found.find(path)
    if redirect and (url := found.link(entry)) is not None:
        return RedirectResponse(url, 302, headers={"cache-control": "no-store"})
    return StreamingResponse(
        transfer.sent(found.read(entry)),
        headers=saved(path.rpartition("/")[2], entry.size_bytes),
        media_type=_BYTES,
    )


_BYTES = "application/octet-stream"


def saved(name: str, size_bytes: int | None = None) -> dict[str, str]:
    """Headers of what browsers save as a file, and never show."""
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "content-security-policy": "sandbox; default-src 'none'",
    }
    if size_bytes is not None:
        headers["content-length"] = str(size_bytes)
    return headers
