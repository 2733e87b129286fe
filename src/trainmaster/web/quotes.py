"""The page of a quote: how far it is, then what it says as a picture, and other clusters to take.

`QuoteFigure`: time against price of what a quote has compared, as numbers for a drawing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Reader, ServerState, State, Submitter
from trainmaster.dataclass import dataclass
from trainmaster.providers.loading import DEFAULT, NAMED
from trainmaster.service import OfferFilter
from trainmaster.service.offer_list import list_offers
from trainmaster.service.quotes.measuring_runs import MEASURED_S, measuring_runs_offered
from trainmaster.service.quotes.quote_requests import QUOTE
from trainmaster.spec.errors import NotFoundError, TrainmasterError
from trainmaster.web.axes import FigureAxis, Tick, time_unit_s
from trainmaster.web.new_run import page_of, show_form
from trainmaster.web.recipe_form import with_cluster
from trainmaster.web.rendering import duration, is_part, page, redirect, usd

#: Of the drawing, in CSS pixels, so that its text has the size that text has: on a desk, on a phone.
WIDTHS: Final = (600, 340)
HEIGHT: Final = 280
_LEFT: Final = 56
_RIGHT: Final = 16
_TOP: Final = 16
_BOTTOM: Final = 40
_MOST_POINTS: Final = 12
#: Of a name beside a point: how wide a letter is, and how far lines are apart.
_LETTER: Final = 8
_LINE: Final = 16
#: Of an interval's bar, what is shorter is not a part of its own; colours of the parts.
_LEAST_PART: Final = 0.015
_COLOURS: Final = 8


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """A cluster that no other one beats in both time and price.

    Attributes:
        index: of the quote's list.
        words: for people. time_s, cost_usd: medians.
        x, y: where it is drawn.
        is_chosen: the one that is quoted.
        cluster: as the quote has it.
        name: of the few that are proposed: ``fastest``, ``best value``, ``quoted``; else empty.
        name_x, name_y: where that begins, or ends if it is ``ends_there``.
    """

    index: int
    words: str
    time_s: float
    cost_usd: float
    x: float
    y: float
    is_chosen: bool
    cluster: Mapping[str, Any]
    name: str
    name_x: float
    name_y: float
    ends_there: bool


@dataclass(frozen=True, slots=True)
class QuoteFigure:
    """Of one experiment.

    Attributes:
        x_ticks, y_ticks: of time, of price.
        alternatives: fastest first.
        line: through them.
        x, y: of the median that is quoted.
        x_low, x_high, y_low, y_high: its interval of 90 %.
        then: from where to where its time is after the next measurement; None if unknown.
        is_free: nothing of it costs anything: there is no price to draw.
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
    is_free: bool
    width: int
    right: int
    height: int = HEIGHT
    left: int = _LEFT
    top: int = _TOP
    bottom: int = HEIGHT - _BOTTOM

    @classmethod
    def of(cls, quote: Mapping[str, Any], width: int = WIDTHS[0]) -> QuoteFigure | None:
        """The figure of an experiment's quote, as ``quote --json`` has it; None if it knows no time."""
        time_s, cost_usd = quote["time_s"], quote["cost_usd"]
        if time_s is None or cost_usd is None:
            return None
        front = _some(quote["pareto"], quote["cluster"])
        times = [time_s["p5"], time_s["p95"], *(each["time_s"] for _, each in front)]
        x = FigureAxis(times, _LEFT, width - _RIGHT, time_unit_s(max(times)))
        then_s = (quote["next_measurement"] or {}).get("time_s")
        costs = [cost_usd["p5"], cost_usd["p95"], *(each["cost_usd"] for _, each in front)]
        y = FigureAxis(costs, HEIGHT - _BOTTOM, _TOP)
        names = choices([each for _, each in front], quote["cluster"])
        points = [(x.at(each["time_s"]), y.at(each["cost_usd"])) for _, each in front]
        labels = _labels(points, names, width)
        alternatives = [
            ParetoPoint(
                index,
                cluster_words(each["cluster"]),
                each["time_s"],
                each["cost_usd"],
                points[place][0],
                points[place][1],
                each["cluster"] == quote["cluster"],
                each["cluster"],
                names.get(place, ""),
                labels[place][0],
                labels[place][1],
                labels[place][2],
            )
            for place, (index, each) in enumerate(front)
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
            max(costs) == 0,
            width,
            width - _RIGHT,
        )

    @property
    def then_y(self) -> float:
        """Where the interval after the measurement is drawn: beside the other one, and above the axis."""
        return self.y + 9 if self.y + 9 < self.bottom - 4 else self.y - 9

    @property
    def proposed(self) -> list[ParetoPoint]:
        """The few that are proposed, the fastest first."""
        return [each for each in self.alternatives if each.name]


def cluster_words(cluster: Mapping[str, Any]) -> str:
    """A cluster for people.

    >>> worker = {"count": 2, "instance": "g5.xlarge", "spot": True}
    >>> cluster_words({"worker": worker, "parameter_server": None})
    '2 x g5.xlarge (spot)'
    """
    worker, server = cluster["worker"], cluster["parameter_server"]
    text = f"{worker['count']} x {worker['instance']}{' (spot)' if worker['spot'] else ''}"
    return text + (f" + {server['count']} x {server['instance']} (parameter server)" if server else "")


def _labels(
    points: Sequence[tuple[float, float]], names: Mapping[int, str], width: int
) -> list[tuple[float, float, bool]]:
    """Where the names of points are: x, y, and whether they end there; none lies on another.

    >>> _labels([(100, 200), (120, 204)], {0: "best value", 1: "quoted"}, 340)
    [(109, 192, False), (129, 176, False)]
    """
    found: list[tuple[float, float, bool]] = []
    taken: list[tuple[float, float, float]] = []
    for place, (x, y) in enumerate(points):
        ends_there = x > width - 100
        at, long = x + (-9 if ends_there else 9), _LETTER * len(names.get(place, ""))
        begin, lowest = (at - long if ends_there else at), y - 8
        beside = [row for first, end, row in taken if begin < end and first < begin + long]
        while hit := [row for row in beside if abs(lowest - row) < _LINE]:
            lowest = min(hit) - _LINE
        if long:
            taken.append((begin, begin + long, lowest))
        found.append((at, lowest, ends_there))
    return found


def choices(front: Sequence[Mapping[str, Any]], quoted: Mapping[str, Any]) -> dict[int, str]:
    """The few of a front that are proposed: the fastest, one between, the quoted one, by their place.

    The one between is the knee, where less time begins to cost much more; where that is quoted, the knee of
    what is faster.

    >>> front = [{"time_s": t, "cost_usd": c, "cluster": t} for t, c in ((1, 100), (2, 10), (10, 9), (99, 8))]
    >>> choices(front, 10)
    {0: 'fastest', 1: 'best value', 2: 'quoted'}
    >>> choices(front, 99), choices(front[:1], 1)
    ({0: 'fastest', 1: 'best value', 3: 'quoted'}, {0: 'quoted'})
    >>> choices([*front[:1], *front[2:]], 10)
    {0: 'fastest', 1: 'quoted'}
    """
    found = {0: "fastest"} if front else {}
    quoted_at = next((place for place, each in enumerate(front) if each["cluster"] == quoted), None)
    knee, word = _knee(front), "best value"
    if knee is not None and knee == quoted_at:
        knee, word = _knee(front[: knee + 1]), "faster"
    if knee:
        found[knee] = word
    if quoted_at is not None:
        found[quoted_at] = "quoted"
    return dict(sorted(found.items()))


def _knee(front: Sequence[Mapping[str, Any]]) -> int | None:
    """Which one lies farthest below the line between the ends, by logarithms; None without a third one."""
    places = [(math.log(max(each["time_s"], 1e-9)), math.log(max(each["cost_usd"], 1e-9))) for each in front]
    if len(places) < 3:
        return None
    (x1, y1), (x2, y2) = places[0], places[-1]
    below = [(x2 - x1) * (y1 - y) - (x1 - x) * (y2 - y1) for x, y in places]
    return 1 + max(range(len(below) - 2), key=below[1:-1].__getitem__)


@dataclass(frozen=True, slots=True)
class BarPart:
    """A part of an interval's bar.

    Attributes:
        name: of the phase that takes it, or of whose time so much is not known.
        seconds: its own median, or how much is not known.
        at, width: in percent of the bar. Medians do not add up to that of the sum: all are drawn that much
            longer or shorter.
        kind: number of its colour; ``unsure`` for what lies between the median and the p95.
    """

    name: str
    seconds: float
    at: float
    width: float
    kind: str


@dataclass(frozen=True, slots=True)
class IntervalBar:
    """The time of a quote on a line from 0 to its p95, in percent: what it is made of, and its interval.

    Attributes:
        sure: until its p5. middle: its p50. end: its p95.
        ticks: for people, with places.
        parts: what takes the time until its p50, then whose time is not known; they add up to its p95.
    """

    sure: float
    middle: float
    end: float
    ticks: Sequence[Tick]
    parts: Sequence[BarPart]

    @classmethod
    def of(cls, time_s: Mapping[str, float], phases: Sequence[Mapping[str, Any]] = ()) -> IntervalBar:
        """Of an interval, and the phases that it is made of, as ``quote --json`` has them.

        >>> told = (("a", 20, 0.1), ("b", 60, 0.9))
        >>> phases = [{"phase": name, "time_s": {"p50": s}, "doubt": share} for name, s, share in told]
        >>> bar = IntervalBar.of({"p5": 50.0, "p50": 100.0, "p95": 200.0}, phases)
        >>> [(part.name, part.seconds, part.kind) for part in bar.parts]
        [('a', 20.0, '0'), ('b', 60.0, '1'), ('b', 90.0, 'unsure'), ('a', 10.0, 'unsure')]
        >>> [part.width for part in bar.parts]
        [12.5, 37.5, 45.0, 5.0]
        """
        axis = FigureAxis([0.0, time_s["p95"]], 0.0, 105.0, time_unit_s(time_s["p95"]))
        ticks = [Tick(axis.at(value), duration(value)) for value in axis.ticks if axis.at(value) <= 94]
        known = {each["phase"]: each["time_s"]["p50"] for each in phases}
        doubt = {each["phase"]: each["doubt"] for each in phases if each["doubt"] > 0}
        parts: list[BarPart] = []
        unknown_s = time_s["p95"] - time_s["p50"]
        for shares, drawn_s, told_s in (
            (known, time_s["p50"], sum(known.values())),
            (dict(sorted(doubt.items(), key=lambda each: -each[1])), unknown_s, unknown_s),
        ):
            least_s = _LEAST_PART * time_s["p95"]
            for number, (name, share) in enumerate(_seen(shares, least_s / drawn_s) if drawn_s > 0 else ()):
                at = parts[-1].at + parts[-1].width if parts else 0.0
                kind = str(number % _COLOURS) if shares is known else "unsure"
                parts.append(BarPart(name, share * told_s, at, 100 * share * drawn_s / time_s["p95"], kind))
        sure, middle, end = (axis.at(time_s[each]) for each in ("p5", "p50", "p95"))
        return cls(sure, middle, end, ticks, parts)


def _seen(parts: Mapping[str, float], least: float) -> list[tuple[str, float]]:
    """Shares of each, which add up to 1; those below a least one are one rest."""
    total = sum(parts.values())
    found = {name: part / total for name, part in parts.items()} if total else {}
    seen = {name: share for name, share in found.items() if share >= least}
    if len(found) - len(seen) <= 1:
        return list(found.items())
    return [*seen.items(), ("the rest", 1 - sum(seen.values()))]


def _some(
    front: Sequence[Mapping[str, Any]], cluster: Mapping[str, Any]
) -> list[tuple[int, Mapping[str, Any]]]:
    """Of many some, from the fastest to the cheapest, and the chosen one."""
    most = min(_MOST_POINTS, len(front))
    kept = {round(place * (len(front) - 1) / max(1, most - 1)) for place in range(most)}
    kept |= {place for place, each in enumerate(front) if each["cluster"] == cluster}
    return [(place, front[place]) for place in sorted(kept)]


router = APIRouter(include_in_schema=False)


@router.get("/quotes")
def quotes(request: Request, state: State, caller: Reader) -> Response:
    """Those that the team has asked for."""
    return page(request, "quotes.html", quotes=state.quotes.listed(caller))


@router.get("/quotes/{name}")
def show(request: Request, name: str, state: State, caller: Reader) -> Response:
    """How far it is, or what it says."""
    found = state.quotes.show(caller, QUOTE, name)
    experiments, bar = [], None
    if found["answer"]:
        quoted = found["answer"]["experiments"].items()
        total_s = found["answer"]["total"]["time_s"]
        phases = next(iter(quoted))[1].get("phases", ()) if len(quoted) == 1 else ()
        bar = IntervalBar.of(total_s, phases) if total_s and total_s["p95"] else None
        experiments = [
            (
                experiment,
                one,
                cluster_words(one["cluster"]),
                [figure for width in WIDTHS if one["pareto"] and (figure := QuoteFigure.of(one, width))],
                _priced_on(state, one["cluster"], found["answer"].get("catalogue", "")),
            )
            for experiment, one in quoted
        ]
    runs = state.quotes.measuring_runs(caller, name) if "run" in caller.scopes else []
    measuring = {
        "words": measuring_runs_offered(runs),
        "max_usd": sum(each.cap_usd for each in runs),
        "of_steps": any(each.seconds < MEASURED_S for each in runs),
        "narrows": all(each.narrows for each in runs),
    }
    template = "quote_part.html" if is_part(request) else "quote.html"
    return page(
        request,
        template,
        found=found,
        experiments=experiments,
        measuring=measuring,
        bar=bar,
        cap_usd=_cap_usd,
    )


def _cap_usd(most_usd: float) -> float:
    """The cap that a quote leads to: whole cents, and no less than it may cost.

    >>> [_cap_usd(each) for each in (0.0049, 0.01, 1.234)]
    [0.01, 0.01, 1.24]
    """
    return math.ceil(most_usd * 100 - 1e-6) / 100


def _priced_on(state: ServerState, cluster: Mapping[str, Any], catalogue: str) -> str:
    """The day of the price that was used: of the whole catalogue it would be that of the oldest one."""
    worker = cluster["worker"]
    if not worker.get("provider") or not worker.get("region"):
        return ""  # as answers of before have it
    which = OfferFilter(
        provider=worker["provider"],
        region=worker["region"],
        instances=(worker["instance"],),
        spot=worker["spot"],
    )
    named = catalogue if catalogue in NAMED and catalogue != DEFAULT else None
    with suppress(TrainmasterError):
        found = list_offers(state.service, state.environ, which, named)
        return found.as_of.isoformat() if found.as_of else ""
    return ""


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


@router.get("/quotes/{name}/change")
def change(
    request: Request, name: str, state: State, caller: Submitter, experiment: str = "", index: int = -1
) -> Response:
    """Its recipe, with the cluster that was taken, and the most that it may cost."""
    ask = state.quotes.ask_of(caller, QUOTE, name)
    answer: dict[str, Any] = state.quotes.show(caller, QUOTE, name)["answer"] or {}
    recipe = ask.recipe
    total = answer.get("total") or {}
    cost = None if total.get("without") else total.get("cost_usd")  # of a part it would cap all of it
    end_usd = total.get("end_usd", 0.0)  # a cap must leave that, or it ends the run
    most_usd = cost["p95"] + end_usd if cost else 0.0
    clusters = {each: one["cluster"] for each, one in answer.get("experiments", {}).items()}
    if experiment:
        try:
            taken = answer["experiments"][experiment]["pareto"][index]
            clusters = {experiment: taken["cluster"]}
        except (KeyError, IndexError):
            raise NotFoundError("the quote has no such cluster", "Quote it again.") from None
        if cost:  # else something is not known
            own = answer["experiments"][experiment]["cost_usd"]
            # As uncertain as what was quoted, which has an interval.
            width = own["p95"] / own["p50"] if own["p50"] else 1.0
            most_usd += taken["cost_usd"] * width - own["p95"]
            had_usd = answer["experiments"][experiment]["cluster"].get("usd_per_hour", 0.0)
            if had_usd:
                most_usd += end_usd * max(taken["cluster"].get("usd_per_hour", 0.0) / had_usd - 1, 0.0)
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
        "bandwidth": ask.bandwidth or "",
        "measurements": ask.measurements or "",
        "keep": f"{ask.keep_s:g}s" if ask.keep_s else "",
        "max_usd": f"{_cap_usd(most_usd):.2f}" if most_usd > 0 else "",
    }
    return show_form(request, state, caller, page_of(recipe, **more))
