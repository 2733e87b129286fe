"""How a process comes to hold a run: it accepts it, takes it over, or ends it; always under its lease."""

from __future__ import annotations

import shlex
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.artifacts import changed_since, materialise, take_snapshot
from trainmaster.artifacts.owner import LostStoreError, check_still_there, give_up_claim
from trainmaster.control.checks.preflight import why_bound_by_data
from trainmaster.db import AcceptedRun, Database, Lease, Submission, run_facts
from trainmaster.db.endpoint_changes import registering
from trainmaster.db.run_rows import move_run
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.driving.driving import Driving
from trainmaster.service.driving.execution_backend import Session
from trainmaster.service.quotes.quote_record import most_usd, quote_summary
from trainmaster.service.runs.run_names import claim_name
from trainmaster.service.runs.stored_recipe import stored_recipe
from trainmaster.service.runs.summary import is_driven
from trainmaster.service.teams.admission import Application, entrance, waits_for_turn
from trainmaster.service.teams.team_budget import OWNER, OverBudgetError
from trainmaster.spec import Recipe
from trainmaster.spec.errors import PublishError, StoreError, UsageError
from trainmaster.spec.facts import Approval
from trainmaster.spec.recipe_parts import named_places, with_total
from trainmaster.spec.redaction import redacted
from trainmaster.spec.states import FINISHED, EndReason, State
from trainmaster.spec.trigger import needs_server
from trainmaster.spec.units import dollars

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from trainmaster.service.open_home import OpenHome
    from trainmaster.service.renting.offer import RentalOffer
    from trainmaster.service.users.caller import Wallet

#: Who resumes a run that has just ended waits so long for its driver, in seconds; it is asked so often.
_GIVEN_BACK_S, _POLL_S = 60.0, 0.05


def accept(
    opened: OpenHome,
    recipe: Recipe,
    recipe_path: Path,
    environ: Mapping[str, str],
    offer: RentalOffer | None = None,
    keep_s: float = 0.0,
    submission: Submission | None = None,
    application: Application | None = None,
    *,
    moves: bool = False,
    wallet: Wallet | None = None,
) -> Session:
    """Snapshot the code of a recipe, and write the run down; see `Service.start`."""
    if recipe.on and submission is None:
        raise needs_server(recipe.on[0].key)
    notes = opened.check(recipe, environ)
    endpoints, labels = [], "{}"
    if recipe.labels:
        from trainmaster.service.runs.describing import first_labels

        labels = first_labels(recipe.labels, opened.secrets_of(recipe, environ))
    if any(each.serve is not None for each in recipe.experiments.values()):
        from trainmaster.service.endpoints.service_surroundings import new_endpoints

        endpoints = new_endpoints(opened, recipe)
    if recipe.sinks is not None:
        from trainmaster.service.sinks.feeding import check_sinks

        check_sinks(opened, recipe, environ)
    held = "held" if moves and offer is not None and not offer.costs else "paid for"
    if moves and (asking := [each.name for each in recipe.experiments.values() if each.approval]):
        notes.append(f"the machine that drives it is {held} while {', '.join(asking)} waits for approval")
    if moves and offer is not None and len(offer.plans) > 1:
        notes.append(f"the machine that drives it is {held} until its end, also while all is on others")
    now = opened.database.clock_s()
    owner = claim_name(opened.home, opened.database, recipe.name, now)
    run, home_id = owner.run, owner.home
    excluded = (opened.home.root, opened.home.cache, *recipe.secret_files)
    private = None
    try:
        snapshot = take_snapshot(
            recipe.code,
            recipe.directory,
            opened.home.snapshots,
            exclude=excluded,
            include=recipe.include,
        )
        notes += snapshot.notes
        materialise(snapshot.path, opened.home.code_directory(run))
        if submission is not None or moves:
            values = opened.secrets_of(recipe, environ)
            private = opened.replicas.prepare(run, recipe, snapshot.path, values, environ, has_rows=moves)
        if moves and private is None:
            raise UsageError(
                f"--on-cluster: {why_bound_by_data(recipe, snapshot.path)}",
                "Nothing was started. Leave out --on-cluster, or change that.",
            )
    except BaseException:
        with suppress(PublishError):
            give_up_claim(opened.home.store_url, owner)
        raise
    clusters = []
    if offer is not None:
        from trainmaster.cluster.record import new_record

        clusters = [new_record(run, plan, home_id, keep_s).as_row() for plan in offer.plans]
    new = AcceptedRun(
        id=run,
        name=recipe.name,
        # Its code was copied: whatever opened the repository is needed no more.
        recipe=recipe.model_copy(update={"code": redacted(recipe.code)}).model_dump_json(),
        recipe_path=str(recipe_path.absolute()),
        provider=recipe.provider,
        code_path=str(snapshot.path),
        store_url=opened.home.store_url,
        experiments=[(e.name, e.first_tasks(recipe.seed)) for e in recipe.experiments.values()],
        home=str(opened.home.root),
        home_id=home_id,
        clusters=clusters,
        notify=[subscription.events for subscription in recipe.notify],
        sinks=() if recipe.sinks is None else tuple(recipe.sinks.by_kind),
        submission=submission,
        can_move=private is not None,
        private=private or {},
        labels=labels,
        wallet=None if wallet is None else wallet.name,
    )
    may_cost, team = 0.0 if offer is None else offer.most_usd, (submission and submission.team) or OWNER
    if (moves or wallet) and may_cost and recipe.budget is not None and recipe.budget.total_usd is not None:
        may_cost = recipe.budget.total_usd  # it asks for no more later
    if may_cost and offer is not None:
        from trainmaster.service.renting.cheapest import least_usd
        from trainmaster.service.renting.kept_clusters import warm_clusters

        # With less it would end at once: its machines could not be given back in order.
        warm = warm_clusters(opened, offer.plans, opened.team)
        may_cost = max(may_cost, least_usd(recipe, offer.plans, warm=warm))
    try:
        admit = entrance(run, team, may_cost, application, now, wallet)
        if recipe.starts_from:
            from trainmaster.service.models.starting_models import using

            admit = using(opened, recipe, run, team, admit)
        admit = registering(endpoints, run, submission.team if submission else None, now, admit)
        lease = opened.database.create_run(new, now, admit, waits=submission is not None)
    except (StoreError, OverBudgetError, UsageError):
        with suppress(StoreError, PublishError):
            if not opened.database.has_run(run):  # as where another server has accepted the same request
                give_up_claim(opened.home.store_url, owner)
                shutil.rmtree(opened.home.run_directory(run), ignore_errors=True)
        raise
    if offer is not None:
        offer.note_down(opened.database, run, now)
    return Session(run, lease, recipe, opened.secrets_of(recipe, environ), notes)


def resume(
    opened: OpenHome,
    run: str,
    environ: Mapping[str, str],
    wallet: Wallet | None = None,
    total_usd: float | None = None,
) -> Session | None:
    """Resume a run without a driver that did not succeed; see `Service.resume`."""
    row = opened.database.run_row(run)
    if row["away"] is not None:
        from trainmaster.service.on_cluster.away import AwayRuns

        AwayRuns(opened, environ).take_back(run)
        if (row := opened.database.run_row(run))["away"] is not None:
            if total_usd is not None:
                raise _not_over(run)
            return None
    if row["team"] != opened.team:
        return resume(opened.of_team(row["team"]), run, environ, wallet, total_usd)
    if row["reason"] == EndReason.SUCCEEDED:
        return None
    from trainmaster.service.models.unpublished_models import save_kept

    # Of one that is elsewhere and was left, nothing is here until it is taken over.
    home = opened.own_home_for(row) if opened.replicas.is_elsewhere(row) else opened.home_of(run)
    if not is_driven(row, opened.database.clock_s()) and save_kept(
        opened.database, lambda _: home, run
    ):  # not to be trained once more
        row = opened.database.run_row(run)
        if row["reason"] == EndReason.SUCCEEDED:
            return None
    if not is_driven(row, opened.database.clock_s()):
        try:
            check_still_there(row["store_url"], run)
        except LostStoreError as lost:
            raise UsageError(lost.args[0], lost.hint) from None
        except PublishError:  # a store that does not answer just now is waited for
            pass
    recipe = opened.replicas.recipe(row)
    if total_usd is not None:
        if row["state"] != State.DONE:
            raise _not_over(run)
        recipe = with_total(recipe, total_usd)
    least = _least_usd(opened, run, recipe) if row["state"] == State.DONE else 0.0
    environ = opened.replicas.with_secrets(row, environ)
    try:
        notes = opened.check(recipe, environ)
    except UsageError as error:
        if row["state"] == State.DONE and opened.replicas.is_forgotten(row):
            hint = f"{error.hint} The values that {run} was started with are not kept any more.".strip()
            raise UsageError(error.args[0], hint) from error
        raise
    if not capabilities_of(recipe.provider).is_here and not is_driven(row, opened.database.clock_s()):
        from trainmaster.service.driving.provider_connection import check_provider

        for place in named_places(recipe):
            check_provider(place, opened.place(place, environ, home))
    if waits_for_turn(opened.database, run):
        raise UsageError(f"{run} waits for its turn", "`trainmaster queue` shows its place.")
    lease = _acquire(opened, run, environ)
    until = time.monotonic() + _GIVEN_BACK_S
    # Of one that has just ended the driver gives back what it held, and then the lease.
    while lease is None and opened.database.run_row(run)["state"] == State.DONE:
        if time.monotonic() > until:
            raise UsageError(
                f"{run} has ended, and its driver still gives back what it held", "Try again in a minute."
            )
        time.sleep(_POLL_S)
        lease = _acquire(opened, run, environ)
    if lease is not None and row["state"] == State.STOPPING:
        # Its driver was killed while it stopped: what is left of it ends first, then all begins again.
        opened.database.want_stop(run, EndReason.CANCELLED)
        session = Session(run, lease, recipe, opened.secrets_of(recipe, environ), [])
        Driving(opened, session, environ).run()
        lease = _acquire(opened, run, environ)
    if lease is None:
        if total_usd is not None:  # somebody else was quicker
            raise _not_over(run)
        return None
    with _released_on_error(opened, lease):
        if total_usd is not None and opened.database.run_row(run)["state"] != State.DONE:
            raise _not_over(run)  # another request of this process has it go on already
        requeue(opened.database, lease, row, recipe, wallet, total_usd, least)
        snapshot = opened.replicas.code(row)
        materialise(snapshot, opened.home_of(run).code_directory(run))
        if changed := changed_since(snapshot, recipe.code, recipe.directory):
            notes.append(_of_old_code(row, changed))
        return Session(run, lease, recipe, opened.secrets_of(recipe, environ), notes)


def _of_old_code(row: Mapping[Any, Any], changed: Sequence[str]) -> str:
    names = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
    return (
        f"{names}: changed since {row['id']} was started, which goes on with its own copy; "
        f"`trainmaster run {shlex.quote(row['recipe_path'])}` is a new run with what is there now"
    )


def take(opened: OpenHome, run: str, environ: Mapping[str, str]) -> Session | None:
    """Take over a run that was just accepted; see `Service.take`."""
    if opened.database.run_row(run)["state"] == State.DONE or waits_for_turn(opened.database, run):
        return None  # it was cancelled before we came to it, or its turn has not come
    lease = _acquire(opened, run, environ)
    if lease is None:
        return None
    with _released_on_error(opened, lease):
        row = opened.database.run_row(run)
        recipe, before = opened.replicas.recipe(row), opened.replicas.kept_secrets(row, environ)
        values = opened.of_team(row["team"]).secrets_of(recipe, {**before, **environ}, before)
        return Session(run, lease, recipe, values)


def cancel(opened: OpenHome, run: str, environ: Mapping[str, str]) -> None:
    """End a run; see `Service.cancel`."""
    row = opened.database.run_row(run)
    if row["away"] is not None:
        from trainmaster.service.on_cluster.away import AwayRuns

        if AwayRuns(opened, environ).cancel(run):
            return
        row = opened.database.run_row(run)
    if row["state"] == State.DONE:
        return
    opened.database.want_stop(run, EndReason.CANCELLED)
    if opened.is_driven(run):
        return
    lease = _acquire(opened, run, environ)
    if lease is not None:
        recipe = opened.replicas.recipe(opened.database.run_row(run))
        Driving(opened, Session(run, lease, recipe), environ).run()  # nothing starts any more, so no secrets


def cancel_tasks(
    opened: OpenHome, run: str, names: Sequence[str], by: str, environ: Mapping[str, str]
) -> list[dict[str, Any]]:
    """End tasks of a run; see `Service.cancel_tasks`."""
    away = None
    if opened.database.run_row(run)["away"] is not None:
        from trainmaster.service.on_cluster.away import AwayRuns

        away = AwayRuns(opened, environ)
        away.look(run)
    found = run_facts.cancel_tasks(opened.database, run, names, by)
    if away is not None:
        away.cancel_tasks(run)
    return found


def answer(opened: OpenHome, run: str, experiment: str, said: Approval, environ: Mapping[str, str]) -> None:
    """What a person says of an experiment that waits for that; see `Service.answer`."""
    if opened.database.run_row(run)["away"] is not None:
        from trainmaster.service.on_cluster.away import AwayRuns

        if AwayRuns(opened, environ).answer(run, experiment, said):
            return
    run_facts.answer(opened.database, run, experiment, said)


def requeue(
    database: Database,
    lease: Lease,
    row: Mapping[Any, Any],
    recipe: Recipe,
    wallet: Wallet | None = None,
    total_usd: float | None = None,
    least_usd: float = 0.0,
) -> None:
    """Have all of a run wait again that did not succeed, if what that may cost fits.

    Args:
        database: of the home.
        lease: of the run.
        row: of the run, as it was.
        recipe: of the run.
        wallet: of who asks for it.
        total_usd: its ``budget.total`` is that from now on.
        least_usd: in all, with less of which it would end at once.

    Raises:
        OverBudgetError: it does not fit in the month's budget of the team, or the wallet.
        UsageError: there is a budget, and what it may cost is unknown.
    """
    quote, now = quote_summary(database, lease.run), database.clock_s()
    # Of a run from a wallet all of its cap is set aside.
    most = most_usd(None if quote is None or row["wallet"] else quote["cost_usd"]["p95"], recipe)
    most = None if most is None else max(most, least_usd)
    most = most if any(capabilities_of(each).costs for each in named_places(recipe)) else 0.0
    admit = entrance(lease.run, row["team"] or OWNER, most, None, now, wallet)

    def change(connection: Connection) -> None:
        changed = with_total(stored_recipe(row), total_usd or 0.0).model_dump_json()
        said = f"its budget.total is {dollars(total_usd or 0.0)} from now on"
        move_run(connection, lease.run, row["provider"], changed, now, said)
        admit(connection)

    database.requeue(lease, now, admit if total_usd is None else change)


def _not_over(run: str) -> UsageError:
    return UsageError(
        f"{run} is not over: its budget.total stays until then",
        f"End it with `trainmaster cancel {run}` first; it goes on from its newest checkpoints.",
    )


def _least_usd(opened: OpenHome, run: str, recipe: Recipe) -> float:
    """What a run that is over needs in all, with what it has cost: with less, going on would end at once.

    Raises:
        UsageError: its ``budget.total`` is less; naming the least that would do.
    """
    database = opened.database
    if not (clusters := database.clusters_of(run)):
        return 0.0
    from trainmaster.cluster.record import ClusterRecord, resumed
    from trainmaster.service.renting.cheapest import check_total, least_usd
    from trainmaster.service.renting.kept_clusters import warm_clusters

    records = [ClusterRecord.of_row(each) for each in clusters]
    # What only has its gate asked again needs no machines.
    done = Counter[str]()
    for each in database.tallies(run):
        done[each["experiment"]] += each["tasks"] if each["reason"] in FINISHED else 0
    rows = database.experiment_rows(run)
    left = {e["name"] for e in rows if e["reason"] not in FINISHED and done[e["name"]] < e["tasks_total"]}
    plans, now = [each.plan for each in resumed(records)], time.time()
    spent_usd = sum(each.most_usd(now, now) for each in records)
    known_usd = sum(each.spent_usd(now) for each in records)
    warm = warm_clusters(opened, plans, opened.team)
    check_total(recipe, plans, run, spent_usd, known_usd, left, lambda: warm)
    least = least_usd(recipe, plans, left, warm)
    return spent_usd + least if least else 0.0


def _acquire(opened: OpenHome, run: str, environ: Mapping[str, str]) -> Lease | None:
    """Take the lease of a run, and bring the run here if it can move; None if somebody else drives it.

    Raises:
        UsageError: it stays in a home that cannot be read from here.
    """
    row, worked_until = opened.database.run_row(run), None
    if not row["can_move"]:
        home = opened.home_of(run)
        if row["state"] in (State.RUNNING, State.STOPPING) and capabilities_of(row["provider"]).is_here:
            from trainmaster.executors.supervisor import journal  # its last driver may have been killed

            here, now = time.time(), opened.database.clock_s()
            if (until := journal.worked_until(str(home.root.resolve()), run, here)) is not None:
                worked_until = until + now - here
    lease = opened.database.acquire(run, worked_until=worked_until)
    if lease is not None:
        with _released_on_error(opened, lease):
            opened.replicas.take_over(lease, environ)
    return lease


@contextmanager
def _released_on_error(opened: OpenHome, lease: Lease) -> Iterator[None]:
    """What cannot be driven is not held: this process may live on, and its leases with it."""
    try:
        yield
    except BaseException:
        with suppress(StoreError):
            opened.database.release(lease)
        raise
