"""What a server is asked for and takes a while to answer: quotes and plans."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final

from trainmaster.advisor.quote.quote import Quote
from trainmaster.api.remote.connection import RestConnection, error_of, quoted
from trainmaster.api.remote.protocol_parts import names_file_of
from trainmaster.api.remote.streaming import Listening
from trainmaster.api.results import RunPlan
from trainmaster.dataclass import dataclass
from trainmaster.service import ProfileProgress
from trainmaster.service.offer_list import OfferList
from trainmaster.service.quotes.quote_options import QuoteOptions
from trainmaster.spec import Recipe
from trainmaster.spec.errors import InterruptedByUser, MeasurementNeeded, fails_as
from trainmaster.spec.plain_json import typed
from trainmaster.spec.states import State

#: The server is to answer when there is news, or after so long. One of before that does not know how is
#: asked after so many seconds: soon at first, as most answers are there at once.
_WAIT_S: Final = 1.0
#: Where quotes are, also as a page.
QUOTES: Final = "/quotes"
_LOOKS_S: Final = (0.1, 0.2, 0.3, 0.5)


def asked(
    connection: RestConnection,
    route: str,
    sent: Callable[[], Generator[str, None, dict[str, Any]]],
    options: Mapping[str, Any],
    read: Callable[[Mapping[str, Any]], Any],
    shown_at: str = "",
    recipe: Recipe | None = None,
) -> Listening:
    """Ask, and tell what is told meanwhile: lines, progress, quotes, at last the answer.

    Args:
        connection: to the server.
        route: such as ``/quotes`` or ``/plans``.
        sent: sends the code, and tells how far it is; what stands for the recipe.
        options: what else is asked.
        read: makes of the answer what it is at home.
        shown_at: where it is looked at; ``route`` by default.
        recipe: that is asked about: its file is named where something is wrong.
    """
    names: list[str] = []
    stopped: list[int] = []

    def interrupt() -> int:
        stopped.append(1)
        return len(stopped) if names and len(stopped) == 1 else 0

    def told() -> Generator[Any]:
        with names_file_of(recipe):
            yield from answered()

    def answered() -> Generator[Any]:
        body = yield from sent()
        asked_at = time.monotonic()
        found = connection.post(route, {**body, **options}, wait_s=_WAIT_S)
        names.append(f"{shown_at or route}/{quoted(found['id'])}")
        seen, progress, looks = 0, None, 0
        while True:
            for line in found["told"][seen:]:
                yield line if isinstance(line, str) else quote_of(line)
            seen = max(seen, len(found["told"]))
            if found["progress"] not in (None, progress):
                progress = found["progress"]
                yield typed(ProfileProgress, progress)
            if found["state"] == State.DONE:
                break
            if stopped:
                connection.ask("DELETE", names[0], {})
                raise InterruptedByUser("not measured to its end, as you asked", "Nothing was started.")
            if time.monotonic() - asked_at < _WAIT_S / 2:
                connection.sleep(_LOOKS_S[min(looks, len(_LOOKS_S) - 1)])
                looks += 1
            asked_at = time.monotonic()
            found = connection.get(names[0], wait_s=_WAIT_S)
        if found["answer"] is None:
            refusal = error_of(422, {"error": "UsageError", **(found["error"] or {})}, connection.url)
            if found["error"] and found["error"].get("types"):
                unknown = MeasurementNeeded(refusal.args[0], refusal.hint)
                unknown.types = found["error"]["types"]
                refusal = unknown
            raise refusal
        if route == QUOTES:
            yield f"the page of this quote, for a week, and for your team: {connection.url}{names[0]}"
        yield read(found["answer"])

    return Listening(told(), interrupt)


def plan_of(found: Mapping[str, Any]) -> RunPlan:
    """From the answer to a plan."""
    made = None if found["quote"] is None else quote_of(found["quote"])
    usd = found["most_usd_per_hour"]
    return RunPlan(found["id"], found["provider"], usd, tuple(found["lines"]), tuple(found["notes"]), made)


def options_of(options: QuoteOptions) -> dict[str, Any]:
    """As a server takes them: files as their text.

    Raises:
        UsageError: a file cannot be read.
    """
    names = ("catalogue", "parameter_server", "max_workers", "fresh", "allow_stale")
    found = {name: getattr(options, name) for name in names}
    # Servers of before know them not, or not empty.
    later = ("policy", "worker_types", "p", "usd_per_hour", "latency_ms")
    found |= {name: value for name in later if (value := getattr(options, name)) not in (None, "")}
    found |= {} if options.measures else {"measure": False}
    found |= {"keep_s": options.keep_s} if options.keep_s else {}
    for name in ("bandwidth", "measurements"):
        path = getattr(options, name)
        with fails_as(f"{path} cannot be read", f"Give another file with --{name}."):
            found[name] = None if path is None else path.read_text(encoding="utf-8")
    return found


@dataclass(frozen=True)
class ServedQuote(Quote):
    """A quote of a server: as JSON it is what the server said, also of what this version does not know."""

    json: Mapping[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """What ``quote --json`` prints."""
        return dict(self.json or {})


def quote_of(found: Mapping[str, Any]) -> Quote:
    """From the object of ``quote --json``; what a later server adds is left out."""
    experiments = {name: _experiment(name, each) for name, each in found["experiments"].items()}
    said = {**found, **found["total"], "experiments": experiments, "notes": found["warnings"]}
    return typed(ServedQuote, {**said, "json": found}, strict=False)


def _experiment(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """With the names of `ExperimentQuote`."""
    return {
        **found,
        "name": name,
        "cluster": _cluster(found["cluster"]),
        "step_s": found["step_time_s"],
        "pareto": [{**each, "cluster": _cluster(each["cluster"])} for each in found["pareto"]],
        "phases": [{**each, "name": each["phase"]} for each in found.get("phases") or ()],
        # What both have, such as `offer`, is told once.
        "measured": [{**each, "point": each if "sync" in each else None} for each in found["measured"]],
    }


def _cluster(found: Mapping[str, Any]) -> dict[str, Any]:
    """With the names of `ClusterShape`."""
    worker, server = found["worker"], found["parameter_server"]
    names = {"workers": worker["processes"], "at_once": found["tasks_at_once"]}
    return {"worker": worker, "server": server, **names}


def offers_of(found: Mapping[str, Any]) -> OfferList:
    """From the object of ``GET /api/v1/offers`` with ``refused``."""
    refused = [{**row, "subject": row["offer"]} for row in found["refused_rows"]]
    return typed(OfferList, {**found, "refused": refused}, strict=False)
