"""`check_with_provider`: whether a provider would give the machines of a plan; what it would be sent."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from trainmaster.cluster.renting.plan import ClusterPlan
from trainmaster.providers import NodeRequest
from trainmaster.service.open_home import OpenHome
from trainmaster.service.quotes.worker_counts import with_fewest
from trainmaster.service.renting.cheapest import left_out_of_parts, plans_of
from trainmaster.service.renting.kept_clusters import warm_clusters, warm_note
from trainmaster.service.service import Service
from trainmaster.spec import Recipe


def planned_requests(
    service: Service, recipe: Recipe, environ: Mapping[str, str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Requests that renting the machines of a run would send, in order; notes. Nothing is sent or measured.

    For machines that an earlier run has kept warm nothing would be sent.

    Raises:
        UsageError: what it asks for is not there.
    """
    from trainmaster.providers import get_provider

    plans = plans_of(service, with_fewest(recipe), environ)
    warm = warm_clusters(service, plans, service.team)
    shown = []
    for plan in (plan for plan in plans if plan.name not in warm):
        with closing(get_provider(plan.provider, service.place(plan.provider, environ))) as provider:
            shown += provider.dry_run(plan.name, requests_of(plan))
    notes = (note for plan in plans for note in plan.notes)
    there = (warm_note(plan.experiments) for plan in plans if plan.name in warm)
    return shown, list(dict.fromkeys([*left_out_of_parts(recipe), *there, *notes]))


def check_with_provider(
    service: OpenHome, plans: tuple[ClusterPlan, ...], environ: Mapping[str, str], team: str | None = None
) -> list[str]:
    """Ask the provider whether it would give these machines: permissions, quotas, hosts that answer.

    Machines that an earlier run of the team has kept warm are there already, without a question.

    Returns:
        Notes for the user.

    Raises:
        UsageError: it would not; nothing was rented.
        ProviderError: it cannot be reached.
    """
    from trainmaster.providers import get_provider

    notes: list[str] = []
    warm = warm_clusters(service, plans, team)
    plans = tuple(plan for plan in plans if plan.name not in warm)
    for name in dict.fromkeys(plan.provider for plan in plans):
        mine = (plan for plan in plans if plan.provider == name)
        with closing(get_provider(name, service.place(name, environ))) as provider:
            notes += provider.preflight([request for plan in mine for request in requests_of(plan)])
    return notes


def requests_of(plan: ClusterPlan) -> list[NodeRequest]:
    """What is asked of the provider for a cluster, had in the best way."""
    requests = [role.request(role.rentals[0], f"{plan.name}-{role.role}") for role in plan.roles]
    return [
        replace(each, beside=tuple(other for other in requests if other is not each)) for each in requests
    ]
