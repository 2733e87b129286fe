"""The pages. Lists and forms work without JavaScript; htmx and uPlot make them live."""

from __future__ import annotations

import datetime
import math
import re
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

from fastapi import APIRouter, FastAPI, Form, Request
from fastapi.responses import RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from trainmaster.advisor.papers.recommend import PUBLISHED, Wish
from trainmaster.api.rest.state import (
    Reader,
    Runs,
    ServerState,
    State,
    Submitter,
    check_same_site,
    status_of,
    told,
)
from trainmaster.service.access import SCOPES, SESSION_S, UnknownCallerError, caller
from trainmaster.service.submissions import RunRequest
from trainmaster.spec.errors import RecipeError, TrainmasterError, UsageError
from trainmaster.spec.units import format_duration

_HERE: Final = Path(__file__).parent
_PAGE: Final = 50
#: States and reasons that the list can be limited to.
_FILTERS: Final = ("WAITING", "RUNNING", "DONE", "SUCCEEDED", "USER_ERROR", "CANCELLED")
_EXAMPLE: Final = """\
name: hello
experiments:
  train:
    command: echo "loss 0.5"
"""
router = APIRouter(include_in_schema=False)


def _duration(seconds: float | None) -> str:
    return "–" if seconds is None else format_duration(max(0.0, float(round(seconds))))


def _usd(amount: float | None) -> str:
    return "–" if amount is None else f"${amount:,.2f}"


def _when(at: float | None) -> str:
    if at is None:
        return "–"
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _number(value: object) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.4g}"
    return str(value)


_TEMPLATES: Final = Environment(
    loader=FileSystemLoader(_HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)
_TEMPLATES.filters |= {"duration": _duration, "usd": _usd, "when": _when, "number": _number}


def add_pages(app: FastAPI) -> None:
    """Add the pages to a server's application."""
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
    app.add_exception_handler(TrainmasterError, _failed)


def _page(request: Request, template: str, http: int = 200, **values: Any) -> Response:  # noqa: ANN401
    who = getattr(request.state, "caller", None)
    html = _TEMPLATES.get_template(template).render(caller=who, path=request.url.path, **values)
    return Response(html, http, media_type="text/html", headers={"cache-control": "no-store"})


def _is_part(request: Request) -> bool:
    return request.headers.get("hx-request") == "true"


def _to(path: str) -> RedirectResponse:
    return RedirectResponse(path, 303)


async def _failed(request: Request, error: Exception) -> Response:
    """Errors of pages are pages, those of REST are JSON; who is not known is asked to log in."""
    assert isinstance(error, TrainmasterError)
    if request.url.path.startswith("/api/"):
        return told(error)
    if isinstance(error, UnknownCallerError) and not _is_part(request):
        wanted = request.url.path if request.method == "GET" else "/"
        return _to(f"/login?{urlencode({'next': wanted})}")
    return _page(request, "error.html", status_of(error), title=str(error.args[0]), hint=error.hint)


# --- logging in -----------------------------------------------------------------------------------------


@router.get("/setup")
def setup(request: Request, code: str = "") -> Response:
    """What the one-time link shows: a button, so that what only looks at links uses nothing up."""
    return _page(request, "setup.html", code=code)


@router.post("/setup")
def set_up(request: Request, state: State, code: Annotated[str, Form()]) -> Response:
    """Log the owner of the home in."""
    check_same_site(request, says=False)
    try:
        state.setup.remove(code)
    except KeyError:
        raise UsageError(
            "this link was used already", "Start the server anew: it prints another one."
        ) from None
    return _logged_in(state, state.access.open_session(caller("owner", None, SCOPES)), "/")


@router.get("/login")
def login(request: Request, next: str = "/") -> Response:
    """Asks for a token."""
    return _page(request, "login.html", next=next, error="")


@router.post("/login")
def log_in(
    request: Request,
    state: State,
    token: Annotated[str, Form()],
    next: Annotated[str, Form()] = "/",
) -> Response:
    """Opens a session for a token."""
    check_same_site(request, says=False)
    try:
        who = state.access.by_token(token.strip())
    except UnknownCallerError as error:
        return _page(request, "login.html", 401, next=next, error=str(error.args[0]))
    return _logged_in(state, state.access.open_session(who), next)


@router.post("/logout")
def log_out(request: Request, state: State, caller: Reader) -> Response:
    """Ends the session."""
    state.access.end_session(request.cookies.get(state.cookie, ""))
    answer = _to("/login")
    answer.delete_cookie(state.cookie, path="/", secure=state.is_secure, httponly=True, samesite="lax")
    return answer


def _logged_in(state: ServerState, session: str, wanted: str) -> Response:
    # A path of ours, and nothing that a browser may take for another host.
    answer = _to(wanted if re.fullmatch(r"/([A-Za-z0-9._~%-][A-Za-z0-9._~%/-]*)?", wanted) else "/")
    answer.set_cookie(
        state.cookie,
        session,
        max_age=int(SESSION_S),
        path="/",
        secure=state.is_secure,
        httponly=True,
        samesite="lax",
    )
    return answer


# --- runs -----------------------------------------------------------------------------------------------


@router.get("/")
def runs(
    request: Request,
    found: Runs,
    cursor: str | None = None,
    state: str = "",
    name: str = "",
) -> Response:
    """The list of runs; with ``cursor`` and htmx its next rows."""
    page = found.page(_PAGE, cursor or None, state or None, name or None)
    more = urlencode({"cursor": page["next"] or "", "state": state, "name": name})
    part = _is_part(request) and cursor is not None
    values = {"runs": page["runs"], "more": more if page["next"] else "", "filters": _FILTERS}
    return _page(request, "rows.html" if part else "runs.html", state=state, name=name, **values)


@router.post("/runs/cancel")
def cancel_many(
    found: Runs, state: State, caller: Submitter, run: Annotated[list[str] | None, Form()] = None
) -> Response:
    """Ends those that are marked."""
    for each in run or []:
        found.cancel(each, state.environ)
    return _to("/")


@router.get("/runs/{run}")
def show(request: Request, run: str, found: Runs) -> Response:
    """One run: how far it is, its curves and logs, live."""
    status = found.status(run)
    values = {
        "run": run,
        "status": status,
        "quote": _band(status),
        "highlights": found.highlights(run),
        "events": found.events(run)[-100:],
        "recipe": found.recipe(run),
        "models": found.models(run, 50)["models"],
        "is_over": status["state"] == "DONE",
    }
    return _page(request, "run_part.html" if _is_part(request) else "run.html", **values)


@router.post("/runs/{run}/cancel")
def cancel(run: str, found: Runs, state: State, caller: Submitter) -> Response:
    """Ends it."""
    found.cancel(run, state.environ)
    return _to(f"/runs/{quote(run)}")


@router.post("/runs/{run}/resume")
def resume(run: str, found: Runs, state: State, caller: Submitter) -> Response:
    """Goes on with it."""
    found.resume(run, state.environ)
    return _to(f"/runs/{quote(run)}")


def _band(status: dict[str, Any]) -> list[dict[str, Any]]:
    """Quote against truth: the interval of each and where the run is, as percentages of a common scale."""
    promised = status.get("quote")
    if promised is None:
        return []
    found = []
    for what, key, value, show_as in (
        ("Time", "time_s", status["seconds"], _duration),
        ("Cost", "cost_usd", status["cost_usd"], _usd),
    ):
        interval = promised[key]
        if interval["p95"] is None or not max(interval["p95"], value) > 0:
            continue
        scale = 100 / (1.1 * max(interval["p95"], value))
        found.append(
            {
                "what": what,
                "now": show_as(value),
                "low": show_as(interval["p5"]),
                "high": show_as(interval["p95"]),
                "left": round(interval["p5"] * scale, 2),
                "width": round((interval["p95"] - interval["p5"]) * scale, 2),
                "at": round(value * scale, 2),
                "is_beyond": value > interval["p95"],
            }
        )
    return found


# --- a new run ------------------------------------------------------------------------------------------


@router.get("/new")
def new(request: Request, found: Runs, caller: Submitter, again: str = "") -> Response:
    """A recipe, pasted or that of an earlier run."""
    recipe = found.recipe(again) if again else _EXAMPLE
    return _page(request, "new.html", recipe=recipe, max_usd="", **_checked(None))


@router.post("/new/check")
def check(request: Request, state: State, caller: Submitter, recipe: Annotated[str, Form()]) -> Response:
    """What is wrong with a recipe while it is typed."""
    return _page(request, "checked.html", **_checked(_mistake(state, caller, recipe)))


@router.post("/new")
def send(
    request: Request,
    state: State,
    caller: Submitter,
    recipe: Annotated[str, Form()],
    max_usd: Annotated[str, Form()] = "",
) -> Response:
    """Runs it."""
    try:
        amount = float(max_usd) if max_usd.strip() else None
        run, _, _ = state.submissions.submit(caller, RunRequest(recipe, None, None, amount))
    except (TrainmasterError, ValueError) as error:
        return _page(request, "new.html", 422, recipe=recipe, max_usd=max_usd, **_checked(error))
    return _to(f"/runs/{quote(run)}")


def _mistake(state: ServerState, who: Submitter, recipe: str) -> Exception | None:
    try:
        state.submissions.read(who, RunRequest(recipe))
    except TrainmasterError as error:
        return error
    return None


def _checked(error: Exception | None) -> dict[str, Any]:
    if isinstance(error, RecipeError):
        return {"mistakes": [f"line {m.line}, column {m.column}: {m.message}" for m in error.mistakes]}
    if isinstance(error, TrainmasterError):
        return {"mistakes": [*str(error.args[0]).splitlines(), *([error.hint] if error.hint else [])]}
    return {"mistakes": [str(error)] if error is not None else []}


# --- the recommender ------------------------------------------------------------------------------------


@router.get("/recommend")
def recommend(
    request: Request,
    runs: Runs,
    batch: str = "64000",
    latency_ms: str = "0",
    profile: str = PUBLISHED,
) -> Response:
    """Anwar's question: batch size and latency in, number of machines out."""
    found, trouble = None, ""
    try:
        found = runs.recommend(Wish(float(batch), float(latency_ms)), profile.strip() or PUBLISHED)
    except ValueError:
        trouble = "Batch and latency are numbers."
    except TrainmasterError as error:
        trouble = str(error)
    values = {"batch": batch, "latency_ms": latency_ms, "profile": profile}
    return _page(request, "recommend.html", 422 if trouble else 200, found=found, problem=trouble, **values)


# --- models, team ---------------------------------------------------------------------------------------


@router.get("/models")
def models(request: Request, found: Runs, cursor: str | None = None) -> Response:
    """What tasks left."""
    page = found.models(None, _PAGE, cursor)
    more = urlencode({"cursor": page["next"]}) if page["next"] else ""
    return _page(request, "models.html", models=page["models"], more=more)


@router.get("/models/{run}/{experiment}/{task}")
def model(request: Request, run: str, experiment: str, task: int, found: Runs) -> Response:
    """One model: its files, metrics and where it is from."""
    about = found.model(run, experiment, task)
    _, manifest = found.manifest(run, experiment, task)
    files = [entry for entry in manifest.files if entry.kind == "file"]
    return _page(request, "model.html", model=about, files=files)


@router.get("/team")
def team(request: Request, state: State, found: Runs, caller: Reader) -> Response:
    """Teams, what they have spent, and tokens; who may not manage sees its own team only."""
    teams = [each for each in state.access.teams() if caller.sees(each["team"])]
    is_manager = "manage" in caller.scopes
    tokens = [each for each in state.access.tokens() if caller.sees(each["team"])] if is_manager else []
    return _page(request, "team.html", teams=teams, tokens=tokens, is_manager=is_manager)
