"""`quoted_queue`: what a quote says of the queue of its provider, or of hosts that other runs hold."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from trainmaster.advisor.quote.interval import Interval
from trainmaster.advisor.quote.quote import Quote, QuotedQueue
from trainmaster.cluster.record import readable
from trainmaster.providers.base import NoCapacityError, NodeRequest, Queue, RanksJobs
from trainmaster.providers.capabilities import capabilities_of, measured_name
from trainmaster.service.places.place import first_line
from trainmaster.service.quotes.quote_record import QuoteRecord
from trainmaster.service.quotes.worker_counts import with_clusters
from trainmaster.spec.errors import ProviderError, TrainmasterError

if TYPE_CHECKING:
    from trainmaster.advisor.market.phases import ClusterWait
    from trainmaster.service.open_home import OpenHome
    from trainmaster.spec import Recipe


def quoted_queue(
    service: OpenHome,
    recipe: Recipe,
    quote: Quote,
    environ: Mapping[str, str],
    waited: Sequence[ClusterWait],
    hosts: Collection[object] | None,
) -> QuotedQueue | None:
    """How long its machines wait in a queue of their provider, or for held hosts; None: not at all.

    Args:
        service: the home.
        recipe: that is quoted.
        quote: which machines it would have.
        environ: of the caller.
        waited: how long earlier clusters have waited.
        hosts: of the user's own; None where machines are rented.
    """
    if hosts is not None:
        return held_hosts(service, recipe, quote, environ)
    if not capabilities_of(recipe.provider).queues:
        return None
    from trainmaster.providers import get_provider

    one = quote.main.cluster
    requests = [
        NodeRequest(role, rented.count, rented.instance, token=role)
        for role, rented in (("ps", one.server), ("worker", one.worker))
        if rented is not None
    ]
    provider = get_provider(recipe.provider, service.place(recipe.provider, environ))
    reckoned_s, ranks = None, ""
    if isinstance(provider, Queue):
        with suppress(ProviderError):  # it does not answer: what was seen is known
            reckoned_s = provider.queue_wait_s(requests)
            ranks = provider.rank_words(requests) if isinstance(provider, RanksJobs) else ""
    mine = {measured_name(recipe.provider, each.instance_type) for each in requests}
    seen = [each.queued_s for each in waited if each.offer in mine]
    return QuotedQueue.of(reckoned_s, seen, ranks)


def held_hosts(
    service: OpenHome, recipe: Recipe, quote: Quote, environ: Mapping[str, str]
) -> QuotedQueue | None:
    """How long its clusters wait for hosts that others hold; None where each has room, or none answers.

    Args:
        service: the home.
        recipe: that is quoted.
        quote: which machines it would have.
        environ: of the caller.
    """
    from trainmaster.providers import get_provider
    from trainmaster.service.renting.cheapest import plans_of
    from trainmaster.service.renting.provider_check import requests_of

    place = service.place(recipe.provider, environ)
    try:
        chosen = recipe if quote.is_unknown else with_clusters(recipe, quote)
        asked = [requests_of(plan) for plan in plans_of(service, chosen, environ)]
        with closing(get_provider(recipe.provider, place)) as provider:
            for requests in asked:
                assert isinstance(provider, Queue)
                try:
                    provider.queue_wait_s(requests)
                except NoCapacityError as error:
                    words = first_line(error)
                    lacking = error.lacking or sum(each.needed for each in requests)
                    return QuotedQueue(time_s=_until(service, words, lacking), holders=words)
    except TrainmasterError:  # what a run cannot have is told where it is planned
        return None
    return None


def _until(service: OpenHome, words: str, lacking: int) -> Interval | None:
    """When so many more hosts are free, by the quotes of this home's runs that hold them; None: not known."""
    database = service.database
    now, ends = database.clock_s(), list[tuple[Interval, int]]()
    living = database.living_clusters(None, service.home.identity(), moves=True)
    for row in living:
        if f"({row['id']})" not in words:
            continue
        record = next(iter(readable([row], lambda _: None)), None)
        told = database.quotes_of(row["run_id"])
        if record is None or not told:
            return None
        time_s = QuoteRecord.of_row(told[-1]).time_s
        took_s = now - database.run_row(row["run_id"])["created_at"]
        if time_s.p95 > took_s:
            left = (max(each - took_s, 0.0) for each in (time_s.p5, time_s.p50, time_s.p95))
            ends.append((Interval(*left), len(record.machines)))
    for left_s, machines in sorted(ends, key=lambda each: each[0].p50):
        lacking -= machines
        if lacking <= 0:
            return left_s
    return None
