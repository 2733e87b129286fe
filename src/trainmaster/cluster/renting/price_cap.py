"""What clusters cost per hour at most at the same time, and whether ``budget.per_hour`` allows it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trainmaster.advisor.market import hourly_cost
from trainmaster.cluster.renting.plan import ClusterPlan, RolePlan
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError

_NOTHING = 1e-9


def most_at_once(recipe: Recipe, usd_per_hour: Mapping[str, float], plans: Sequence[ClusterPlan]) -> float:
    """The most that clusters which may be there at the same time cost per hour.

    Two are never there together if every experiment of the one has to wait for every experiment of the other.

    Args:
        recipe: says what waits for what.
        usd_per_hour: of each cluster, by its name.
        plans: the clusters.
    """
    before = hourly_cost.ancestors({name: recipe.experiments[name].depends_on for name in recipe.order()})
    return hourly_cost.most_at_once(usd_per_hour, {plan.name: plan.experiments for plan in plans}, before)


def capped(recipe: Recipe, plans: Sequence[ClusterPlan]) -> tuple[ClusterPlan, ...]:
    """The same clusters without those ways to have machines that ``budget.per_hour`` does not allow.

    Raises:
        UsageError: it does not even allow the cheapest; names what would do.
    """
    cap = recipe.budget.usd_per_hour if recipe.budget else None
    if cap is None:
        return tuple(plans)
    needed = most_at_once(recipe, {plan.name: plan.usd_per_hour for plan in plans}, plans)
    if needed > cap + _NOTHING:
        least = hourly_cost.least_cap(needed)
        raise UsageError(
            f"budget.per_hour: ${cap:g}, but the machines cost ${least:g} per hour: "
            + "; ".join(words(plan) for plan in plans),
            f"Raise budget.per_hour to ${least:g}, or ask for fewer or smaller machines.",
        )
    # Several kinds may have to be had in a dearer way, and all together must stay below the cap.
    spare = (cap - needed) / sum(len(plan.roles) for plan in plans)

    def allowed(role: RolePlan) -> RolePlan:
        best = role.rentals[0].usd_per_hour
        kept = tuple(r for r in role.rentals if role.count * (r.usd_per_hour - best) <= spare + _NOTHING)
        return replace(role, rentals=kept)

    return tuple(replace(plan, roles=tuple(allowed(role) for role in plan.roles)) for plan in plans)


def dearest_usd_per_hour(plan: ClusterPlan) -> float:
    """Of a cluster whose machines had to be had in the dearest planned way, at its highest price."""
    return sum(
        role.count * max(rental.at_most.usd_per_hour for rental in role.rentals) for role in plan.roles
    )


def words(plan: ClusterPlan) -> str:
    """A cluster for people: ``2 x m4.xlarge (spot) + 1 x m4.large (ps)``."""
    parts = []
    for role in plan.roles:
        best = role.rentals[0]
        what = best.instance_type or ("host" if role.count == 1 else "hosts")
        kind = [
            word for word in ("spot" if best.spot else "", role.role if role.role != "worker" else "") if word
        ]
        times = f"{role.count} x " if best.is_rented else f"{role.count} "
        parts.append(f"{times}{what}" + (f" ({', '.join(kind)})" if kind else ""))
    return " + ".join(parts)
