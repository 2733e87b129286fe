"""`QuoteRequests`: quotes and plans that are asked of a server, worked on by any of its processes.

A request is a row: it says how far it is, and any server shows it. A server that dies lets go of what it
worked on; another one begins that again, once.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from trainmaster.db import quote_requests as rows
from trainmaster.db.row_values import columns
from trainmaster.service.driving.submissions import RunRequest, Submissions
from trainmaster.service.listeners import Listeners
from trainmaster.service.offer_list import check_named
from trainmaster.service.quotes.measuring_runs import MeasuringRun, measuring_runs, types_to_measure
from trainmaster.service.quotes.quote_ask import QuoteAsk
from trainmaster.service.server_loops import ServerLoop, is_passing
from trainmaster.service.users.access import Access
from trainmaster.service.users.caller import Caller, Creator
from trainmaster.service.users.caller import caller as make_caller
from trainmaster.spec import Recipe
from trainmaster.spec.errors import (
    AccessError,
    NotFoundError,
    RecipeError,
    RunError,
    TrainmasterError,
    UsageError,
)
from trainmaster.spec.states import State
from trainmaster.spec.units import price

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.advisor.quote.quote import Quote
    from trainmaster.control.measure.profile_progress import ProfileProgress
    from trainmaster.service.run_planning import RunPlanner
    from trainmaster.service.service import Service

    _Tell = Callable[[str | Quote], None]
    #: Does what was asked, and tells on the way; its answer is JSON.
    Operation = Callable[[Caller, Mapping[str, Any], Callable[[str], None]], dict[str, Any]]

QUOTE: Final = "quote"
PLAN: Final = "plan"
#: What a team may have under way at once.
MOST_AT_ONCE: Final = 3
#: What is over is kept for a week.
KEPT_S: Final = 7 * 86400.0
_HOLD_S: Final = 30.0
_RENEW_EVERY_S: Final = 5.0
#: New requests, and the rights of those who have asked, are looked for so often, in seconds.
LOOK_EVERY_S: Final = 1.0
#: A request that has ended so many servers is not begun again.
_MOST_ATTEMPTS: Final = 2
#: Among what was asked: the account and the token that it was asked with.
_ASKER: Final = "asked_with"
_THREADS: Final = 4
#: Of the list of quotes.
SHOWN: Final = 50
_NAME: Final = re.compile(r"^name:[ ]*([^#\n]+)", re.MULTILINE)
_PLACE: Final = re.compile(r"[^\s\"']*/trainmaster-quote-[^/\"]+/")
_log = logging.getLogger(__name__)


class TooManyError(RunError):
    """A team has as many under way as it may (HTTP 429)."""


class _LostError(BaseException):
    """Another server has it now, or it was cancelled: its progress is dropped."""


class QuoteRequests(ServerLoop):
    """Takes requests, shows them, and works on them.

    Args:
        service: of the home.
        submissions: reads recipes, and says which are refused.
        environ: as of the processes that drive runs.
        operations: other work that takes long, by kind: one at a time on a server, beside quotes and plans.
    """

    def __init__(
        self,
        service: Service,
        submissions: Submissions,
        environ: Mapping[str, str],
        operations: Mapping[str, Operation] | None = None,
    ) -> None:
        super().__init__("quotes", LOOK_EVERY_S, threads=_THREADS)
        self._operations = operations or {}
        self._is_operating = False
        self._service = service
        self._submissions = submissions
        self._environ = environ
        #: Told the id of a request of which there is news.
        self.listeners = Listeners()
        self._free = threading.Semaphore(_THREADS)
        # Two at once would measure each other.
        self._measuring = threading.Lock()
        self._planners: dict[str, RunPlanner] = {}
        self._held: dict[str, RowMapping] = {}
        self._renewed_s = 0.0

    # --- asking -----------------------------------------------------------------------------------

    def send(self, caller: Caller, kind: str, ask: QuoteAsk) -> dict[str, Any]:
        """Take a request; what `show` says of it.

        Args:
            caller: whose it is: its team sees it.
            kind: `QUOTE` or `PLAN`.
            ask: what is asked.

        Raises:
            TooManyError: the team has as many under way as it may.
            RecipeError: with all mistakes.
            UsageError: it would not be run here, keeps machines that nothing pays for, or asks for files of
                the server.
        """
        caller.need("run")
        self._submissions.check_keeping(caller.team, caller.wallet, ask.keep_s)
        recipe = self._submissions.read(caller, ask.run_request)
        with ask.options() as options:
            options.for_recipe(recipe)
        check_named(ask.catalogue)
        return self.put(caller, kind, asdict(ask))

    def put(self, caller: Caller, kind: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Take a request that was looked at; what `show` says of it.

        Raises:
            TooManyError: the team has as many under way as it may.
        """
        now = time.time()
        row = {
            "id": f"{kind}-{secrets.token_hex(8)}",
            "kind": kind,
            "team": caller.team or "",
            "asked_by": caller.name,
            "request": json.dumps({**request, _ASKER: [caller.account, caller.token]}),
            "state": State.WAITING,
            "attempts": 0,
            "told": "[]",
            "created_at": now,
        }
        if not rows.add(self._service.database, row, MOST_AT_ONCE, now - KEPT_S):
            raise TooManyError(
                f"{MOST_AT_ONCE} quotes, plans or operations of yours are under way",
                "Wait for one of them to end.",
            )
        self.wake()
        return self.show(caller, kind, str(row["id"]))

    def show(self, caller: Caller, kind: str, name: str) -> dict[str, Any]:
        """How far a request is: ``id``, ``state``, ``told``, ``progress``, ``answer``, ``error``.

        Raises:
            NotFoundError: there is none, or it is not the caller's to see.
        """
        row = self._row(caller, kind, name)
        texts = {key: row[key] and json.loads(row[key]) for key in ("progress", "answer", "error")}
        if texts["answer"] and kind == QUOTE:
            _without_guess(texts["answer"])
        told = json.loads(row["told"])
        if row["attempts"] > 1:
            told.insert(0, "the server that worked on it has ended: it was begun again")
        return {**columns(row, "id", "state", "asked_by", "created_at"), "told": told, **texts}

    def listed(self, caller: Caller) -> list[dict[str, Any]]:
        """Quotes that the caller's team has asked for within a week, the newest first, at most `SHOWN`.

        Returns:
            ``id``, ``state``, ``asked_by``, ``created_at``, ``team``, ``name`` (of the recipe), ``time_s``
            and ``cost_usd`` (p5, p50, p95; None before, or if not known), ``error`` (why there is none).
        """
        teams = None if caller.sees_all else [caller.team or ""]
        since = time.time() - KEPT_S  # older ones are there until the next one is asked for
        return [_line(row) for row in rows.newest(self._service.database, QUOTE, teams, since, SHOWN)]

    def ask_of(self, caller: Caller, kind: str, name: str) -> QuoteAsk:
        """What was asked."""
        return QuoteAsk(**_asked(self._row(caller, kind, name)))

    def cancel(self, caller: Caller, kind: str, name: str) -> None:
        """End it, if it is not over; a measurement ends in order."""
        caller.need("run")
        row = self._row(caller, kind, name)
        error = json.dumps({"title": "it was cancelled", "hint": "Ask again."})
        rows.end(self._service.database, rows.named(row["id"]), time.time(), answer=None, error=error)
        self.listeners.tell(name)

    def accept(self, caller: Caller, name: str, max_usd: float | None) -> RunRequest:
        """The request of a run, as it was planned, with what its user agrees to by accepting the plan.

        Raises:
            NotFoundError: there is no such plan.
            UsageError: it is not ready, or has failed.
        """
        row = self._row(caller, PLAN, name)
        if row["answer"] is None:
            why = "it failed" if row["error"] else "it is not ready"
            raise UsageError(
                f"{name} is no plan that can be accepted: {why}",
                f"GET /api/v1/plans/{name} says how far it is.",
            )
        ask, answer = QuoteAsk(**_asked(row)), json.loads(row["answer"])
        return replace(
            ask.run_request,
            max_usd=max_usd,
            agreed_usd_per_hour=answer["most_usd_per_hour"],
            allow_stale=ask.allow_stale,
            keep_s=ask.keep_s,
        )

    def measuring_runs(self, caller: Caller, name: str) -> list[MeasuringRun]:
        """What is to be measured first: a job that is unknown, or traffic of types for Scala-Opt."""
        found = self.show(caller, QUOTE, name)
        types = (found["error"] or {}).get("types") or types_to_measure(found["answer"] or {})
        if not types:
            return []
        return measuring_runs(
            self._submissions.read(caller, self.ask_of(caller, QUOTE, name).run_request, is_asked=False),
            types,
        )

    def measure(self, caller: Caller, name: str, max_usd: float) -> list[str]:
        """Rent what `measuring_runs` says for a minute or two, under a cap; the ids of these runs.

        Asked twice it is done once.

        Args:
            caller: who agrees to it.
            name: of the quote.
            max_usd: what all of them may cost at most, as `measuring_runs` says.

        Raises:
            UsageError: they may cost more than that, or there is nothing to measure.
        """
        runs = self.measuring_runs(caller, name)
        if not runs:
            raise UsageError(
                f"{name}: there is nothing to measure first",
                "That is for scala-opt, unknown jobs and quotes that name a point, on machines that cost.",
            )
        if (most_usd := sum(each.cap_usd for each in runs)) > max_usd + 1e-9:
            raise UsageError(
                f"measuring costs up to {price(most_usd)}, and at most {price(max_usd)} is agreed",
                f"Agree to it: max_usd {most_usd:.2f}.",
            )
        ask = self.ask_of(caller, QUOTE, name)
        recipe = self._submissions.read(caller, ask.run_request)
        found = []
        for each in runs:
            changed = recipe.model_copy(update={"overrides": (*recipe.overrides, *each.overrides)})
            request = replace(ask.run_request, recipe=changed.as_yaml(), max_usd=each.cap_usd)
            run, *_ = self._submissions.submit(caller, request, f"{name}-{each.experiment}-{each.instance}")
            found.append(run)
        return found

    def _row(self, caller: Caller, kind: str, name: str) -> RowMapping:
        row = rows.find(self._service.database, name)
        if row is None or row["kind"] != kind or not caller.sees(row["team"] or None):
            raise NotFoundError(f"there is no {kind} {name!r}", "They are kept for a week.")
        return row

    # --- working on them --------------------------------------------------------------------------

    def start(self) -> None:
        """Work on what is asked, here and of other servers that have ended."""
        self._renewed_s = time.monotonic()
        super().start()

    def stop(self) -> None:
        """Let go of what is under way: others begin it again."""
        self._over.set()
        for planner in list(self._planners.values()):
            planner.interrupt()
        super().stop()
        if self._pool is not None:
            self._pool.shutdown()

    def turn(self) -> None:
        """Begin what is asked, end what is allowed no more, and keep what is worked on here."""
        while self._free.acquire(blocking=False):
            has_begun = False
            try:
                has_begun = self._begin()
            finally:
                if not has_begun:
                    self._free.release()
            if not has_begun:
                break
        self.end_unallowed()
        if time.monotonic() - self._renewed_s >= _RENEW_EVERY_S:
            self._renewed_s = time.monotonic()
            self._renew()

    def _begin(self) -> bool:
        database = self._service.database
        now, without = database.clock_s(), tuple(self._operations) if self._is_operating else ()
        if not rows.is_any_free(database, now, without):
            return False
        worker = secrets.token_hex(8)
        row = rows.claim(database, worker, now, _HOLD_S, without)
        if row is None:
            return False
        if (
            row["kind"] in self._operations
        ):  # it may take hours: its end is not waited for, as others begin it again
            self._is_operating = True
            threading.Thread(target=self._work, args=(worker, row), name=row["id"], daemon=True).start()
            return True
        self.submit(self._work, worker, row)
        return True

    def end_unallowed(self) -> None:
        """End what is worked on here for somebody who may not ask for it any more.

        Raises:
            StoreError: the database is away.
        """
        for worker, row in list(self._held.items()):
            try:
                self._check_right(row)
            except AccessError as refusal:
                self._end(worker, None, _told(refusal))
                if (planner := self._planners.get(worker)) is not None:
                    planner.interrupt()
                self.listeners.tell(row["id"])

    def _check_right(self, row: RowMapping) -> None:
        """Refuse to work for an account or a token that is not good any more, or may less now.

        Raises:
            AccessError: saying why.
        """
        request = json.loads(row["request"])
        account, token = request.get(_ASKER, (None, None))
        asker = Access(self._service.database).still(
            Creator(row["asked_by"], account, token, row["team"] or None)
        )
        for scope in request.get("scopes", ["run"]):
            asker.need(scope)

    def _renew(self) -> None:
        for worker, planner in list(self._planners.items()):
            until = {"expires_at": self._service.database.clock_s() + _HOLD_S}
            if not rows.write(self._service.database, worker, until):
                planner.interrupt()

    def _work(self, worker: str, row: RowMapping) -> None:
        try:
            self.work(worker, row)
        except _LostError:
            pass
        except TrainmasterError as error:  # of the database: it is begun again when that is there again
            _log.warning("%s: %s", row["id"], error)
        except Exception as error:  # noqa: BLE001 - a mistake of ours
            if is_passing(error):  # begun again when our hold is over, as often as that happens
                _log.warning("%s: %s; begun again in %.0f s", row["id"], error, _HOLD_S)
                rows.write(self._service.database, worker, {"attempts": row["attempts"] - 1})
                return
            _log.exception("%s", row["id"])
            what = {"title": "the server has made a mistake", "hint": "Its log says more; please report it."}
            self._end(worker, None, what)
        finally:
            self._planners.pop(worker, None)
            self._held.pop(worker, None)
            if row["kind"] in self._operations:
                self._is_operating = False
            self._free.release()
            self.wake()
            self.listeners.tell(row["id"])

    def work(self, worker: str, row: RowMapping) -> None:
        """Answer one request that this worker holds.

        Raises:
            StoreError: the database is away.
        """
        told: list[Any] = []
        shown_s = 0.0

        def tell(what: str | Quote) -> None:
            told.append(what if isinstance(what, str) else what.as_dict())
            self._write(worker, {"told": _as_text(told)})
            self.listeners.tell(row["id"])

        def show(progress: ProfileProgress) -> None:
            nonlocal shown_s
            if time.monotonic() - shown_s >= 1 or progress.phase == "stopping":
                shown_s = time.monotonic()
                self._write(worker, {"progress": json.dumps(asdict(progress))})

        from trainmaster.service.run_planning import RunPlanner

        caller = make_caller(row["asked_by"], row["team"] or None, ["read", "run"])
        planner = RunPlanner(
            self._service.of_team(row["team"] or None),
            self._environ,
            tell,
            show,
            measures=not self._submissions.is_shared(caller),
        )
        self._planners[worker] = planner
        self._held[worker] = row
        answer, error = None, None
        try:
            if row["attempts"] > _MOST_ATTEMPTS:
                raise UsageError(
                    f"the servers that worked on it have ended, {_MOST_ATTEMPTS} times",
                    "Their logs say why. Ask again.",
                )
            self._check_right(row)
            answer = self._answer(row, planner, tell)
        except TrainmasterError as refusal:
            if self._over.is_set():  # we have interrupted it ourselves
                given_back = {"state": State.WAITING, "attempts": row["attempts"] - 1}
                rows.write(self._service.database, worker, given_back)
                return
            error = _told(refusal)
        self._end(worker, answer, error)

    def _end(self, worker: str, answer: dict[str, Any] | None, error: dict[str, Any] | None) -> None:
        texts = [None if each is None else _as_text(each) for each in (answer, error)]
        which = rows.held_by(worker)
        rows.end(self._service.database, which, time.time(), answer=texts[0], error=texts[1])

    def _write(self, worker: str, values: Mapping[str, object]) -> None:
        if not rows.write(self._service.database, worker, values):
            raise _LostError

    def _answer(self, row: RowMapping, planner: RunPlanner, tell: _Tell) -> dict[str, Any]:
        if (operation := self._operations.get(row["kind"])) is not None:  # what it may was looked at
            asked = _asked(row)
            asked_by = make_caller(row["asked_by"], row["team"] or None, asked.pop("scopes"))
            return operation(asked_by, asked, tell)
        ask = QuoteAsk(**_asked(row))
        caller = make_caller(row["asked_by"], row["team"] or None, ["read", "run"])
        recipe = self._submissions.read(caller, ask.run_request, is_asked=False)
        measuring = self._measuring if planner.measures and ask.measure else nullcontext()
        with measuring, self._submissions.processor_limit(caller):
            return self._answered(row, ask, planner, recipe)

    def _answered(
        self, row: RowMapping, ask: QuoteAsk, planner: RunPlanner, recipe: Recipe
    ) -> dict[str, Any]:
        if row["kind"] == QUOTE:
            with ask.options() as options:
                return planner.quote(recipe, options).as_dict()
        plan = planner.plan(
            recipe,
            allow_stale=ask.allow_stale,
            can_agree=ask.can_agree,
            measure_first=ask.measure_first,
            keep_s=ask.keep_s,
        )
        found: dict[str, Any] = {
            "id": row["id"],
            "provider": plan.recipe.provider,
            "most_usd_per_hour": 0.0,
            "lines": [],
            "notes": [],
            "quote": None,
        }
        if (offer := plan.offer) is not None:
            found |= {
                "most_usd_per_hour": offer.most_usd_per_hour,
                "lines": offer.lines,
                "notes": list(offer.notes),
                "quote": offer.quote and offer.quote.as_dict(),
            }
        return found


def _as_text(what: object) -> str:
    """As JSON; files that were sent with a request are told without the place that they had here.

    >>> _as_text("from /tmp/trainmaster-quote-x1/measurements.csv: all")
    '"from measurements.csv: all"'
    """
    return _PLACE.sub("", json.dumps(what, allow_nan=False))


def _without_guess(answer: dict[str, Any]) -> None:
    """Versions that had no ``unknown`` gave a job that was never measured what any job takes."""
    parts = [answer, *answer.get("experiments", {}).values()]
    if answer.get("policy") == QUOTE and "unknown" not in answer and not any(map(_is_measured, parts)):
        for part in (*parts, answer["total"]):
            part.update({"time_s": None, "cost_usd": None})


def _is_measured(part: Mapping[str, Any]) -> bool:
    return bool(part.get("measurements"))


def _line(row: RowMapping) -> dict[str, Any]:
    """Of the list of quotes."""
    answer, error = (row[key] and json.loads(row[key]) for key in ("answer", "error"))
    if answer:
        _without_guess(answer)
    total = answer["total"] if answer else {}
    name = _NAME.search(_asked(row)["recipe"])
    return {
        **columns(row, "id", "state", "asked_by", "created_at"),
        "team": row["team"] or None,
        "name": name[1].strip("\"' ") if name else "",
        "time_s": total.get("time_s"),
        "cost_usd": total.get("cost_usd"),
        "error": error["title"] if error else None,
    }


def _asked(row: RowMapping) -> dict[str, Any]:
    """What was asked, without by whom."""
    request: dict[str, Any] = json.loads(row["request"])
    request.pop(_ASKER, None)
    return request


def _told(error: TrainmasterError) -> dict[str, Any]:
    found: dict[str, Any] = {"title": str(error.args[0]), "hint": error.hint}
    if isinstance(error, RecipeError):
        found["mistakes"] = [asdict(mistake) for mistake in error.mistakes]
    if types := getattr(error, "types", None):  # what is to be measured first
        found["types"] = dict(types)
    return found
