"""What is going on, at one look: what needs somebody, what runs and waits, what ended, what it costs."""

from __future__ import annotations

import calendar
import datetime
from dataclasses import replace
from typing import Any, Final

from trainmaster.db import endpoint_rows, queries, workflow_rows
from trainmaster.db.database import Database
from trainmaster.db.queries import RunFilter
from trainmaster.db.run_table import ended_since, failed_since, going_or_ended_since, progress, why_failed
from trainmaster.service.endpoints.endpoint_summaries import endpoint_summaries
from trainmaster.service.quotes.quote_record import quote_summary
from trainmaster.service.runs.summary import briefs, run_brief
from trainmaster.service.service import Service
from trainmaster.service.users.caller import Caller
from trainmaster.spec.log_normal import left_s
from trainmaster.spec.metric_names import in_order
from trainmaster.spec.states import State
from trainmaster.spec.units import format_duration, worked_s

#: So many runs of each section are told; the counts are of all.
SHOWN: Final = 5
#: So many that go on are looked at.
_MOST: Final = 200
_DAY_S: Final = 86400.0
#: So long a service may take to have its first replica.
_BEGINS_S: Final = 900.0
_QUOTES_S: Final = 90 * _DAY_S
#: So long before its token ends a workflow needs somebody.
TOKEN_S: Final = 7 * _DAY_S


def overview(service: Service, caller: Caller, which: RunFilter) -> dict[str, Any]:
    """Of what a caller sees.

    Returns:
        ``needs_you``, ``running`` and ``waiting`` with ``count`` and the first ``runs``: their lines of the
        list with ``why``, ``progress`` (a share), ``tasks`` (done and all), ``left_s`` where these are known.
        ``needs_you`` also has ``workflows`` (``workflow``, ``team``, ``why``) that may start nothing more, or
        only for some days, the first of ``workflow_count``.
        ``since`` (Unix seconds), ``ended`` (by reason ``runs`` and ``usd``), ``month``
        (``spent_usd``, ``reserved_usd``, ``monthly_usd``, ``pace_usd`` at its end, ``day`` and ``days``) and
        ``quotes`` of 90 days (``kept`` of ``runs``; apart from these ``ended_by_hand``).
    """
    database = service.database
    now = database.clock_s()
    going = queries.runs(database, _MOST, None, replace(which, is_over=False))
    rows = briefs(database, going)
    done = progress(database, [run["run"] for run in rows])
    running: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    needs: list[dict[str, Any]] = []
    for run in rows:
        is_waiting = "queued" in run or run["state"] == State.WAITING
        told = run
        if not is_waiting:
            told = {**run, **_how_far(database, run["run"], worked_s(run), done.get(run["run"]))}
        (waiting if is_waiting else running).append(told)
        if "approval" in run.get("queued", {}):
            needs.append({**told, "why": run["queued"]["waits_for"]})
        elif told.get("is_late"):
            needs.append({**told, "why": "beyond its quote"})
    failed = failed_since(database, which, now - _DAY_S, _MOST)
    reasons = why_failed(database, failed[:SHOWN])
    needs = [{**run_brief(database, run), "why": reasons.get(run, "")} for run in failed[:SHOWN]] + needs
    known = {each["run"] for each in needs} | set(failed)
    why = _not_finite(database, which, now) | _without_replicas(database, which, now)
    more = [run for run in why if run not in known]
    needs += [{**run_brief(database, run), "why": why[run]} for run in more[:SHOWN]]
    paused = _paused(database, which)
    count = len(needs) + len(failed[SHOWN:]) + len(more[SHOWN:])
    ended = ended_since(database, which, now - _DAY_S)
    return {
        "needs_you": {
            "count": count,
            "runs": needs[:SHOWN],
            "workflow_count": len(paused),
            "workflows": paused[:SHOWN],
        },
        "running": {"count": len(running), "runs": running[:SHOWN]},
        "waiting": {"count": len(waiting), "runs": waiting[:SHOWN]},
        "since": now - _DAY_S,
        "ended": {reason: {"runs": runs, "usd": usd} for reason, runs, usd in ended},
        "month": _month(service, caller, now),
        "quotes": _kept(service, caller, now),
    }


def _paused(database: Database, which: RunFilter) -> list[dict[str, Any]]:
    """Workflows that may start nothing any more, unless a person has looked after them since, or soon."""
    teams = None if which.teams is None else [team or "" for team in which.teams]
    now = database.clock_s()
    why = [(row, row["message"]) for row in workflow_rows.without_right(database, teams)]
    for row in workflow_rows.ending(database, teams, now, now + TOKEN_S):
        left = format_duration(row["good_until"] - now)
        why.append((row, f"its token {row['token']} ends in {left}: take it over with another one"))
    return [{"workflow": row["name"], "team": row["team"] or None, "why": words} for row, words in why]


def _not_finite(database: Database, which: RunFilter, now: float) -> dict[str, str]:
    """Runs with metrics that have become NaN, of those that go on or ended within a day."""
    found = queries.not_finite(database, going_or_ended_since(which, now - _DAY_S))
    return {run: f"{', '.join(in_order(names))} is NaN" for run, names in found.items()}


def _without_replicas(database: Database, which: RunFilter, now: float) -> dict[str, str]:
    """Runs whose service takes no requests, though it has had the time to begin."""
    services = endpoint_summaries(database, endpoint_rows.of_team(database, which.teams, _MOST))
    return {
        each["run"]: f"service {each['name']}: no replica is ready"
        for each in services
        if each["state"] == "STARTING" and not each["asleep"] and now - each["created_at"] > _BEGINS_S
    }


def _how_far(
    database: Database, run: str, gone_s: float, done: tuple[int, int, float | None] | None
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if done is not None and done[1] > 1:
        found["tasks"] = {"done": done[0], "all": done[1]}
    share = None if done is None else done[2] or None  # before its first task is over the quote says more
    if quote := quote_summary(database, run):
        time_s = quote["time_s"]
        found |= {"quoted_s": time_s, "is_late": gone_s > time_s["p95"]}
        if "passed" not in quote and (left := left_s(time_s, gone_s)) is not None:
            found["left_s"] = round(left, 1)
            share = gone_s / (gone_s + left) if share is None else share
    if share is not None:
        found["progress"] = round(share, 4)
        if done is not None and (counted := done[2] or 0.0) > 0.02:
            found["left_s"] = round(gone_s * (1 - counted) / counted, 1)
    return found


def _month(service: Service, caller: Caller, now: float) -> dict[str, Any]:
    from trainmaster.service.teams.team_budget import budgets_of

    today = datetime.datetime.fromtimestamp(now, datetime.UTC)
    begin = today.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()
    days = calendar.monthrange(today.year, today.month)[1]
    found = budgets_of(service.database, caller, now)
    mine = next((each for each in found if each.team == (caller.team or "")), None)
    limits = mine or (found[0] if found else None)
    spent = 0.0 if limits is None else limits.spent_usd
    return {
        "spent_usd": spent,
        "reserved_usd": 0.0 if limits is None else limits.reserved_usd,
        "monthly_usd": None if limits is None else limits.monthly_usd,
        "pace_usd": round(spent * days * _DAY_S / max(now - begin, 3600.0), 6),
        "day": today.day,
        "days": days,
    }


def _kept(service: Service, caller: Caller, now: float) -> dict[str, int]:
    """Of the last quote of each run; what was ended by hand says nothing of it, and is counted apart."""
    found: dict[str, bool | None] = {}
    for row in service.database.judged_quotes():
        is_own = row["home_id"] in ("", service.home.identity()) and caller.sees(row["team"])
        if is_own and row["made_at"] >= now - _QUOTES_S:
            found[row["run_id"]] = row["kept"]
    by_hand = sum(kept is None for kept in found.values())
    return {
        "kept": sum(bool(kept) for kept in found.values()),
        "runs": len(found) - by_hand,
        "ended_by_hand": by_hand,
    }
