"""Pages of models."""

from __future__ import annotations

from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Runs
from trainmaster.spec import Recipe
from trainmaster.spec.metric_names import COUNTERS, in_order
from trainmaster.web.rendering import PAGE_ROWS, page

#: Of metrics, and of parameters, in the table; the page of a model has all.
_COLUMNS = 6
router = APIRouter(include_in_schema=False)


@router.get("/models")
def models(request: Request, found: Runs, run: str = "", cursor: str | None = None) -> Response:
    """What tasks left, of one run or of all."""
    listed = found.models(run or None, PAGE_ROWS, cursor)
    more = urlencode({"run": run, "cursor": listed["next"]}) if listed["next"] else ""
    found_models = listed["models"]
    names = [name for each in found_models for name in each["metrics"] if name not in COUNTERS]
    parameters = [name for each in found_models for name in each["parameters"]]
    return page(
        request,
        "models.html",
        models=found_models,
        metrics=in_order(dict.fromkeys(names))[:_COLUMNS],
        parameters=list(dict.fromkeys(parameters))[:_COLUMNS],
        more=more,
        run=run,
    )


@router.get("/models/{run}/{experiment}/{task}")
def model(request: Request, run: str, experiment: str, task: int, found: Runs) -> Response:
    """One model: its files, metrics and where it is from."""
    about = found.model(run, experiment, task)
    _, manifest = found.manifest(run, experiment, task)
    files = [entry for entry in manifest.files if entry.kind == "file"]
    lineage = found.details(run).lineage(experiment, task)
    recipe = found.recipe(run)
    may_register = "run" in request.state.caller.scopes
    return page(
        request, "model.html", model=about, files=files, lineage=lineage, recipe_text=recipe,
        may_register=may_register, is_answers=leaves_answers(found.details(run).recipe(), experiment),
    )  # fmt: skip


def leaves_answers(recipe: Recipe, experiment: str) -> bool:
    """Whether what its tasks leave is what another model answers to files: nothing that could be asked."""
    command = recipe.experiments[experiment].command
    return "trainmaster.inference" in command and "--files" in command
