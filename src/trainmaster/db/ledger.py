"""The ledger: what the runs of teams have spent, and what is set aside for those that go on.

Whole micro-dollars, one row for each run, kind and day (UTC): ``reserve`` sets money aside, ``charge``
spends it, ``release`` gives back what was not needed. Callers say how much it is by now, and the row of the
day takes the difference. So a transaction that is repeated, or that comes after a process was killed, counts
nothing twice.

A team is its name; the empty one is the owner of the home, and `ALL` stands for everybody together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.dataclass import dataclass
from trainmaster.db import tables as t
from trainmaster.db.events import event_row, insert_events
from trainmaster.db.transactions import put_row
from trainmaster.spec import units
from trainmaster.spec.states import State
from trainmaster.spec.topics import BUDGET_REACHED

RESERVE, CHARGE, RELEASE = "reserve", "charge", "release"
ALL: Final = "*"
_MICRO: Final = 1_000_000
#: Any number: that of nothing else of ours.
_ADMISSION: Final = 0x7A11_ED6E
#: Runs that may have machines, and how long these live without a driver, in seconds.
_WITH_MACHINES: Final = sa.select(t.cluster.c.run_id).where(t.cluster.c.state.in_(("ACTIVE", "ENDING")))
_LEASE_S: Final = 1200.0
#: Runs whose machines stay warm: what these cost comes on the bill of their run when they are taken or end.
_WITH_KEPT: Final = sa.select(t.cluster.c.run_id).where(t.cluster.c.state == "KEPT")
#: The limits of every team that has any.
LIMITS: Final = sa.select(t.budget)
#: Percentages of a month's money at which people are warned, once each.
WARN_AT: Final = (50, 80, 100)


@dataclass(frozen=True, slots=True)
class Balance:
    """Of a team in one month, in micro-dollars.

    Attributes:
        spent: in that month.
        reserved: for runs that go on, whenever they began.
    """

    spent: int = 0
    reserved: int = 0

    @property
    def taken(self) -> int:
        """What is reserved."""
        return self.spent + self.reserved


@dataclass(frozen=True, slots=True)
class _Account:
    """What the rows of one run come to: ``held`` is what it has left of what was set aside."""

    run: str
    team: str
    has_wallet: bool
    is_over: bool
    bill: int
    charged: int
    held: int


def micro(usd: float) -> int:
    """Dollars in whole micro-dollars.

    >>> micro(0.1) + micro(0.2) == micro(0.3)
    True
    """
    return round(usd * _MICRO)


def dollars(micro_usd: int) -> float:
    """Micro-dollars in dollars."""
    return micro_usd / _MICRO


def day_of(now: float) -> str:
    """The day (UTC) of a Unix time; its beginning is the month.

    >>> day_of(86400.0 * 40)
    '1970-02-10'
    """
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d")


def charge(connection: Connection, run: str, now: float) -> None:
    """Spend what the bill of a run has grown by; call it where ``run.cost_usd`` was written."""
    account = _account(connection, run)
    if account.bill != account.charged:
        _add(connection, account, CHARGE, account.bill - account.charged, now)
        _warn(connection, account, now)


def reserve(connection: Connection, run: str, most: int, now: float) -> None:
    """Set aside what a run may still cost; for one that is over nothing is.

    Args:
        connection: in the transaction of what it is about.
        run: its id.
        most: micro-dollars that it may cost from its beginning to its end.
        now: Unix seconds.
    """
    account = _account(connection, run)
    if not account.is_over:
        _add(connection, account, RESERVE, max(0, most - account.charged) - account.held, now)


def month_limits(team: str) -> sa.Select[Any]:
    """The limits of a month that the runs of a team draw on."""
    return LIMITS.where(t.budget.c.team.in_((team, ALL)), t.budget.c.monthly_usd.is_not(None))


def reserve_up_to(
    connection: Connection, run: str, most: int, now: float, *, gives_back: bool = False
) -> int:
    """Set aside what a run may still cost, as far as the months' limits have it.

    Args:
        connection: in a transaction.
        run: its id.
        most: micro-dollars that it may cost from its beginning to its end.
        now: Unix seconds.
        gives_back: what was set aside beyond that is free again.

    Returns:
        What it may cost from its beginning to its end now.
    """
    lock_admission(connection)
    account = _account(connection, run)
    has = account.charged + max(0, account.held)
    if account.has_wallet:  # all that it may cost was set aside when it was accepted
        return has
    if most > has:
        limits = connection.execute(month_limits(account.team)).mappings().all()
        found = balances(connection.execute(balances_query(now)).mappings().all()) if limits else {}
        left = [micro(row["monthly_usd"]) - found.get(row["team"], Balance()).taken for row in limits]
        most = granted(most, has, left)
    elif not gives_back:
        return has
    reserve(connection, run, most, now)
    return most


def granted(wanted: int, has: int, left: Sequence[int]) -> int:
    """What a run may cost that wants so much in all: never more than it has and what each limit has left.

    Args:
        wanted: from its beginning to its end.
        has: what was set aside for it or spent by it.
        left: of each limit; below 0 where one was lowered.

    >>> granted(9, 4, [3, 7]), granted(2, 4, [0]), granted(9, 4, [-3])
    (7, 2, 4)
    """
    return min(wanted, has + max(0, min(left, default=wanted)))


def missing(connection: Connection, run: str, most: int) -> int:
    """How much more must be set aside for a run that may cost ``most``, in micro-dollars."""
    account = _account(connection, run)
    return max(0, most - account.charged - max(0, account.held))


def in_wallet(read: Callable[[sa.Select[Any]], Sequence[RowMapping]], wallet: str) -> Balance:
    """What the runs from a wallet have cost, whenever that was, and may still cost.

    Args:
        read: runs queries: of a database, or within a transaction.
        wallet: its name.
    """
    is_charge = t.ledger.c.kind == CHARGE
    signed = sa.case((is_charge, -t.ledger.c.micro_usd), else_=t.ledger.c.micro_usd)
    may_cost = (t.run.c.state != State.DONE) | t.run.c.id.in_(_WITH_MACHINES)
    of_run = (
        sa.select(
            sa.func.sum(sa.case((is_charge, t.ledger.c.micro_usd), else_=0)).label("spent"),
            sa.func.sum(sa.case((may_cost, signed), else_=0)).label("held"),
        )
        .join(t.run, t.run.c.id == t.ledger.c.run_id)
        .where(t.run.c.wallet == wallet)
        .group_by(t.ledger.c.run_id)
    )
    waiting = (  # their turn has not come: nothing is set aside yet
        sa.select(sa.func.coalesce(sa.func.sum(t.admission.c.most_micro_usd), 0).label("held"))
        .join(t.run, t.run.c.id == t.admission.c.run_id)
        .where(t.run.c.wallet == wallet, t.run.c.state != State.DONE, t.admission.c.admitted_at.is_(None))
    )
    rows = read(of_run)
    held = sum(max(0, int(row["held"])) for row in (*rows, *read(waiting)))
    return Balance(sum(int(row["spent"]) for row in rows), held)


def release(connection: Connection, run: str, now: float) -> None:
    """Give back what a run has not needed, once it is over and its machines are given back or taken over."""
    account = _account(connection, run)
    costs = (each.where(t.cluster.c.run_id == run) for each in (_WITH_MACHINES, _WITH_KEPT))
    if account.is_over and all(connection.execute(each).first() is None for each in costs):
        _add(connection, account, RELEASE, -max(0, account.held), now)


def balances_query(now: float) -> sa.Select[Any]:
    """For `balances`: one statement, so that it sees one moment."""
    in_month = t.ledger.c.day.startswith(day_of(now)[:7], autoescape=True)
    is_charge = t.ledger.c.kind == CHARGE
    signed = sa.case((is_charge, -t.ledger.c.micro_usd), else_=t.ledger.c.micro_usd)
    # One that is over goes on to cost while its machines are given back, also without a driver.
    ends = (t.run.c.lease_expires_at > now - _LEASE_S) & t.run.c.id.in_(_WITH_MACHINES)
    is_kept = t.run.c.id.in_(_WITH_KEPT.where(t.cluster.c.kept_until > now))
    goes_on = (t.run.c.state != State.DONE) | ends | is_kept
    of_run = (
        sa.select(
            t.ledger.c.team,
            sa.func.sum(sa.case((is_charge & in_month, t.ledger.c.micro_usd), else_=0)).label("spent"),
            sa.func.sum(sa.case((goes_on, signed), else_=0)).label("held"),
        )
        .join(t.run, t.run.c.id == t.ledger.c.run_id)
        .where(in_month | goes_on)
        .group_by(t.ledger.c.team, t.ledger.c.run_id)
        .subquery()
    )
    return sa.select(
        of_run.c.team,
        sa.func.sum(of_run.c.spent).label("spent"),
        sa.func.sum(sa.case((of_run.c.held > 0, of_run.c.held), else_=0)).label("reserved"),
    ).group_by(of_run.c.team)


def balances(rows: Sequence[RowMapping]) -> Mapping[str, Balance]:
    """What each team has spent this month and has set aside, and `ALL` together; of `balances_query`."""
    found = {row["team"]: Balance(int(row["spent"]), int(row["reserved"])) for row in rows}
    everybody = Balance(sum(b.spent for b in found.values()), sum(b.reserved for b in found.values()))
    return {**found, ALL: everybody}


def entries_query(
    teams: Sequence[str] | None, before: int | None, limit: int, run: str | None = None
) -> sa.Select[Any]:
    """Rows of the ledger, newest first.

    Args:
        teams: of these; None for all.
        before: id of the row that they come after.
        limit: at most so many.
        run: of this run only.
    """
    query = sa.select(t.ledger).order_by(t.ledger.c.id.desc()).limit(limit)
    if teams is not None:
        query = query.where(t.ledger.c.team.in_(teams))
    if before is not None:
        query = query.where(t.ledger.c.id < before)
    return query if run is None else query.where(t.ledger.c.run_id == run)


def charged_by_day(connection: Connection, since: str) -> Sequence[RowMapping]:
    """``team``, ``day`` and ``micro_usd`` of what was spent from a day on."""
    query = (
        sa.select(t.ledger.c.team, t.ledger.c.day, sa.func.sum(t.ledger.c.micro_usd).label("micro_usd"))
        .where(t.ledger.c.kind == CHARGE, t.ledger.c.day >= since)
        .group_by(t.ledger.c.team, t.ledger.c.day)
    )
    return connection.execute(query).mappings().all()


def charges_query(of_runs: sa.ColumnElement[bool], since: float) -> sa.Select[Any]:
    """``run_id``, ``month`` and ``micro_usd`` of what was spent.

    Args:
        of_runs: a condition on `run`.
        since: Unix seconds; from that day on.
    """
    month = sa.func.substr(t.ledger.c.day, 1, 7).label("month")
    return (
        sa.select(t.ledger.c.run_id, month, sa.func.sum(t.ledger.c.micro_usd).label("micro_usd"))
        .join(t.run, t.run.c.id == t.ledger.c.run_id)
        .where(t.ledger.c.kind == CHARGE, t.ledger.c.day >= day_of(since), of_runs)
        .group_by(t.ledger.c.run_id, month)
    )


def clusters_query(of_runs: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Clusters that runs have now, or had last."""
    return sa.select(t.cluster).join(t.run, t.run.c.id == t.cluster.c.run_id).where(of_runs)


def quotes_query(of_runs: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Quotes of whole runs, in the order in which they were made."""
    query = sa.select(t.quote).join(t.run, t.run.c.id == t.quote.c.run_id)
    return query.where(t.quote.c.experiment.is_(None), of_runs).order_by(t.quote.c.made_at, t.quote.c.id)


# --- limits ---------------------------------------------------------------------------------------------


def set_limits(connection: Connection, team: str, limits: Mapping[str, object]) -> None:
    """Change limits of a team (columns of the table ``budget``); those that are not named stay."""
    put_row(connection, t.budget, {"team": team}, limits)


def lock_admission(connection: Connection) -> None:
    """Let this transaction alone decide what may start until it ends; on SQLite every writer is alone."""
    if connection.dialect.name != "sqlite":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADMISSION)))


# --- parts ----------------------------------------------------------------------------------------------


def _account(connection: Connection, run: str) -> _Account:
    # Locked: another process may bill machines that the run has left.
    c = t.run.c
    query = sa.select(c.team, c.wallet, c.state, c.cost_usd).where(c.id == run)
    row = connection.execute(query.with_for_update()).one()
    kinds = (
        sa.select(t.ledger.c.kind, sa.func.sum(t.ledger.c.micro_usd))
        .where(t.ledger.c.run_id == run)
        .group_by(t.ledger.c.kind)
    )
    sums = {kind: int(amount) for kind, amount in connection.execute(kinds)}
    charged = sums.get(CHARGE, 0)
    held = sums.get(RESERVE, 0) + sums.get(RELEASE, 0) - charged
    is_over, bill = row.state == State.DONE, micro(row.cost_usd)
    return _Account(run, row.team or "", row.wallet is not None, is_over, bill, charged, held)


def _add(connection: Connection, account: _Account, kind: str, amount: int, now: float) -> None:
    if not amount:
        return
    key = {"run_id": account.run, "kind": kind, "day": day_of(now)}
    mine = [t.ledger.c[name] == value for name, value in key.items()]
    grown = connection.execute(
        t.ledger.update().where(*mine).values(micro_usd=t.ledger.c.micro_usd + amount, at=now)
    )
    if not grown.rowcount:
        connection.execute(t.ledger.insert().values(**key, team=account.team, micro_usd=amount, at=now))


def _warn(connection: Connection, account: _Account, now: float) -> None:
    """Tell in the run that crosses it, once a month, that much of the month's money is spent."""
    whose = t.budget.c.team.in_((account.team, ALL)), t.budget.c.monthly_usd.is_not(None)
    # Locked: two runs that cross it together would each see half of it. In order: they do not wait in a ring.
    locked = LIMITS.where(*whose).order_by(t.budget.c.team).with_for_update()
    known = connection.execute(locked).mappings().all()
    if not known:
        return
    spent = balances(connection.execute(balances_query(now)).mappings().all())
    month = day_of(now)[:7]
    for limit in known:
        team, most = limit["team"], micro(limit["monthly_usd"])
        reached = [share for share in WARN_AT if 100 * spent[team].spent >= share * most]
        told = connection.execute(
            sa.select(t.budget_warning.c.percent).where(
                t.budget_warning.c.team == team, t.budget_warning.c.month == month
            )
        ).scalars()
        new = sorted(set(reached) - set(told))
        if not new:
            continue
        connection.execute(
            t.budget_warning.insert(),
            [{"team": team, "month": month, "percent": share, "at": now} for share in new],
        )
        who = "all teams together have" if team == ALL else f"team {team} has" if team else "you have"
        message = (
            f"budget: {who} spent {new[-1]} % of the month's {units.dollars(limit['monthly_usd'])} "
            f"({units.dollars(dollars(spent[team].spent))})"
        )
        note = event_row(account.run, now, "note", message=message, topic=BUDGET_REACHED)
        insert_events(connection, [note])
