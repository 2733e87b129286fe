"""What a team may still spend this month: its budget without what its runs have cost and may still cost.

`Allowance`: what a run may cost while it goes on, where there is a budget for the month.

At its admission the p95 of its quote was set aside. A run that comes to need more asks for it before it is
spent, and gets what no other run was given: so all runs together never pass a month's budget. What it has
got is its cap, below which it ends in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from trainmaster.control.decide.budget import BOOTING_S, SOON_S, SWITCH_OFF_S, USUAL_LEASE_S, Meter
from trainmaster.dataclass import dataclass
from trainmaster.db import Database, ledger
from trainmaster.db.ledger import ALL, Balance
from trainmaster.db.row_values import columns
from trainmaster.spec.errors import NotFoundError, RunError, UsageError
from trainmaster.spec.plain_json import JsonObject, plain
from trainmaster.spec.units import dollars

if TYPE_CHECKING:
    from sqlalchemy import Select
    from sqlalchemy.engine import Connection, RowMapping

    from trainmaster.service.users.caller import Caller

#: How often it is asked for more, or whether there are limits now.
LOOK_S: Final = 10.0
#: Money is there for so long, so that leases need not be shorter than usual.
AHEAD_S: Final = LOOK_S + USUAL_LEASE_S + SWITCH_OFF_S


class Allowance:
    """Of one run, for its driver.

    Args:
        database: of the home.
        run: its id.
        team: whose; `OWNER` of the home.
        cap_usd: of its recipe; infinite where there is none.
        usd_per_hour: of all machines that are planned now, at the highest price: gangs may grow.
    """

    def __init__(
        self,
        database: Database,
        run: str,
        team: str,
        cap_usd: float,
        usd_per_hour: Callable[[], float],
    ) -> None:
        self._database = database
        self._run = run
        self._team = team
        self._cap_usd = cap_usd
        self._usd_per_hour = usd_per_hour
        self._next_at = -math.inf

    def hurry(self) -> None:
        """What is set aside has changed: look at once."""
        self._next_at = -math.inf

    def look(self, meter: Meter, now: float) -> None:
        """Give the meter the cap that holds now, after asking for more money if it is needed soon.

        Raises:
            StoreError: the database cannot be used.
        """
        if now < self._next_at:
            return
        self._next_at = now + LOOK_S
        if not self._database.read(ledger.month_limits(self._team)):
            meter.cap_usd, meter.why = self._cap_usd, ""
            return
        # From the start of a machine to its end in order may take longer than its lease.
        ahead_s = max(AHEAD_S, LOOK_S + BOOTING_S + SOON_S + meter.reserved_s)
        # The lease: machines may be lost, and rented again.
        lease_usd = self._usd_per_hour() * ahead_s / 3600
        wanted = ledger.micro(min(meter.bill(now + ahead_s) + lease_usd, self._cap_usd))
        at = self._database.clock_s()

        def write(connection: Connection, _: object) -> int:
            return ledger.reserve_up_to(connection, self._run, wanted, at)

        may_usd = ledger.dollars(self._database.write(write))
        is_less = may_usd < self._cap_usd
        why = f"of the month's budget there were only {dollars(may_usd)} for it" if is_less else ""
        # Clusters read it meanwhile, in threads of their own: it is never more than what was granted.
        meter.cap_usd, meter.why = min(may_usd, self._cap_usd), why


#: The owner of the home, whose runs belong to no team.
OWNER: Final = ""
#: All rows of a query: of a database, or within a transaction.
#: What of a team can be limited; those of `TeamBudget`, in order.
LIMITS: Final = ("monthly_usd", "runs_at_once", "usd_per_hour", "cpus_at_once")
Read = Callable[["Select[Any]"], Sequence["RowMapping"]]


class OverBudgetError(RunError):
    """A run that does not fit in what its team may still spend (HTTP 409)."""


@dataclass(frozen=True, slots=True)
class TeamBudget(JsonObject):
    """Of one calendar month (UTC), US dollars.

    Attributes:
        team: its name; `OWNER`, or `ALL` for everybody together.
        monthly_usd: what it may spend; None is no limit.
        spent_usd: what its runs have cost this month.
        reserved_usd: what those that go on may still cost.
        runs_at_once: how many of its runs may go on at the same time; None is no limit.
        usd_per_hour: what these may cost per hour; None is no limit.
        cpus_at_once: how many cores of a server's own machine its tasks may take; None is no limit.
    """

    team: str
    monthly_usd: float | None
    spent_usd: float
    reserved_usd: float
    runs_at_once: int | None = None
    usd_per_hour: float | None = None
    cpus_at_once: int | None = None

    @property
    def left_usd(self) -> float | None:
        """What is not spoken for; None without a limit."""
        return None if self.monthly_usd is None else self.monthly_usd - self.spent_usd - self.reserved_usd

    @property
    def is_limited(self) -> bool:
        """Whether there is any limit."""
        return any(limit is not None for limit in (self.monthly_usd, self.runs_at_once, self.usd_per_hour))

    @property
    def who(self) -> str:
        """Whose it is, for people.

        >>> TeamBudget("red", None, 0.0, 0.0).who, TeamBudget(OWNER, None, 0.0, 0.0).who
        ('team red', 'the owner of the home')
        """
        return {OWNER: "the owner of the home", ALL: "all teams together"}.get(self.team, f"team {self.team}")

    @property
    def has(self) -> str:
        """The verb for `who`."""
        return "have" if self.team == ALL else "has"

    @property
    def raising(self) -> str:
        """Who gives more for the month, and how.

        >>> TeamBudget("red", None, 0.0, 0.0).raising
        'an admin raises it: `trainmaster budget --team red --monthly AMOUNT`'
        """
        if self.team == OWNER:
            return "`trainmaster budget --monthly AMOUNT` raises it"
        team = f"'{ALL}'" if self.team == ALL else self.team
        return f"an admin raises it: `trainmaster budget --team {team} --monthly AMOUNT`"

    def admit(self, most_usd: float | None) -> None:
        """Refuse a run that may cost so much; None if the amount is unknown.

        Raises:
            OverBudgetError: it does not fit.
            UsageError: it may cost anything.
        """
        if self.left_usd is None or most_usd == 0:
            return
        if most_usd is None:
            raise UsageError(
                f"{self.who} {self.has} a budget, and nobody can say what this run may cost",
                "Set `budget.total` in the recipe (`--set 'budget.total=$5'`), or \"max_usd\" by REST.",
            )
        if ledger.micro(most_usd) > ledger.micro(self.left_usd):
            waits = "" if self.team == OWNER else ", or have it wait (`run --queue`)"
            raise OverBudgetError(
                f"this run may cost {dollars(most_usd)}, and this month's budget of {self.who} has "
                f"{dollars(max(0.0, self.left_usd))} left of {dollars(self.monthly_usd or 0.0)}: "
                f"{dollars(self.spent_usd)} spent, {dollars(self.reserved_usd)} reserved for runs that go on",
                f"Lower its cap{waits}; else {self.raising}. "
                f"`trainmaster cost --by {'team' if self.team == ALL else 'run'} --since month` says what "
                "used it.",
            )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**JsonObject.as_dict(self), "team": self.team or None, "left_usd": plain(self.left_usd)}


class Budgets:
    """The budgets of a home at one moment, by team: also of `OWNER`, `ALL` and teams without a limit.

    Args:
        read: runs queries.
        now: Unix seconds.
    """

    def __init__(self, read: Read, now: float) -> None:
        self._balances = ledger.balances(read(ledger.balances_query(now)))
        self._limits: Mapping[str, Mapping[Any, Any]] = {row["team"]: row for row in read(ledger.LIMITS)}

    def __getitem__(self, team: str) -> TeamBudget:
        limits = self._limits.get(team, {})
        balance = self._balances.get(team, Balance())
        spent, reserved = ledger.dollars(balance.spent), ledger.dollars(balance.reserved)
        monthly, *others = (limits.get(key) for key in LIMITS)
        return TeamBudget(team, monthly, spent, reserved, *others)


def budgets(database: Database, now: float) -> list[TeamBudget]:
    """Those of all teams by name."""
    from trainmaster.db import access

    found = Budgets(database.read, now)
    return [found[row["name"]] for row in access.teams(database)]


def budgets_of(database: Database, caller: Caller, now: float) -> list[TeamBudget]:
    """Those that a caller sees: of teams by name, of the owner of the home, of all together."""
    from trainmaster.db import access

    found = Budgets(database.read, now)
    names = [row["name"] for row in access.teams(database) if caller.sees(row["name"])]
    names += [OWNER] * caller.sees(None) + [ALL] * caller.sees_all
    return [found[name] for name in names]


def set_budget(
    database: Database, team: str | None, limits: Mapping[str, float | None], now: float
) -> TeamBudget:
    """Change limits; see `checked_limits`.

    Args:
        database: of the home.
        team: None for the owner of the home, `ALL` for everybody together.
        limits: of `LIMITS`.
        now: Unix seconds.

    Raises:
        NotFoundError: there is no such team.
        UsageError: one is no amount.
    """
    from trainmaster.db import access

    name, values = team or OWNER, checked_limits(limits)
    if name not in (OWNER, ALL) and not access.has_team(database, name):
        raise NotFoundError(f"there is no team {name!r}", "`trainmaster team list` shows the teams.")
    if values:
        database.write(lambda connection, _: ledger.set_limits(connection, name, values))
    return Budgets(database.read, now)[name]


def entries_of(
    database: Database, caller: Caller, run: str | None, before: int | None, limit: int
) -> dict[str, Any]:
    """``entries`` of the ledger that a caller sees, newest first, and ``next``, the cursor of the rest."""
    from trainmaster.service.users.caller import NO_TEAM

    teams = None if caller.sees_all else [OWNER if caller.team is None else caller.team]
    if caller.team == NO_TEAM and not caller.sees_all:
        teams = []
    rows = database.read(ledger.entries_query(teams, before, limit, run))
    found = [
        {
            "id": row["id"],
            "run": row["run_id"],
            "team": row["team"] or None,
            **columns(row, "kind", "day"),
            "usd": ledger.dollars(row["micro_usd"]),
            "at": row["at"],
        }
        for row in rows
    ]
    return {"entries": found, "next": found[-1]["id"] if len(found) == limit else None}


def checked_limits(limits: Mapping[str, float | None]) -> dict[str, float | None]:
    """Limits as they are written: None of those given stays as it is, and infinity is no limit.

    Raises:
        UsageError: one is no amount.

    >>> checked_limits({"monthly_usd": 5.0, "runs_at_once": None, "usd_per_hour": math.inf})
    {'monthly_usd': 5.0, 'usd_per_hour': None}
    """
    given = {key: value for key, value in limits.items() if value is not None}
    for key, value in given.items():
        if not value > 0 or (key.endswith("_at_once") and value % 1):
            raise UsageError(f"{key}: {value:g} is no limit", "Give an amount above 0.")
    return {key: None if value == math.inf else value for key, value in given.items()}


def set_aside(connection: Connection, run: str, team: str, most_usd: float | None, now: float) -> None:
    """Set aside what a run may cost from its beginning to its end, in the transaction that accepts it.

    Args:
        connection: in a transaction.
        run: its id; its row is there.
        team: whose it is.
        most_usd: None if unknown.
        now: Unix seconds.

    Raises:
        OverBudgetError: it does not fit in the month.
        UsageError: there is a budget, and it may cost anything.
    """
    ledger.lock_admission(connection)
    found = Budgets(lambda query: connection.execute(query).mappings().all(), now)
    most = ledger.micro(most_usd or 0.0)
    more_usd = None if most_usd is None else ledger.dollars(ledger.missing(connection, run, most))
    for whose in (team, ALL):
        found[whose].admit(more_usd)
    ledger.reserve(connection, run, most, now)
