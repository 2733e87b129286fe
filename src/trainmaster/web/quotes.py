"""The page of a quote: how far it is, then what it says as a picture, and other clusters to take."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Reader, ServerState, State, Submitter
from trainmaster.service.driving.submissions import RunRequest
from trainmaster.service.quotes.quote_requests import QUOTE
from trainmaster.service.quotes.traffic import TrafficRun, traffic_runs, traffic_runs_offered
from trainmaster.service.users.caller import Caller
from trainmaster.spec.errors import NotFoundError
from trainmaster.web.new_run import NewRun, show_form
from trainmaster.web.quote_figure import QuoteFigure, cluster_words
from trainmaster.web.recipe_form import with_cluster
from trainmaster.web.rendering import is_part, page, redirect

router = APIRouter(include_in_schema=False)


@router.get("/quotes/{name}")
def show(request: Request, name: str, state: State, caller: Reader) -> Response:
    """How far it is, or what it says."""
    found = state.quotes.show(caller, QUOTE, name)
    experiments = []
    if found["answer"]:
        quoted = found["answer"]["experiments"].items()
        experiments = [
            (experiment, one, cluster_words(one["cluster"]), QuoteFigure.of(one))
            for experiment, one in quoted
        ]
    measuring = traffic_runs_offered(runs) if (runs := _traffic_runs(state, caller, name, found)) else ""
    template = "quote_part.html" if is_part(request) else "quote.html"
    return page(request, template, found=found, experiments=experiments, measuring=measuring)


@router.post("/quotes/{name}/measure")
def measure(name: str, state: State, caller: Submitter) -> Response:
    """Rents each type of workers whose traffic Scala-Opt does not know, for two minutes, each under a cap."""
    ask, found = state.quotes.ask_of(caller, QUOTE, name), state.quotes.show(caller, QUOTE, name)
    recipe = state.submissions.read(caller, ask.run_request)
    for each in _traffic_runs(state, caller, name, found):
        changed = recipe.model_copy(update={"overrides": (*recipe.overrides, *each.overrides)})
        asked = RunRequest(changed.as_yaml(), ask.code, ask.provider, each.cap_usd)
        state.submissions.submit(caller, asked, f"{name}-{each.instance}")
    return redirect("/runs")


def _traffic_runs(state: ServerState, caller: Caller, name: str, found: dict[str, Any]) -> list[TrafficRun]:
    """What is to be measured before Scala-Opt can choose, of the first experiment that needs it."""
    error, answer = found["error"] or {}, found["answer"] or {}
    unknown = {error["experiment"]: error["types"]} if error.get("types") else {}
    if str(answer.get("policy", "")).startswith("scala-opt"):
        unknown = {key: one["types"] for key, one in answer["experiments"].items() if one.get("types")}
    if not unknown or "run" not in caller.scopes:
        return []
    recipe = state.submissions.read(caller, state.quotes.ask_of(caller, QUOTE, name).run_request)
    every = (traffic_runs(recipe, experiment, types) for experiment, types in unknown.items())
    return next((runs for runs in every if runs), [])


@router.post("/quotes/{name}/cancel")
def cancel(name: str, state: State, caller: Submitter) -> Response:
    """Ends it."""
    state.quotes.cancel(caller, QUOTE, name)
    return redirect(f"/quotes/{name}")


@router.post("/quotes/{name}/change")
def change(
    request: Request,
    name: str,
    state: State,
    caller: Submitter,
    experiment: Annotated[str, Form()] = "",
    index: Annotated[int, Form()] = -1,
) -> Response:
    """Its recipe, with the cluster that was taken, and the most that it may cost."""
    ask = state.quotes.ask_of(caller, QUOTE, name)
    answer: dict[str, Any] = state.quotes.show(caller, QUOTE, name)["answer"] or {}
    recipe = ask.recipe
    cost = (answer.get("total") or {}).get("cost_usd")
    most_usd = cost["p95"] if cost else 0.0
    clusters = {each: one["cluster"] for each, one in answer.get("experiments", {}).items()}
    if experiment:
        try:
            taken = answer["experiments"][experiment]["pareto"][index]
            clusters = {experiment: taken["cluster"]}
        except (KeyError, IndexError):
            raise NotFoundError("the quote has no such cluster", "Quote it again.") from None
        own = answer["experiments"][experiment]["cost_usd"]
        # As uncertain as what was quoted, which has an interval.
        width = own["p95"] / own["p50"] if own["p50"] else 1.0
        most_usd += taken["cost_usd"] * width - own["p95"]
    elif answer.get("policy") == QUOTE and not ask.parameter_server and not ask.catalogue:
        clusters = {}  # what is run is chosen as it was quoted
    for each, cluster in clusters.items():
        recipe = with_cluster(recipe, each, cluster)
    form = NewRun(
        recipe=recipe,
        digest=ask.code or "",
        policy=ask.policy or QUOTE,
        catalogue=ask.catalogue or "",
        per_hour=f"{ask.usd_per_hour:g}" if ask.usd_per_hour else "",
        server=ask.parameter_server or "",
        most_workers=str(ask.max_workers or ""),
        max_usd=f"{most_usd + 0.005:.2f}" if most_usd > 0 else "",
    )
    return show_form(request, state, caller, form)
