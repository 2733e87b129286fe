"""The page of a quote: how far it is, then what it says as a picture, and other clusters to take.

`QuoteFigure`: time against price of what a quote has compared, as numbers for a drawing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Reader, State, Submitter
from trainmaster.service.quotes.measuring_runs import MEASURED_S, measuring_runs_offered
from trainmaster.service.quotes.quote_requests import QUOTE
from trainmaster.spec.errors import NotFoundError
from trainmaster.web.axes import FigureAxis, Tick, time_unit_s
from trainmaster.web.new_run import page_of, show_form
from trainmaster.web.recipe_form import with_cluster
from trainmaster.web.rendering import duration, is_part, page, redirect, usd

#: Of the drawing, in its own units; a phone shows it about as large.
WIDTH: Final = 420
HEIGHT: Final = 300
_LEFT: Final = 62
_RIGHT: Final = 14
_TOP: Final = 22
_BOTTOM: Final = 46
_MOST_POINTS: Final = 8


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """A cluster that no other one beats in both time and price.

    Attributes:
        index: of the quote's list.
        words: for people. time_s, cost_usd: medians.
        x, y: where it is drawn.
        is_chosen: the one that is quoted.
        cluster: as the quote has it.
    """

    index: int
    words: str
    time_s: float
    cost_usd: float
    x: float
    y: float
    is_chosen: bool
    cluster: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class QuoteFigure:
    """Of one experiment.

    Attributes:
        x_ticks, y_ticks: of time, of price.
        alternatives: fastest first.
        line: through them.
        x, y: of the median that is quoted.
        x_low, x_high, y_low, y_high: its interval of 90 %.
        then: from where to the interval of its time after the next measurement; None if unknown.
        width, height, left, right, top, bottom: of the drawing, and of what is within its axes.
    """

    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    alternatives: Sequence[ParetoPoint]
    line: str
    x: float
    y: float
    x_low: float
    x_high: float
    y_low: float
    y_high: float
    then: tuple[float, float] | None
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = HEIGHT - _BOTTOM

    @classmethod
    def of(cls, quote: Mapping[str, Any]) -> QuoteFigure | None:
        """The figure of an experiment's quote, as ``quote --json`` has it; None if it knows no time."""
        time_s, cost_usd = quote["time_s"], quote["cost_usd"]
        if time_s is None or cost_usd is None:
            return None
        front = _some(quote["pareto"], quote["cluster"])
        times = [time_s["p5"], time_s["p95"], *(each["time_s"] for _, each in front)]
        x = FigureAxis(times, _LEFT, WIDTH - _RIGHT, time_unit_s(max(times)))
        then_s = (quote["next_measurement"] or {}).get("time_s")
        costs = [cost_usd["p5"], cost_usd["p95"], *(each["cost_usd"] for _, each in front)]
        y = FigureAxis(costs, HEIGHT - _BOTTOM, _TOP)
        alternatives = [
            ParetoPoint(
                index,
                cluster_words(each["cluster"]),
                each["time_s"],
                each["cost_usd"],
                x.at(each["time_s"]),
                y.at(each["cost_usd"]),
                each["cluster"] == quote["cluster"],
                each["cluster"],
            )
            for index, each in front
        ]
        return cls(
            [Tick(x.at(value), duration(value)) for value in x.ticks],
            [Tick(y.at(value), usd(value)) for value in y.ticks],
            alternatives,
            " ".join(f"{each.x},{each.y}" for each in alternatives),
            x.at(time_s["p50"]),
            y.at(cost_usd["p50"]),
            x.at(time_s["p5"]),
            x.at(time_s["p95"]),
            y.at(cost_usd["p5"]),
            y.at(cost_usd["p95"]),
            None if then_s is None else (x.at(then_s["p5"]), x.at(then_s["p95"])),
        )


def cluster_words(cluster: Mapping[str, Any]) -> str:
    """A cluster for people.

    >>> worker = {"count": 2, "instance": "g5.xlarge", "spot": True}
    >>> cluster_words({"worker": worker, "parameter_server": None})
    '2 x g5.xlarge (spot)'
    """
    worker, server = cluster["worker"], cluster["parameter_server"]
    text = f"{worker['count']} x {worker['instance']}{' (spot)' if worker['spot'] else ''}"
    return text + (f" + {server['count']} x {server['instance']} (parameter server)" if server else "")


def _some(
    front: Sequence[Mapping[str, Any]], cluster: Mapping[str, Any]
) -> list[tuple[int, Mapping[str, Any]]]:
    """Of many some, from the fastest to the cheapest, and the chosen one."""
    most = min(_MOST_POINTS, len(front))
    kept = {round(place * (len(front) - 1) / max(1, most - 1)) for place in range(most)}
    kept |= {place for place, each in enumerate(front) if each["cluster"] == cluster}
    return [(place, front[place]) for place in sorted(kept)]


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
    runs = state.quotes.measuring_runs(caller, name) if "run" in caller.scopes else []
    measuring = {
        "words": measuring_runs_offered(runs),
        "max_usd": sum(each.cap_usd for each in runs),
        "of_steps": any(each.seconds < MEASURED_S for each in runs),
    }
    template = "quote_part.html" if is_part(request) else "quote.html"
    return page(request, template, found=found, experiments=experiments, measuring=measuring)


@router.post("/quotes/{name}/measure")
def measure(name: str, state: State, caller: Submitter, max_usd: Annotated[float, Form()]) -> Response:
    """Rents what has to be measured first, for a minute or two, each under a cap."""
    state.quotes.measure(caller, name, max_usd)
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
