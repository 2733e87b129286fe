"""From a recipe to machines that the user has agreed to pay for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from trainmaster.cli.asking import ask_consent, can_consent, require_consent_possible, show_offer
from trainmaster.cli.measuring import Measuring
from trainmaster.cli.output import say
from trainmaster.cli.quote import wide_line
from trainmaster.service import Service
from trainmaster.service.awake import Sleepiness, awake_note
from trainmaster.service.consent import rent_by_consent
from trainmaster.service.renting import RentalOffer
from trainmaster.service.run_clusters import node_lease_s
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError


def agree(service: Service, recipe: Recipe, path: Path, *, yes: bool, allow_stale: bool) -> RentalOffer:
    """Show what a run would rent and cost, and ask. Hosts of one's own cost nothing: nobody is asked.

    Args:
        service: of the home.
        recipe: as read.
        path: where.
        yes: the user has agreed before.
        allow_stale: old prices will do.

    Raises:
        UsageError: it cannot be rented, or the user does not want it; nothing was started.
        ProviderError: nobody can say whether it can be rented.
    """
    consent = _Terminal(service, recipe.provider, yes)
    show = Measuring().show
    return rent_by_consent(service, recipe, path, os.environ, consent, say, show, allow_stale=allow_stale)


@dataclass(frozen=True)
class _Terminal:
    """Asks on the terminal; see `Consent`."""

    service: Service
    provider: str
    yes: bool

    def look(self, cheapest: RentalOffer) -> None:
        """Whoever cannot be asked is not kept waiting for the measurement."""
        if cheapest.costs and not can_consent(yes=self.yes):
            show_offer(cheapest.lines, cheapest.notes)
            require_consent_possible(cheapest.most_usd_per_hour, yes=self.yes)

    def decide(self, offer: RentalOffer) -> None:
        """Show it, and ask."""
        line = self.service.score_line("estimate", self.provider)
        told = [line] if line and offer.quote else []
        if offer.quote is not None:
            told += [wide for one in offer.quote.experiments.values() if (wide := wide_line(one))]
        show_offer([*offer.lines, *told], [*offer.notes, *_awake(offer)])
        if offer.costs:
            require_consent_possible(offer.most_usd_per_hour, yes=self.yes)
            if not ask_consent(offer.most_usd_per_hour, yes=self.yes):
                raise UsageError("not rented: you did not agree", "Nothing was started.")


def _awake(offer: RentalOffer) -> list[str]:
    """Whether this machine must stay awake for it; machines of one's own do not end themselves."""
    if not offer.costs:
        return []
    expected = offer.quote.time_s if offer.quote is not None else None
    sleepiness = Sleepiness.of_this_machine(os.environ)
    now = datetime.now().astimezone()
    note = awake_note(expected.p95 if expected else None, sleepiness, node_lease_s(os.environ), now)
    return [note] if note else []
