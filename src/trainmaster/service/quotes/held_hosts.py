"""`held_hosts`: what a quote says where other runs hold the hosts that it is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from trainmaster.advisor.quote.interval import Interval
from trainmaster.advisor.quote.quote import Quote, QuotedQueue
from trainmaster.cluster.record import readable
from trainmaster.providers import get_provider
from trainmaster.providers.base import NoCapacityError, NodeRequest, Queue
from trainmaster.service.places.place import first_line
from trainmaster.service.quotes.quote_record import QuoteRecord
from trainmaster.service.quotes.worker_counts import with_clusters
from trainmaster.spec.errors import TrainmasterError

if TYPE_CHECKING:
    from trainmaster.service.open_home import OpenHome
    from trainmaster.spec import Recipe


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
                    return QuotedQueue(time_s=_until(service, words, requests), holders=words)
    except TrainmasterError:  # what a run cannot have is told where it is planned
        return None
    return None


def _until(service: OpenHome, words: str, requests: Sequence[NodeRequest]) -> Interval | None:
    """When so many hosts are free, by the quotes of the runs of this home that hold them; None: not known."""
    database, needed = service.database, sum(each.needed for each in requests)
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
        needed -= machines
        if needed <= 0:
            return left_s
    return None
