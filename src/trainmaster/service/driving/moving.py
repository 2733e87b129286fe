"""`moved`: a run goes on in the next of its places, where the present one has no machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from trainmaster.spec.errors import TrainmasterError, one_line
from trainmaster.spec.redaction import redacted

if TYPE_CHECKING:
    from trainmaster.control.loop.controller import Controller
    from trainmaster.service.driving.worlds import Session, World
    from trainmaster.service.open_home import OpenHome


def moved(
    opened: OpenHome,
    session: Session,
    world: World,
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
        world: where it is; none of its machines works.
        controller: that has let go of it.
        environ: of the caller: settings and credentials.
        why: there are no machines.
        tell: shows lines to the user.

    Returns:
        With what it goes on; None where no other place would do now.
    """
    from trainmaster.cluster.record import ClusterRecord, cluster_id, elsewhere, new_record
    from trainmaster.cluster.renting.plan_clusters import pinned
    from trainmaster.providers.capabilities import capabilities_of
    from trainmaster.service.places import next_place
    from trainmaster.service.renting import plans_of
    from trainmaster.service.teams.admission import entrance
    from trainmaster.service.teams.team_budget import OWNER

    database, before = opened.database, session.recipe.provider
    row = database.run_row(session.run)
    home = opened.of_team(row["team"])
    tell(f"{before} has no machines: {why}")
    try:
        recipe = next_place(home, session.recipe, environ, why, tell, has_wallet=bool(row["wallet"]))
        if recipe is None:
            tell(f"no other place would begin in time now; it goes on waiting at {before}")
            return None
        costs = capabilities_of(recipe.provider).costs
        plans = () if capabilities_of(recipe.provider).is_here else plans_of(home, recipe, environ)
        world.finish(controller)
        records = {each["id"]: ClusterRecord.of_row(each) for each in database.clusters_of(session.run)}
        if any(record.live for record in records.values()):
            tell(f"{before} has not taken all machines back yet; it is tried again")
            return None
        recipe = pinned(recipe, plans)
        code = redacted(recipe.code)  # it was copied: whatever opened the repository is needed no more
        clusters = [
            elsewhere(records[id], plan) if id in records else new_record(session.run, plan, row["home_id"])
            for plan in plans
            if (id := cluster_id(session.run, plan))
        ]
        most = recipe.budget.total_usd if costs and recipe.budget is not None else 0.0
        now = database.clock_s()
        database.move_run(
            session.lease,
            recipe.provider,
            recipe.model_copy(update={"code": code}).model_dump_json(),
            [record.as_row() for record in clusters],
            now,
            f"it goes on at {recipe.provider}, as {before} has no machines: {why}",
            entrance(session.run, row["team"] or OWNER, most, None, now),
        )
    except TrainmasterError as error:
        tell(f"note: {one_line(error)}")
        return None
    tell(f"it goes on at {recipe.provider}")
    return replace(session, recipe=recipe)
