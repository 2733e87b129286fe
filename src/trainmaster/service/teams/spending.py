"""What runs have cost, by label, month, provider, user, team or run; and what their quotes had said.

What was charged stands in the ledger, by day. Beside it are machines that are kept warm and on no run's bill
yet. A cost that is not known is None and is counted as such; it is never a zero.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from trainmaster.dataclass import dataclass, field
from trainmaster.db import Database, ledger, queries
from trainmaster.db.queries import RunFilter
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.runs.metric_export import cell
from trainmaster.spec.errors import UsageError
from trainmaster.spec.labels import key_problem
from trainmaster.spec.plain_json import plain
from trainmaster.spec.units import parse_duration

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.cluster.record import ClusterRecord

#: Since this calendar month (UTC) began, as budgets count.
MONTH: Final = "month"
#: By what costs are summed up; and ``label:KEY``.
GROUPS: Final = ("month", "provider", "user", "team", "run")
_OF_LABEL: Final = "label:"
_COLUMNS: Final = {"provider": "provider", "user": "submitted_by", "team": "team", "run": "id"}
UNKNOWN: Final = "unknown"


@dataclass(slots=True)
class Cost:
    """Of some runs, US dollars.

    Attributes:
        runs: which.
        usd: what they have cost as far as that is known; of that ``idle_usd`` for machines that were kept
            warm, ``storage_usd`` for disks and public addresses.
        unknown: those of which the cost is not known, or not all of it.
        unknown_storage: those of which it is not known what their disks cost.
        quoted, low_usd, middle_usd, high_usd: those that have ended and had a quote, and the sums of p5, p50
            and p95 of these.
        actual_usd: what they came to.
        kept: of those, which came out within p95 of time and cost.
    """

    runs: set[str] = field(default_factory=set)
    usd: float = 0.0
    idle_usd: float = 0.0
    storage_usd: float = 0.0
    unknown: set[str] = field(default_factory=set)
    unknown_storage: set[str] = field(default_factory=set)
    quoted: int = 0
    low_usd: float = 0.0
    middle_usd: float = 0.0
    high_usd: float = 0.0
    actual_usd: float = 0.0
    kept: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what nothing is known of is null."""
        known, stored = len(self.runs) > len(self.unknown), len(self.runs) > len(self.unknown_storage)
        usd = {
            "usd": self.usd if known or self.usd or not self.runs else None,
            "idle_usd": self.idle_usd,
            "storage_usd": self.storage_usd if stored or self.storage_usd or not self.runs else None,
        }
        quoted = {
            "runs": self.quoted, "low_usd": self.low_usd, "middle_usd": self.middle_usd,
            "high_usd": self.high_usd, "actual_usd": self.actual_usd, "kept": self.kept,
        }  # fmt: skip
        return {
            "runs": len(self.runs),
            **plain(usd),
            "unknown_runs": len(self.unknown),
            "quoted": plain(quoted),
        }


def cost_report(database: Database, which: RunFilter, by: str, since: str = "") -> dict[str, Any]:
    """What runs have cost, as ``trainmaster cost --json`` prints it: ``by``, ``since``, ``rows``, ``total``.

    Args:
        database: the database.
        which: of these runs.
        by: of `GROUPS`, or ``label:KEY``.
        since: what was spent within this time, such as ``30d``, since a day, or in this `MONTH`; empty for
            all.

    Raises:
        UsageError: one of the two is none.
    """
    _check_group(by)
    which = replace(which, removed=True)  # they were paid for
    now = database.clock_s()
    since_at = _since(since, now)
    charges = database.read(ledger.charges_query(which.condition(), since_at))
    rows = _rows(database, which, since_at, {row["run_id"] for row in charges})
    clusters = _by_run(database, ledger.clusters_query(which.condition()))
    quotes = _by_run(database, ledger.quotes_query(which.condition()))
    groups: dict[str | None, Cost] = {}
    total = Cost()
    parts: dict[str, dict[str | None, float]] = {}
    if by != "month":
        parts = {run: _parts(by, row, clusters.get(run, ()), now) for run, row in rows.items()}
    for row in charges:
        keys = {row["month"]: 1.0} if by == "month" else parts[row["run_id"]]
        for part, cost in [(1.0, total), *((keys[key], groups.setdefault(key, Cost())) for key in keys)]:
            cost.runs.add(row["run_id"])
            cost.usd += part * ledger.dollars(int(row["micro_usd"]))
    for run, row in rows.items():
        began = datetime.fromtimestamp(max(row["created_at"], since_at), UTC).strftime("%Y-%m")
        keys, every = {began: 1.0} if by == "month" else parts[run], clusters.get(run, ())
        for cost, place in [
            (total, None),
            *((groups.setdefault(key, Cost()), key if len(keys) > 1 else None) for key in keys),
        ]:
            cost.runs.add(run)
            _add_machines(cost, row, every, now, place)
            if row["state"] == "DONE":
                _add_quote(cost, quotes.get(run, ()))
    order = sorted(groups.items(), key=lambda each: _place(by, *each))
    return {
        "by": by,
        "since": since_at or None,
        "rows": [{"key": key, **cost.as_dict()} for key, cost in order],
        "total": total.as_dict(),
    }


def as_csv(report: Mapping[str, Any]) -> str:
    """The rows of `cost_report` as CSV; what is not known is ``unknown``."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    quoted = ("runs", "low_usd", "middle_usd", "high_usd", "actual_usd", "kept")
    plain = ("runs", "usd", "idle_usd", "storage_usd", "unknown_runs")
    writer.writerow([report["by"], *plain, *(f"quoted_{name}" for name in quoted)])
    for row in report["rows"]:
        values = [*(row[name] for name in plain), *(row["quoted"][name] for name in quoted)]
        writer.writerow([cell(row["key"] or ""), *(UNKNOWN if value is None else value for value in values)])
    return out.getvalue()


# --- parts ----------------------------------------------------------------------------------------------


def _check_group(by: str) -> None:
    if by in GROUPS or (by.startswith(_OF_LABEL) and not key_problem(by.removeprefix(_OF_LABEL))):
        return
    raise UsageError(f"by {by!r} no costs can be summed up", f"Write {', '.join(GROUPS)} or label:KEY.")


def _since(since: str, now: float) -> float:
    if not since:
        return 0.0
    if since == MONTH:
        today = datetime.fromtimestamp(now, UTC)
        return today.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()
    try:
        return now - parse_duration(since)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(since).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise UsageError(
            f"since {since!r}: that is no time",
            "Write a time such as 30d, a day such as 2026-11-01, or month: since this one began.",
        ) from None


def _rows(database: Database, which: RunFilter, since_at: float, charged: set[str]) -> dict[str, RowMapping]:
    """Runs that were begun or charged since then, newest first."""
    begun = queries.runs(database, which=replace(which, since=max(since_at, which.since or 0.0)))
    found = {row["id"]: row for row in begun}
    missing = charged - found.keys()
    older = queries.runs(database, which=which) if missing else ()
    return {**found, **{row["id"]: row for row in older if row["id"] in missing}}


def _by_run(database: Database, query: Any) -> dict[str, list[RowMapping]]:  # noqa: ANN401
    found: dict[str, list[RowMapping]] = {}
    for row in database.read(query):
        found.setdefault(row["run_id"], []).append(row)
    return found


def _key(by: str, row: Mapping[Any, Any]) -> str | None:
    if by.startswith(_OF_LABEL):
        found = json.loads(row["labels"]).get(by.removeprefix(_OF_LABEL))
        return None if found is None else str(found)
    value = row[_COLUMNS[by]]
    return None if value is None else str(value)


def _parts(
    by: str, row: Mapping[Any, Any], clusters: Sequence[RowMapping], now: float
) -> dict[str | None, float]:
    """The groups of a run, with what part of its bill is of each: several if it was in several places.

    A place of which only a damaged record tells has a group, too: what it has cost is unknown, not nothing.
    """
    from trainmaster.cluster.record import readable

    spent: dict[str | None, float] = {}
    damaged: list[str | None] = []
    if by == "provider":
        records = readable(clusters, lambda _: None)
        for record in records:
            for provider, usd in record.spent_by_provider(now).items():
                spent[provider] = spent.get(provider, 0.0) + usd
        known = {record.id for record in records}
        damaged = [each["provider"] for each in clusters if each["id"] not in known]
    total = sum(spent.values())
    if not total:
        return {_key(by, row): 1.0}
    return {**dict.fromkeys(damaged, 0.0), **{place: usd / total for place, usd in spent.items() if usd}}


def _place(by: str, key: str | None, cost: Cost) -> tuple[Any, ...]:
    """Months in order, what has cost most first, what has no key last."""
    return (key,) if by == "month" else (key is None, -cost.usd, key or "")


def _add_machines(
    cost: Cost, row: Mapping[Any, Any], clusters: Sequence[RowMapping], now: float, provider: str | None
) -> None:
    """What is known from the records of its clusters: warm machines, disks, and of what nothing is known.

    Only the machines of a provider count, if one is named.
    """
    from trainmaster.cluster.record import ClusterState, readable

    run = row["id"]
    records = readable(clusters, lambda _: None) if clusters else []
    if len(records) < len(clusters):
        cost.unknown.add(run)  # damaged: what they have cost is unknown
        cost.unknown_storage.add(run)
    for whole in records:
        machines = [m for m in whole.machines if provider in (None, whole.provider_of(m))]
        record = replace(whole, machines=tuple(machines))
        is_over = record.keepable_s and row["state"] == "DONE"
        over_at = row["closed_at"] or row["ended_at"] if is_over else None
        idle_usd = record.idle_usd(now, over_at)
        cost.idle_usd += idle_usd
        if record.state is ClusterState.KEPT:
            cost.usd += idle_usd  # it comes on the run's bill when the machines are taken or given back
        disks_usd = _disks_only(record).spent_usd(now)
        cost.storage_usd += disks_usd
        place = capabilities_of(provider or record.provider)
        if record.rented and not disks_usd and not place.billing.is_whole and place.costs:
            cost.unknown_storage.add(run)


def _disks_only(record: ClusterRecord) -> ClusterRecord:
    """As if only disks and addresses of its machines were billed."""
    return replace(
        record,
        machines=tuple(
            replace(
                machine,
                rental=replace(machine.rental, usd_per_hour=machine.rental.extras_usd_per_hour),
            )
            for machine in record.machines
        ),
    )


def _add_quote(cost: Cost, quotes: Sequence[RowMapping]) -> None:
    """The binding quote counts, without one the last estimate; one that nothing came of does not."""
    judged = [row for row in quotes if row["kept"] is not None]
    binding = [row for row in judged if row["kind"] == "binding"]
    for row in (binding or judged)[-1:]:
        said = json.loads(row["data"])["cost_usd"]
        cost.quoted += 1
        cost.low_usd += said["p5"]
        cost.middle_usd += said["p50"]
        cost.high_usd += said["p95"]
        cost.actual_usd += row["cost_usd"] or 0.0
        cost.kept += bool(row["kept"])
