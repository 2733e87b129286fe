"""`rent_by_consent`: the machines of a run, once whoever pays has agreed to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trainmaster.control.preflight import check_parts
from trainmaster.service.candidate_offers import CandidateOffers
from trainmaster.service.interrupts import interruptible
from trainmaster.service.prices import Prices
from trainmaster.service.quoting import Quoter
from trainmaster.service.renting import RentalOffer, check_with_provider, plan_run
from trainmaster.service.run_clusters import check_provider
from trainmaster.service.worker_counts import with_fewest

if TYPE_CHECKING:
    from trainmaster.control.profile_attempt import ProfileProgress
    from trainmaster.service.service import Service
    from trainmaster.spec import Recipe


class Consent(Protocol):
    """Who pays. Offers that cost nothing are shown too: hosts of one's own."""

    def look(self, cheapest: RentalOffer) -> None:
        """See the cheapest that could do it before anything is measured for minutes.

        Raises:
            UsageError: it costs, and nobody is there who could agree.
        """

    def decide(self, offer: RentalOffer) -> None:
        """See what is to be rented; returning agrees.

        Raises:
            UsageError: whoever pays does not want it.
        """


def rent_by_consent(
    service: Service,
    recipe: Recipe,
    path: Path,
    environ: Mapping[str, str],
    consent: Consent,
    tell: Callable[[str], None],
    show: Callable[[ProfileProgress], None] | None = None,
    *,
    allow_stale: bool = False,
) -> RentalOffer:
    """Plan what a run would rent, and have it agreed to; nothing is rented yet.

    Args:
        service: of the home.
        recipe: as read, of any provider but ``local``.
        path: where.
        environ: of the caller.
        consent: who pays.
        tell: takes notes for the user.
        show: takes how far a measurement is.
        allow_stale: old prices will do.

    Raises:
        UsageError: it cannot be rented, or is not wanted; nothing was started.
        ProviderError: nobody can say whether it can be rented.
    """
    probe = with_fewest(recipe)
    check_parts(probe)
    for note in service.check_inputs(probe, environ):
        tell(f"note: {note}")
    check_provider(service.home, recipe.provider, environ, dials=False)
    Prices.of(service.home, environ).keep_fresh(recipe, tell)
    with interruptible() as caught:

        def make_quoter(candidate_offers: CandidateOffers) -> Quoter:
            caught.quoter = Quoter(service, tell, show, candidate_offers)
            return caught.quoter

        offer = plan_run(
            service,
            recipe,
            path,
            environ,
            make_quoter,
            allow_stale=allow_stale,
            before_measuring=consent.look,
        )
    consent.decide(offer)
    for note in check_with_provider(service, offer.plans, environ):
        tell(f"note: {note}")
    return offer
