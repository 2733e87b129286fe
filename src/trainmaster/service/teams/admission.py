"""Which runs that were sent to a server may start: priority, then fair share of the dollars, then age.

`decide` is pure. All servers of a database call it within a transaction that one of them has at a time, so
two never give the same money, or the same place, to two runs.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.db import Database, admissions, ledger
from trainmaster.db.ledger import ALL
from trainmaster.service.teams.team_budget import OWNER, Budgets, OverBudgetError, TeamBudget, set_aside
from trainmaster.spec.units import dollars, format_duration, next_month

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, RowMapping

    from trainmaster.service.users.caller import Caller, Wallet

#: Priorities of a recipe: a run of a higher one starts first.
PRIORITIES: Final = {"low": -1, "normal": 0, "high": 1}
#: What a team has spent counts half as much after so long, in days.
HALF_LIFE_DAYS: Final = 7.0
#: What was spent earlier does not count, in days.
_MEMORY_DAYS: Final = 70


@dataclass(frozen=True, slots=True)
class Request:
    """A run that wants to start.

    Attributes:
        run: its id.
        team: whose; `OWNER` of the home.
        priority: of `PRIORITIES`.
        asked_at: Unix seconds.
        most_usd: what it may cost.
        usd_per_hour: what its machines cost per hour.
    """

    run: str
    team: str
    priority: int
    asked_at: float
    most_usd: float
    usd_per_hour: float


@dataclass(slots=True)
class BudgetLeft:
    """What a team, or everybody together, may still have.

    Attributes:
        who: for people.
        used_usd: what it has spent of late, and has set aside: who has the least comes first.
        left_usd, runs, usd_per_hour: what is left of each limit.
        limit_usd, limit_usd_per_hour: of the month and per hour, also of what is taken.
        raising: who gives more for the month, and how, for people.
        has: the verb for ``who``.
        spent_usd: of the month's money; it is there again as the next one begins, on the day ``month``.
    """

    who: str
    used_usd: float
    left_usd: float = math.inf
    runs: float = math.inf
    usd_per_hour: float = math.inf
    limit_usd: float = math.inf
    limit_usd_per_hour: float = math.inf
    raising: str = ""
    has: str = "has"
    spent_usd: float = 0.0
    month: str = ""

    def excess(self, wanted: Request) -> str:
        """How a run is beyond a limit itself, which was lowered while it waited, in words; or empty."""
        for usd, limit_usd, what in (
            (wanted.most_usd, self.limit_usd, ""),
            (wanted.usd_per_hour, self.limit_usd_per_hour, " per hour"),
        ):
            if usd and ledger.micro(usd) > _micro(limit_usd):
                return (
                    f"a higher limit: it may cost {dollars(usd)}{what}, and that of {self.who} is "
                    f"{dollars(limit_usd)}{what}"
                )
        return ""

    def obstacle(self, wanted: Request) -> str:
        """What a run waits for, in words; empty if it may start."""
        if wanted.most_usd and ledger.micro(wanted.most_usd) > _micro(self.left_usd):
            is_there_then = ledger.micro(wanted.most_usd) <= _micro(self.left_usd + self.spent_usd)
            aside_usd = self.limit_usd - self.left_usd - self.spent_usd
            is_aside = math.isfinite(aside_usd) and _micro(aside_usd) > 0
            return (
                f"{dollars(wanted.most_usd)} of the month's budget: {self.who} {self.has} "
                f"{dollars(max(0.0, self.left_usd))} left of {dollars(self.limit_usd)}"
                + (f" ({dollars(aside_usd)} is set aside for runs, until they end)" if is_aside else "")
                + (f", and {self.raising}" if self.raising else "")
                + (f"; else it goes on as a month begins, on {self.month} (UTC)" if is_there_then else "")
            )
        if self.runs < 1:
            return f"the end of a run: {self.who} {self.has} as many as may go on at once"
        if wanted.usd_per_hour and ledger.micro(wanted.usd_per_hour) > _micro(self.usd_per_hour):
            return (
                f"{dollars(wanted.usd_per_hour)} per hour: {self.who} {self.has} "
                f"{dollars(max(0.0, self.usd_per_hour))} left of {dollars(self.limit_usd_per_hour)}"
            )
        return ""

    def take(self, wanted: Request) -> None:
        """A run starts."""
        self.left_usd -= wanted.most_usd
        self.runs -= 1
        self.usd_per_hour -= wanted.usd_per_hour


@dataclass(frozen=True, slots=True)
class AdmissionVerdict:
    """Of one run.

    Attributes:
        request: of it.
        waits_for: in words; empty: it may start.
        place: among those that wait, from 1; 0 if it may start.
    """

    request: Request
    waits_for: str = ""
    place: int = 0

    def as_json(self) -> str:
        """As it is written down."""
        return json.dumps({"waits_for": self.waits_for, "place": self.place})


def decide(requests: Sequence[Request], left: Mapping[str, BudgetLeft]) -> list[AdmissionVerdict]:
    """Who may start now, and in which order the others wait.

    A run that does not fit holds back those behind it that draw on the same limit: those of its team, or of
    all if it is the limit of all. So small runs do not starve a large one. One that is beyond a limit itself
    holds no other run back: nothing that ends would let it start.

    Args:
        requests: all that wait.
        left: of each of their teams, and of `ALL`. They are used up.
    """
    verdicts, places = [], 0
    held_back: dict[str, Request] = {}
    for wanted in _in_order(requests, {team: each.used_usd for team, each in left.items()}):
        why = left[wanted.team].excess(wanted) or left[ALL].excess(wanted)
        for name in () if why else (wanted.team, ALL):
            if ahead := held_back.get(name):
                is_own = ahead.team == wanted.team  # else it is not there to who waits
                why = f"{ahead.run if is_own else 'a run of others'}, which comes first"
            elif found := left[name].obstacle(wanted):
                why = found
                held_back[name] = wanted
            if why:
                break
        if why:
            places += 1
            verdicts.append(AdmissionVerdict(wanted, why, places))
            continue
        for name in (wanted.team, ALL):
            left[name].take(wanted)
        verdicts.append(AdmissionVerdict(wanted))
    return verdicts


def _in_order(requests: Sequence[Request], used_usd: Mapping[str, float]) -> Iterator[Request]:
    """By priority, then by what each team would have used by then, then by age."""
    used = dict(used_usd)
    queues: dict[tuple[int, str], list[Request]] = {}
    for wanted in sorted(requests, key=lambda each: (-each.asked_at, each.run)):
        queues.setdefault((wanted.priority, wanted.team), []).append(wanted)  # the oldest is last

    def entry(priority: int, team: str) -> tuple[float, float, float, str, int, str]:
        oldest = queues[priority, team][-1]
        return (-priority, used[team], oldest.asked_at, oldest.run, priority, team)

    heap = [entry(*key) for key in queues]
    heapq.heapify(heap)
    while heap:
        *_, priority, team = found = heapq.heappop(heap)
        if found[1] != used[team]:  # it has used more since, at another priority
            heapq.heappush(heap, entry(priority, team))
            continue
        wanted = queues[priority, team].pop()
        used[team] += wanted.most_usd
        if queues[priority, team]:
            heapq.heappush(heap, entry(priority, team))
        yield wanted


def _micro(usd: float) -> float:
    return math.inf if usd == math.inf else ledger.micro(usd)


# --- in the database ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Application:
    """What a run that was sent to a server asks for.

    Attributes:
        priority: of `PRIORITIES`.
        usd_per_hour: what it may cost per hour.
        waits: for money, too; without it a run that does not fit in the month is refused.
    """

    priority: int
    usd_per_hour: float
    waits: bool


def entrance(
    run: str,
    team: str,
    most_usd: float | None,
    wish: Application | None,
    now: float,
    wallet: Wallet | None = None,
    usd_per_hour: float | None = None,
) -> Callable[[Connection], None]:
    """What sets aside, in the transaction that accepts a run, what it may cost; or lets it wait for that.

    Args:
        run: its id.
        team: whose; `OWNER` of the home.
        most_usd: what it may cost from its beginning to its end; None if unknown.
        wish: of a run that was sent to a server; None for one that starts here, or goes on.
        now: Unix seconds.
        wallet: that has to have so much, too.
        usd_per_hour: what its machines cost where it goes on; None: as before.

    Returns:
        To be called within the transaction, when the run's row is there. It raises OverBudgetError for a run
        that can never start or does not fit and does not wait, or that goes on where as much as may goes on
        already, and UsageError for one that may cost anything.
    """

    def admit(connection: Connection) -> None:
        if wallet is not None:
            ledger.lock_admission(connection)
            from trainmaster.service.teams.wallet import admit as admit_to_wallet

            admit_to_wallet(connection, run, most_usd, wallet)
        if wish is not None:
            _apply(connection, run, team, most_usd, wish, now)
            return
        set_aside(connection, run, team, most_usd, now)
        if usd_per_hour is not None:
            admissions.reprice(connection, run, usd_per_hour)
        admissions.admit(connection, run, now)  # one that was cancelled before its turn
        _check_place(connection, run, team, now)

    return admit


def _apply(
    connection: Connection, run: str, team: str, most_usd: float | None, wish: Application, now: float
) -> None:
    ledger.lock_admission(connection)
    found = Budgets(lambda query: connection.execute(query).mappings().all(), now)
    for whose in (team, ALL):
        if not wish.waits:
            found[whose].admit(most_usd)
        _check_ever(found[whose], most_usd, wish.usd_per_hour)
    admissions.ask(
        connection,
        {
            "run_id": run,
            "priority": wish.priority,
            "most_micro_usd": ledger.micro(most_usd or 0.0),
            "usd_per_hour": wish.usd_per_hour,
            "asked_at": now,
        },
    )
    _settle(connection, now)


def _check_place(connection: Connection, run: str, team: str, now: float) -> None:
    """Refuse to go on with a run that was sent to a server, where limits say that it would have to wait."""
    rows = connection.execute(admissions.OPEN).mappings().all()
    mine = next((row for row in rows if row["run_id"] == run), None)
    if mine is None:  # those that were started without a server count in no limit of what goes on at once
        return
    wanted = Request(run, team, mine["priority"], now, 0.0, mine["usd_per_hour"])
    left = _left(connection, rows, now, without=run)
    for whose in (team, ALL):
        if why := left[whose].obstacle(wanted):
            raise OverBudgetError(f"{run} cannot go on now: it waits for {why}", "Go on with it later.")


def admit_waiting(database: Database, now: float) -> list[str]:
    """Let those start whose turn has come; which these are. Every server asks this now and then.

    Raises:
        StoreError: the database cannot be used.
    """
    if not database.read(admissions.waiting_query()):
        return []

    def write(connection: Connection, _: object) -> list[str]:
        ledger.lock_admission(connection)
        return _settle(connection, now)

    return database.write(write, patient=False)


def waits_for_turn(database: Database, run: str) -> bool:
    """Whether a run waits for its turn, so that it may not be driven."""
    return bool(database.read(admissions.waiting_query(run)))


def queue_of(database: Database, caller: Caller | None) -> list[dict[str, Any]]:
    """Runs that wait for their turn, the next first, of those that a caller sees (None: all).

    Returns:
        ``run``, ``team``, ``priority``, ``since``, ``place``, ``waits_for``, ``most_usd``.
    """
    names = {number: name for name, number in PRIORITIES.items()}
    found = [
        {
            "run": row["run_id"],
            "team": row["team"],
            "priority": names[row["priority"]],
            "since": row["asked_at"],
            "most_usd": ledger.dollars(row["most_micro_usd"]),
            **json.loads(row["queued_for"]),
        }
        for row in database.read(admissions.OPEN)
        if row["admitted_at"] is None and row["queued_for"] and (caller is None or caller.sees(row["team"]))
    ]
    return sorted(found, key=lambda each: each["place"])


def _settle(connection: Connection, now: float) -> list[str]:
    rows = connection.execute(admissions.OPEN).mappings().all()
    stored = {row["run_id"]: row["queued_for"] for row in rows}
    waiting = [
        Request(
            row["run_id"],
            row["team"] or OWNER,
            row["priority"],
            row["asked_at"],
            ledger.dollars(row["most_micro_usd"]),
            row["usd_per_hour"],
        )
        for row in rows
        if row["admitted_at"] is None
    ]
    started = []
    for verdict in decide(waiting, _left(connection, rows, now)):
        wanted, text = verdict.request, verdict.as_json()
        if not verdict.waits_for:
            waited = format_duration(now - wanted.asked_at)
            note = f"its turn has come after {waited}" if stored[wanted.run] else ""
            admissions.admit(connection, wanted.run, now, note)
            ledger.reserve(connection, wanted.run, ledger.micro(wanted.most_usd), now)
            started.append(wanted.run)
        elif stored[wanted.run] != text:
            admissions.wait(connection, wanted.run, wanted.asked_at, text)
    return started


def _left(
    connection: Connection, rows: Sequence[RowMapping], now: float, without: str = ""
) -> Mapping[str, BudgetLeft]:
    """What is left of each limit, without what those have that may run already, ``without`` one of them."""
    budgets = Budgets(lambda query: connection.execute(query).mappings().all(), now)
    used = _used_usd(connection, now)
    teams = {row["team"] or OWNER for row in rows}
    left = {team: _left_of(budgets[team], used.get(team, 0.0), now) for team in (*teams, ALL)}
    for row in rows:
        if row["admitted_at"] is not None and row["run_id"] != without:
            for whose in (row["team"] or OWNER, ALL):
                left[whose].runs -= 1
                left[whose].usd_per_hour -= row["usd_per_hour"]
    return left


def _left_of(budget: TeamBudget, used_usd: float, now: float) -> BudgetLeft:
    return BudgetLeft(
        budget.who,
        used_usd + budget.reserved_usd,
        math.inf if budget.left_usd is None else budget.left_usd,
        math.inf if budget.runs_at_once is None else budget.runs_at_once,
        math.inf if budget.usd_per_hour is None else budget.usd_per_hour,
        math.inf if budget.monthly_usd is None else budget.monthly_usd,
        math.inf if budget.usd_per_hour is None else budget.usd_per_hour,
        budget.raising,
        budget.has,
        budget.spent_usd,
        next_month(now),
    )


def _used_usd(connection: Connection, now: float) -> Mapping[str, float]:
    """What each team has spent; what was spent earlier counts less."""
    used: dict[str, float] = {}
    for row in ledger.charged_by_day(connection, ledger.day_of(now - _MEMORY_DAYS * 86400)):
        begin = datetime.strptime(row["day"], "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
        age_days = max(0.0, (now - begin) / 86400)
        share = 0.5 ** (age_days / HALF_LIFE_DAYS)
        used[row["team"]] = used.get(row["team"], 0.0) + share * ledger.dollars(int(row["micro_usd"]))
    return used


def _check_ever(budget: TeamBudget, most_usd: float | None, usd_per_hour: float) -> None:
    """Refuse what can never start."""
    if most_usd is None:
        budget.admit(None)
        return
    per_hour = "an admin raises it: `trainmaster team create TEAM --usd-per-hour AMOUNT`, or `PUT /budgets`"
    for limit, wanted, what, raising in (
        (budget.monthly_usd, most_usd, "", budget.raising),
        (budget.usd_per_hour, usd_per_hour, " per hour", per_hour),
    ):
        if limit is not None and ledger.micro(wanted) > ledger.micro(limit):
            raise OverBudgetError(
                f"this run may cost {dollars(wanted)}{what}, "
                f"and the limit of {budget.who} is {dollars(limit)}{what}",
                f"It can never start. Lower its cap, or take smaller machines; else {raising}.",
            )
