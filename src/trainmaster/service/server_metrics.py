"""`server_metrics`: what Prometheus is told, of what a caller sees. No label per run or user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from trainmaster.db import queries
from trainmaster.db.leases import is_alive
from trainmaster.db.queries import RunFilter
from trainmaster.service.quotes.score import KINDS, outcomes
from trainmaster.service.service import Service
from trainmaster.service.teams.team_runs import TeamRuns
from trainmaster.service.users.caller import Caller
from trainmaster.spec.states import State


class Gauge(NamedTuple):
    """A number that goes up and down.

    Attributes:
        name: without ``trainmaster_``. help: what it is.
        label: name of its label; empty without.
        values: by label.
    """

    name: str
    help: str
    label: str
    values: dict[str, float]


def server_metrics(service: Service, caller: Caller) -> Iterator[Gauge]:
    """The gauges."""
    database = service.database
    which = RunFilter(None if caller.sees_all else (caller.team,))
    counted = {state.value: 0.0 for state in State}
    counted |= {row["state"]: float(row["count"]) for row in queries.run_states(database, which)}
    yield Gauge("runs", "Runs by state.", "state", counted)
    ended = {row["reason"]: float(row["count"]) for row in queries.run_reasons(database, which)}
    yield Gauge("runs_ended", "Runs that are over, by reason.", "reason", ended)
    now = database.clock_s()
    leases = queries.leases(database, which)
    living = [row for row in leases if is_alive(row["lease_owner"], row["lease_expires_at"], now)]
    yield Gauge("runs_driven", "Runs that a process drives.", "", {"": float(len(living))})
    left = [row["lease_expires_at"] - now for row in living if row["lease_expires_at"] is not None]
    yield Gauge(
        "lease_left_seconds",
        "Until the first lease ends that is not renewed.",
        "",
        {"": min(left, default=0.0)},
    )
    waits = float(len(leases) - len(living))
    yield Gauge("runs_undriven", "Runs that are not over, and that no process drives.", "", {"": waits})
    clusters = TeamRuns(service, caller).clusters()
    yield Gauge("clusters", "Rented clusters.", "", {"": float(len(clusters))})
    usd = sum(each["usd_per_hour"] or 0.0 for each in clusters)
    yield Gauge("usd_per_hour", "What they cost now, US dollars per hour.", "", {"": usd})
    # what was ended by hand says nothing of its quote
    found = outcomes(database, service.home.identity(), caller.sees)
    told = [each for each in found if each.kept is not None]
    for name, what in (("quotes_judged", "Quotes of runs that are over."), ("quotes_kept", "Those kept.")):
        values = {
            kind: float(
                sum(each.promise.kind == kind and (each.kept or name != "quotes_kept") for each in told)
            )
            for kind in KINDS
        }
        yield Gauge(name, what, "kind", values)
