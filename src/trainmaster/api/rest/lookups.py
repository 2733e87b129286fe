"""Routes: resolve a run id, a one-line summary of a run, all its metrics."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import chain, islice
from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from trainmaster.api.rest.state import Routes, Runs, Submitter, Transfer
from trainmaster.service import capabilities_of

router = Routes(tags=["runs"])


class RunId(BaseModel):
    """Which run is meant."""

    run: str


class RunLine(BaseModel):
    """The line of a run in the list, and whether it has machines that say themselves when they are lost."""

    line: dict[str, Any]
    rents: bool


class SavedModels(BaseModel):
    """What became of models that could not be saved before."""

    models: list[dict[str, Any]]


class FoundModel(BaseModel):
    """The one model that a name means."""

    run: str
    experiment: str
    task: int
    uri: str


@router.get("/find-run")
def resolve(name: str, runs: Runs) -> RunId:
    """The id of a run by its name, a beginning, or `latest`, the last one that the caller has sent."""
    return RunId(run=runs.resolve(name))


@router.get("/runs/{run}/line")
def line(run: str, runs: Runs) -> RunLine:
    """Its line in the list of runs: quick, to be asked often."""
    return RunLine(line=runs.brief(run), rents=not capabilities_of(str(runs.row(run)["provider"])).is_here)


@router.get("/runs/{run}/highlights")
def highlights(run: str, runs: Runs) -> dict[str, Any]:
    """What people are shown beside its state: tasks that run or did not succeed, notes."""
    return asdict(runs.highlights(run))


@router.get("/runs/{run}/points", response_class=StreamingResponse)
def points(
    run: str,
    runs: Runs,
    transfer: Transfer,
    experiment: str | None = None,
    task: int | None = None,
    nan: Annotated[bool, Query(description="NaN and the infinities as Python has them, not null")] = False,
) -> StreamingResponse:
    """All that its tasks have reported, a line of JSON per report, in order; `/metrics` thins it."""
    from trainmaster.service.runs.metric_export import in_json

    rows = runs.points(run, experiment, task)
    rows = rows if nan else in_json(rows)
    first = list(islice(rows, 1))  # what is not there is said before the answer begins
    lines = (json.dumps(row, default=str) + "\n" for row in chain(first, rows))
    return StreamingResponse(transfer.sent(lines), media_type="application/x-ndjson")


@router.post("/runs/{run}/models/save")
def save_models(run: str, runs: Runs, caller: Submitter) -> SavedModels:
    """Publish the models that it could not save."""
    return SavedModels(models=[asdict(saved) for saved in runs.save_models(run)])


@router.get("/find-model")
def find_model(name: str, runs: Runs) -> FoundModel:
    """The one model that `RUN`, `RUN/EXPERIMENT` or `RUN/EXPERIMENT/TASK` means."""
    found = runs.find_model(name)
    return FoundModel(**{key: found[key] for key in FoundModel.model_fields})
