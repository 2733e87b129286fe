"""`moved`: a run goes on in the next of its places, where the present one has no machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from trainmaster.cluster.record import ClusterRecord, cluster_id, elsewhere, new_record
from trainmaster.cluster.renting.plan import dearest_usd_per_hour, most_at_once
from trainmaster.cluster.renting.plan_clusters import pinned
from trainmaster.control.task.gangs import sized_recipe
from trainmaster.db.run_facts import facts_of
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.models.unpublished_models import renewed
from trainmaster.service.places.next_place import next_place
from trainmaster.service.renting.cheapest import plans_of
from trainmaster.service.teams.admission import entrance
from trainmaster.service.teams.team_budget import OWNER
from trainmaster.spec.errors import LeaseLostError, TrainmasterError, one_line
from trainmaster.spec.facts import RunFacts
from trainmaster.spec.redaction import redacted

if TYPE_CHECKING:
    from trainmaster.control.loop.controller import Controller
    from trainmaster.service.driving.execution_backend import ExecutionBackend, Session
    from trainmaster.service.open_home import OpenHome
    from trainmaster.spec import Recipe


def moved(
    opened: OpenHome,
    session: Session,
    backend: ExecutionBackend,
    controller: Controller,
    environ: Mapping[str, str],
    why: str,
    tell: Callable[[str], None],
) -> Session | None:
    """Have a run that waits for machines in the next place that has some; what was asked for is given back.

    After a kill at any line the run waits where it was, or goes on where it is to be: one transaction.

    Args:
        opened: the home.
        session: of the run, whose lease is held.
        backend: where it is; none of its machines works.
        controller: that has let go of it.
        environ: of the caller: settings and credentials.
        why: there are no machines.
        tell: shows lines to the user.

    Returns:
        With what it goes on; None where no other place would do now.

    Raises:
        LeaseLostError: somebody else drives the run.
    """
    database, before = opened.database, session.recipe.provider
    row = database.run_row(session.run)
    home = opened.of_team(row["team"])
    tell(f"{before} has no machines: {why}")
    facts = RunFacts(facts_of(database, session.run))
    attempts = {task.experiment: task.attempt for task in controller.run_state.live_tasks()}
    present = sized_recipe(session.recipe, facts, attempts)
    try:
        with renewed(database, session.lease):
            recipe = next_place(home, present, environ, why, tell, has_wallet=bool(row["wallet"]))
            if recipe is None:
                tell(f"no other place would begin in time now; it goes on waiting at {before}")
                return None
            costs = capabilities_of(recipe.provider).costs
            plans = () if capabilities_of(recipe.provider).is_here else plans_of(home, recipe, environ)
            database.renew(session.lease, database.clock_s())  # else they are another driver's
            backend.finish(controller)
            records = {each["id"]: ClusterRecord.of_row(each) for each in database.clusters_of(session.run)}
            if any(record.live for record in records.values()):
                tell(f"{before} has not taken all machines back yet; it is tried again")
                return None
            recipe = _with_sizes_of(session.recipe, pinned(recipe, plans))
            code = redacted(recipe.code)  # it was copied: whatever opened the repository is needed no more
            keep_s = max((record.keep_s for record in records.values()), default=0.0)
            clusters = [
                elsewhere(records[id], plan)
                if id in records
                else new_record(session.run, plan, row["home_id"], keep_s)
                for plan in plans
                if (id := cluster_id(session.run, plan))
            ]
            most = recipe.budget.total_usd if costs and recipe.budget is not None else 0.0
            dearest = {plan.name: dearest_usd_per_hour(plan) for plan in plans}
            usd_per_hour, now = most_at_once(recipe, dearest, plans), database.clock_s()
            database.move_run(
                session.lease,
                recipe.provider,
                recipe.model_copy(update={"code": code}).model_dump_json(),
                [record.as_row() for record in clusters],
                now,
                f"it goes on at {recipe.provider}, as {before} has no machines: {why}",
                entrance(session.run, row["team"] or OWNER, most, None, now, usd_per_hour=usd_per_hour),
            )
    except LeaseLostError:
        raise
    except TrainmasterError as error:
        tell(f"note: {one_line(error)}")
        return None
    tell(f"it goes on at {recipe.provider}")
    return replace(session, recipe=recipe)


def _with_sizes_of(recipe: Recipe, placed: Recipe) -> Recipe:
    """Gangs have the sizes of the recipe again: the present ones are in the facts of the run."""
    experiments = dict(placed.experiments)
    for name, each in recipe.experiments.items():
        shape, there = each.distributed, experiments[name]
        if shape is not None and there.distributed is not None:
            sizes = {key: getattr(shape, key) for key in ("workers", "parameter_servers", "span")}
            sized = there.distributed.model_copy(update=sizes)
            experiments[name] = there.model_copy(update={"distributed": sized})
    return placed.model_copy(update={"experiments": experiments})
