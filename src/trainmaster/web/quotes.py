"""The page of a quote: how far it is, then what it says as a picture, and other clusters to take."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Reader, State, Submitter
from trainmaster.service.quotes.quote_requests import QUOTE
from trainmaster.service.quotes.traffic import traffic_runs_offered
from trainmaster.spec.errors import NotFoundError
from trainmaster.web.new_run import page_of, show_form
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
    runs = state.quotes.traffic_runs(caller, name) if "run" in caller.scopes else []
    measuring = {"words": traffic_runs_offered(runs), "max_usd": sum(each.cap_usd for each in runs)}
    template = "quote_part.html" if is_part(request) else "quote.html"
    return page(request, template, found=found, experiments=experiments, measuring=measuring)


@router.post("/quotes/{name}/traffic")
def measure(name: str, state: State, caller: Submitter, max_usd: Annotated[float, Form()]) -> Response:
    """Rents each type of workers whose traffic Scala-Opt does not know, for two minutes, each under a cap."""
    state.quotes.measure_traffic(caller, name, max_usd)
    return redirect("/runs")


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
    asked = {
        "policy": ask.policy or QUOTE,
        "per_hour": f"{ask.usd_per_hour:g}" if ask.usd_per_hour else "",
        "server": ask.parameter_server or "",
    }
    more = {
        **{key: value for key, value in asked.items() if value},
        "digest": ask.code or "",
        "most_workers": str(ask.max_workers or ""),
        "catalogue": ask.catalogue or "",
        "max_usd": f"{most_usd + 0.005:.2f}" if most_usd > 0 else "",
    }
    return show_form(request, state, caller, page_of(recipe, **more))
