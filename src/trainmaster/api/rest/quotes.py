"""Routes of quotes and plans: both take a while, so they are asked for, then looked at or streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from trainmaster.api.rest.bodies import Body, NewAsk
from trainmaster.api.rest.hubs import COMMENT_AFTER_S, HEADERS, RETRY, STILL_HERE, event
from trainmaster.api.rest.limits import OpenStream
from trainmaster.api.rest.state import (
    Following,
    Reader,
    Routes,
    Runs,
    ServerState,
    State,
    Submitter,
    Transfer,
)
from trainmaster.dataclass import dataclass
from trainmaster.service.quotes.quote_ask import QuoteAsk
from trainmaster.service.quotes.quote_requests import PLAN, QUOTE
from trainmaster.service.users.caller import Caller
from trainmaster.spec.errors import StoreError

router = Routes(tags=["quotes"])

_LOOK_EVERY_S: Final = 0.5
_MOST_WAIT_S: Final = 30.0
WaitS = Annotated[
    float,
    Query(
        ge=0,
        le=_MOST_WAIT_S,
        description="answer when there is news, or after so many seconds; at once if 32 answers wait",
    ),
]


class NewQuote(NewAsk):
    """What is to be quoted, and how: the options of `trainmaster quote`."""

    policy: str = Field("", description="that chooses; empty is what the recipe's objective says")
    catalogue: str | None = Field(None, description="a name, such as builtin or fc2-2018")
    parameter_server: str | None = Field(None, description="types of parameter servers, with commas")
    worker_types: str | None = Field(None, description="types of workers, with commas, for FC2's policies")
    max_workers: int | None = Field(None, ge=1)
    usd_per_hour: float | None = Field(None, description="of all machines, instead of budget.per_hour")
    p: float | None = Field(None, description="share of the servers' bandwidth for workers, for scala-opt")
    fresh: bool = Field(False, description="measure again what was measured before")
    bandwidth: str | None = Field(None, description="text of a CSV instance,mbps, for scala-opt")
    measurements: str | None = Field(None, description="text of a CSV of points that you measured")
    measure: bool = Field(True, description="false: by what is known at once, with an honest interval")
    latency_ms: float | None = Field(None, ge=0, le=60_000, description="between machines, one way")


class NewPlan(NewAsk):
    """What is to be planned: what a run would rent."""

    can_agree: bool = Field(True, description="somebody is there who can agree to costs")
    measure_first: bool = Field(False, description="measure it and quote, whatever is known")


class MeasuringAgreement(Body):
    """What its caller agrees to pay."""

    max_usd: float = Field(
        gt=0, description="all of these runs together, at most: the sum of their `cap_usd`"
    )


class Requested(BaseModel):
    """How far a quote or plan is."""

    id: str
    state: str = Field(description="WAITING, RUNNING or DONE")
    asked_by: str
    created_at: float
    told: list[Any] = Field(description="lines for people and, of a plan that measures first, its quote")
    progress: dict[str, Any] | None = Field(description="how far the measurement is")
    answer: dict[str, Any] | None = Field(description="null before, and if it failed")
    error: dict[str, Any] | None = Field(description="why it failed: title and hint")


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An answer that waits for news, if its caller wants that, and if not too many answers wait."""

    state: ServerState
    transfer: OpenStream
    response: Response
    wait_s: float

    async def begun(self, caller: Caller, kind: str, begun: dict[str, Any], at: str = "") -> Requested:
        """What was just asked for: where it is found, and how far it is."""
        self.response.headers["location"] = f"/api/v1/{at or kind + 's'}/{begun['id']}"
        return await self.shown(caller, kind, begun["id"])

    async def shown(self, caller: Caller, kind: str, name: str) -> Requested:
        """How far a request is, when there is news of it or the time is over."""
        return await self.transfer.answer(_shown(kind, name, self.state, caller, self.wait_s))


def _waiting(state: State, transfer: Transfer, response: Response, wait_s: WaitS = 0.0) -> _Waiting:
    return _Waiting(state, transfer, response, wait_s)


@dataclass(frozen=True, slots=True)
class _QuoteProgress:
    """The progress of a request, as server-sent events."""

    request: Request
    state: ServerState
    following: OpenStream
    after: int

    async def events(self, caller: Caller, kind: str, name: str) -> StreamingResponse:
        """From what its client has heard last."""
        last = self.request.headers.get("last-event-id", "")
        told = int(last) if last.isdecimal() else self.after
        frames = await _frames(kind, name, self.state, caller, told)
        return StreamingResponse(self.following.of(frames), media_type="text/event-stream", headers=HEADERS)


def _followed(
    request: Request, state: State, following: Following, after: Annotated[int, Query(ge=0)] = 0
) -> _QuoteProgress:
    return _QuoteProgress(request, state, following, after)


Waiting = Annotated[_Waiting, Depends(_waiting)]
Followed = Annotated[_QuoteProgress, Depends(_followed)]


@router.post("/quotes", status_code=202)
async def ask_quote(body: NewQuote, caller: Submitter, waiting: Waiting) -> Requested:
    """Ask for a quote. Its `answer` will be the object of `trainmaster quote --json`."""
    return await _asked(QUOTE, body, caller, waiting)


@router.post("/plans", status_code=202)
async def ask_plan(body: NewPlan, caller: Submitter, waiting: Waiting) -> Requested:
    """Ask what a run would rent. `POST /runs` with the plan's id agrees to its costs, and runs it."""
    return await _asked(PLAN, body, caller, waiting)


@router.get("/quotes")
def list_quotes(state: State, caller: Reader) -> dict[str, list[dict[str, Any]]]:
    """Quotes that the team has asked for within a week, the newest first, at most 50.

    Each has `id`, `state`, `asked_by`, `created_at`, `team`, `name` of its recipe, `time_s` and `cost_usd`
    (null where there is no answer, or they are not known), and `error`.
    """
    return {"quotes": state.quotes.listed(caller)}


@router.get("/quotes/{quote}")
async def show_quote(quote: str, caller: Reader, waiting: Waiting) -> Requested:
    """How far a quote is, what was told meanwhile, and its answer."""
    return await waiting.shown(caller, QUOTE, quote)


@router.get("/plans/{plan}")
async def show_plan(plan: str, caller: Reader, waiting: Waiting) -> Requested:
    """How far a plan is. Its `answer` has what would be rented, and the most that it costs per hour."""
    return await waiting.shown(caller, PLAN, plan)


@router.get("/quotes/{quote}/measure")
def show_measuring(quote: str, state: State, caller: Reader) -> list[dict[str, Any]]:
    """Runs that show what a quote has to know: `experiment`, `instance`, `usd`, `cap_usd`, `seconds`.

    For Scala-Opt each rents one worker of a type and one parameter server, for two minutes of training. For a
    job of a team of which nothing is known: one worker of the cheapest type that will do, for a minute.
    A gang that needs all of its workers, and a point that would narrow a quote (`narrows`), have their number
    of `workers`, too; others have 0.
    """
    every = state.quotes.measuring_runs(caller, quote)
    return [asdict(each) for each in every]


@router.post("/quotes/{quote}/measure", status_code=202)
def measure(quote: str, body: MeasuringAgreement, state: State, caller: Submitter) -> dict[str, list[str]]:
    """Run all of these, each under its cap; the ids of these `runs`. Asked twice it is done once."""
    return {"runs": state.quotes.measure(caller, quote, body.max_usd)}


@router.delete("/quotes/{quote}", status_code=204)
def cancel_quote(quote: str, state: State, caller: Submitter) -> None:
    """End it; a measurement ends in order."""
    state.quotes.cancel(caller, QUOTE, quote)


@router.delete("/plans/{plan}", status_code=204)
def cancel_plan(plan: str, state: State, caller: Submitter) -> None:
    """End it; a measurement ends in order."""
    state.quotes.cancel(caller, PLAN, plan)


@router.get("/quotes/{quote}/stream", response_class=StreamingResponse)
async def stream_quote(quote: str, caller: Reader, followed: Followed) -> StreamingResponse:
    """Server-sent events: `told` (a line, or a quote), `progress`, at last `done` with the whole object."""
    return await followed.events(caller, QUOTE, quote)


@router.get("/plans/{plan}/stream", response_class=StreamingResponse)
async def stream_plan(plan: str, caller: Reader, followed: Followed) -> StreamingResponse:
    """The same of a plan."""
    return await followed.events(caller, PLAN, plan)


@router.get("/score")
def score(runs: Runs) -> dict[str, Any]:
    """How often quotes were kept, as `trainmaster score --json` prints it."""
    return runs.score()


@router.get("/score/line")
def score_line(runs: Runs, provider: str) -> dict[str, str]:
    """The same of estimates for a provider, in a line; empty if too little is known."""
    return {"line": runs.score_line(provider)}


async def _asked(kind: str, body: NewAsk, caller: Caller, waiting: _Waiting) -> Requested:
    ask = QuoteAsk(**body.model_dump())
    return await waiting.begun(
        caller, kind, await run_in_threadpool(waiting.state.quotes.send, caller, kind, ask)
    )


async def _shown(kind: str, name: str, state: State, caller: Caller, wait_s: float) -> Requested:
    loop, news = asyncio.get_running_loop(), asyncio.Event()
    until, first = loop.time() + wait_s, None

    def hear() -> None:
        loop.call_soon_threadsafe(news.set)

    with state.quotes.listeners.listening(name, hear), state.waits.waiting(caller) as may_wait:
        while True:
            found = await run_in_threadpool(state.quotes.show, caller, kind, name)
            first = first or found
            left_s = until - loop.time()
            if found["state"] == "DONE" or found["told"] != first["told"] or left_s <= 0 or not may_wait:
                return Requested(**found)
            with suppress(TimeoutError):  # another server may work on it
                await asyncio.wait_for(news.wait(), min(left_s, _LOOK_EVERY_S))
            news.clear()


async def _frames(kind: str, name: str, state: ServerState, caller: Caller, told: int) -> AsyncGenerator[str]:
    first = await run_in_threadpool(state.quotes.show, caller, kind, name)  # 404 before the answer begins

    async def frames() -> AsyncGenerator[str]:
        nonlocal told
        found, progress, silent_s = first, None, 0.0
        yield RETRY
        while True:
            news = []
            if len(found["told"]) < told:  # it was begun again
                told = 0
            for number, each in enumerate(found["told"][told:], told + 1):
                news.append(event("told", each, number))
            told = len(found["told"])
            if found["progress"] != progress and found["progress"] is not None:
                news.append(event("progress", found["progress"], told))
            progress = found["progress"]
            if found["state"] == "DONE":
                yield "".join([*news, event("done", found, told)])
                return
            silent_s = 0.0 if news else silent_s + _LOOK_EVERY_S
            if silent_s >= COMMENT_AFTER_S:
                news, silent_s = [STILL_HERE], 0.0
            if news:
                yield "".join(news)
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                found = await run_in_threadpool(state.quotes.show, caller, kind, name)
            except StoreError:  # a database that is away comes back
                continue

    return frames()
