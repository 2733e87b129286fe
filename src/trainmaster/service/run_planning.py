"""`RunPlanner`: what a run would be and cost, before anybody has agreed to it; and quotes on their own.

`awake_note`: whether to tell the user that this machine has to stay awake for a run, and for how long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.db.ledger import ALL
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError
from trainmaster.spec.processes import kernel_text
from trainmaster.spec.recipe_parts import named_places, parts_by_place, with_total
from trainmaster.spec.units import dollars, format_duration

if TYPE_CHECKING:
    from trainmaster.advisor.quote.quote import Quote
    from trainmaster.control.measure.profile_progress import ProfileProgress
    from trainmaster.db import Database
    from trainmaster.service.places.table import PlaceTable
    from trainmaster.service.quotes.candidate_offers import CandidateOffers
    from trainmaster.service.quotes.quote_options import QuoteOptions
    from trainmaster.service.quotes.quote_service import Quoter
    from trainmaster.service.renting.offer import RentalOffer
    from trainmaster.service.service import Service
    from trainmaster.service.teams.team_budget import TeamBudget
    from trainmaster.service.teams.wallet import WalletBalance
    from trainmaster.service.users.caller import Wallet

#: A machine that may be closed or fall asleep is mentioned if it is needed for longer.
_SHORT_S: Final = 1800.0
#: And any machine: it may be switched off for the night, or its terminal be closed.
_LONG_S: Final = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class SuspendRisk:
    """What makes this machine suspend itself.

    Attributes:
        has_battery: of its own; that of a mouse does not count.
        has_lid: that can be closed.
        has_desktop: somebody sits before it, and the desktop suspends it when they do not.
        is_kept_awake: its administrator has switched suspending off.
    """

    has_battery: bool = False
    has_lid: bool = False
    has_desktop: bool = False
    is_kept_awake: bool = False

    @classmethod
    def of_this_machine(cls, environ: Mapping[str, str], root: Path = Path("/")) -> SuspendRisk:
        """As its kernel and systemd show it.

        Args:
            environ: of the user's session.
            root: where ``sys``, ``proc`` and ``etc`` are (tests make their own).
        """
        supplies = sorted((root / "sys/class/power_supply").glob("*"))
        mask = root / "etc/systemd/system/sleep.target"
        return cls(
            has_battery=any(
                kernel_text(each / "type") == "Battery" and kernel_text(each / "scope") != "Device"
                for each in supplies
            ),
            has_lid=any((root / "proc/acpi/button/lid").glob("*/state")),
            has_desktop=environ.get("XDG_SESSION_TYPE", "") in ("x11", "wayland"),
            is_kept_awake=mask.is_symlink() and mask.readlink() == Path("/dev/null"),
        )

    @property
    def may_sleep(self) -> bool:
        """Whether it is to be expected that it suspends itself when it is left alone."""
        return not self.is_kept_awake and (self.has_battery or self.has_lid or self.has_desktop)


def awake_note(time_s: float | None, risk: SuspendRisk, lease_s: float, now: datetime) -> str:
    """What to tell before machines are rented; empty if this machine will see the end of the run anyway.

    Args:
        time_s: that the run takes at most, most likely; None if unknown.
        risk: of this machine.
        lease_s: after which abandoned machines end themselves.
        now: local time.
    """
    if time_s is None:
        if not risk.may_sleep:
            return ""
        long = "until the run is over"
    else:
        if time_s < (_SHORT_S if risk.may_sleep else _LONG_S):
            return ""
        long = f"for up to {format_duration(time_s)} ({_until(now, time_s)})"
    return (
        f"this machine must stay awake and connected {long}: if it sleeps, the machines end themselves "
        f"{format_duration(lease_s)} later and the run waits until it wakes (after a restart: `trainmaster "
        "resume`); better run it on a machine that stays on (ssh, tmux)"
    )


def _until(now: datetime, time_s: float) -> str:
    end = now + timedelta(seconds=time_s)
    days = (end.date() - now.date()).days
    day = "" if not days else " tomorrow" if days == 1 else f" on {end.date().isoformat()}"
    return f"until {end:%H:%M}{day}"


@dataclass(frozen=True)
class PlannedRun:
    """A run that may be started as soon as its costs are agreed to.

    Attributes:
        recipe: with every number of workers settled.
        offer: its machines; None on this machine.
    """

    recipe: Recipe
    offer: RentalOffer | None = None


class RunPlanner:
    """Plans runs and quotes recipes; a measurement under way can be interrupted.

    Args:
        service: of the home.
        environ: of the caller.
        tell: takes lines for the user, and the quote of what was measured first.
        show: takes how far a measurement is.
        measures: False: what is not known of a job is not measured on this machine.

    Attributes:
        measures: the same.
    """

    def __init__(
        self,
        service: Service,
        environ: Mapping[str, str],
        tell: Callable[[Any], None],
        show: Callable[[ProfileProgress], None],
        *,
        measures: bool = True,
    ) -> None:
        self.measures = measures
        self._service = service
        self._environ = environ
        self._tell = tell
        self._show = show
        self._quoter: Quoter | None = None
        self._has_measured = False

    def interrupt(self) -> bool:
        """Ctrl-C: False if nothing is measured now. Signal-safe."""
        return self._quoter is not None and self._quoter.interrupt()

    def quote(self, recipe: Recipe, options: QuoteOptions) -> Quote:
        """Quote a recipe; see `Quoter.quote`."""
        from trainmaster.service.places.table import PlaceTable

        recipe = self._with_versions(recipe)  # they are of the fingerprint that the table's quotes look for
        seen = PlaceTable(self._service, recipe, self._environ, options)
        self._has_measured, tell = False, _once(self._tell)
        settled = self._settled(recipe, seen, tell)
        made = self._quote_settled(settled, options, seen, tell)
        made = self._settled_again(recipe, settled, made, options, tell)
        return replace(made, notes=(*made.notes, *self._beyond_month(recipe, made)))

    def _beyond_month(self, recipe: Recipe, made: Quote) -> Iterator[str]:
        """That a run of this quote would be refused now, as it does not fit in a month's budget."""
        from trainmaster.service.quotes.quote_record import most_usd
        from trainmaster.service.teams.team_budget import OWNER, Budgets, OverBudgetError

        p95_usd = made.cost_usd.p95 if made.cost_usd is not None else None
        most, database = most_usd(p95_usd, recipe), self._service.database
        if not most:
            return
        found = Budgets(database.read, database.clock_s())
        for budget in (found[self._service.team or OWNER], found[ALL]):
            try:
                budget.admit(most)
            except OverBudgetError as short:
                yield f"it does not fit now: {short.args[0]}"

    def _settled_again(
        self,
        recipe: Recipe,
        settled: Recipe,
        made: Quote,
        options: QuoteOptions,
        tell: Callable[[str], None],
    ) -> Quote:
        """The quote in the places that a run takes now, which were settled before its job was measured."""
        from trainmaster.service.places.place import spreads_over_places
        from trainmaster.service.places.table import PlaceTable

        spreads = any(spreads_over_places(recipe, each) for each in recipe.experiments.values())
        if not self._has_measured or (len(parts_by_place(settled)) < 2 and not spreads):
            return made
        seen = PlaceTable(self._service, recipe, self._environ, options)
        again = self._settled(recipe, seen, tell)
        if (again.provider, again.experiments) == (settled.provider, settled.experiments):
            return made
        known = replace(options, measures=False, fresh=False)
        found = self._quote_settled(again, known, seen, tell)
        whys = {name: made.not_quoted.get(name, why) for name, why in found.not_quoted.items()}
        return replace(found, not_quoted=whys)  # why it could not be measured

    def _quote_settled(
        self,
        settled: Recipe,
        options: QuoteOptions,
        seen: PlaceTable,
        tell: Callable[[str], None],
    ) -> Quote:
        """Of all of it, wherever that is."""
        if len(parts_by_place(settled)) < 2:
            return seen.quote_of(settled, lambda one: self._quote_one(one, options, tell))
        from trainmaster.service.places.quote import quote_in_places

        def quote(one: Recipe, how: QuoteOptions) -> Quote:
            return self._quote_one(one, how, tell)

        return quote_in_places(settled, seen, quote=quote, options=options)

    def _quote_one(self, recipe: Recipe, options: QuoteOptions, tell: Callable[[str], None]) -> Quote:
        """Of what is in one place."""
        quoter = self._make_quoter(tell=tell)
        if options.catalogue is None:
            quoter.refresh_prices(recipe, self._environ)
        made = quoter.quote(recipe, self._environ, options)
        self._has_measured |= quoter.has_measured
        return made

    def measured_first(self, recipe: Recipe) -> Quote:
        """Measure and quote a recipe that is to be run, whatever is known of it.

        Raises:
            UsageError: nothing is measured here.
        """
        if not self.measures:
            raise UsageError(
                "measure_first: the code of others is not measured on this server", "Leave it out."
            )
        from trainmaster.service.places.table import PlaceTable
        from trainmaster.service.quotes.quote_options import QuoteOptions

        recipe, tell, options = self._with_versions(recipe), _once(self._tell), QuoteOptions(fresh=True)
        settled = self._settled(recipe, tell=tell)
        self._service.check(settled, self._environ)  # what is wrong anyway is said before it is measured
        self._has_measured = False
        if len(parts_by_place(settled)) > 1:
            unasked = PlaceTable(self._service, settled, self._environ)
            made = self._quote_settled(settled, options, unasked, tell)
        else:
            quoter = self._make_quoter(tell=tell)
            made = quoter.quote(settled, self._environ, options)
            self._has_measured = quoter.has_measured
        return self._settled_again(recipe, settled, made, options, tell)

    def plan(
        self,
        recipe: Recipe,
        *,
        allow_stale: bool,
        can_agree: bool,
        measure_first: bool = False,
        keep_s: float = 0.0,
    ) -> PlannedRun:
        """What a run would be; see `ClientProtocol.plan_run`. What is measured first is told."""
        if measure_first:
            self._tell(self.measured_first(recipe))
        recipe = self._settled(self._with_versions(recipe))
        check_services_and_sinks(self._service, recipe, self._environ)
        places = sorted({part.provider for part in parts_by_place(recipe)})
        if keep_s and not any(capabilities_of(place).rents for place in places):
            self._tell(f"note: nothing is kept warm afterwards: {' and '.join(places)} rents nothing")
        if not capabilities_of(recipe.provider).is_here:
            return self._plan_rental(recipe, allow_stale, can_agree, keep_s)
        for note in self._service.check_inputs(recipe, self._environ):
            self._tell(f"note: {note}")
        if any(e.distributed and e.distributed.is_flexible for e in recipe.experiments.values()):
            recipe = self._make_quoter().settle(recipe, self._environ)
        return PlannedRun(recipe)

    def _with_versions(self, recipe: Recipe) -> Recipe:
        """With the versions of what it starts from."""
        if not recipe.starts_from:
            return recipe
        from trainmaster.service.models.starting_models import with_versions

        return with_versions(self._service, recipe)

    def _settled(
        self, recipe: Recipe, seen: PlaceTable | None = None, tell: Callable[[str], None] | None = None
    ) -> Recipe:
        """With one provider; see `settled_place`."""
        if len(named_places(recipe)) < 2:
            return recipe
        from trainmaster.service.places.settling import settled_place

        return settled_place(self._service, recipe, self._environ, tell or self._tell, seen)

    def _plan_rental(self, recipe: Recipe, allow_stale: bool, can_agree: bool, keep_s: float) -> PlannedRun:
        from trainmaster.control.checks.preflight import check_parts
        from trainmaster.service.driving.provider_connection import check_provider, preconnect

        for part in parts_by_place(recipe):  # what follows takes a second to import
            preconnect(self._service, part.provider, self._environ)

        from trainmaster.service.quotes.prices import Prices
        from trainmaster.service.quotes.worker_counts import with_fewest
        from trainmaster.service.renting.plan_run import plan_run

        probe = with_fewest(recipe)
        check_parts(probe)
        for note in self._service.check_inputs(probe, self._environ):
            self._tell(f"note: {note}")
        for part in parts_by_place(recipe):
            place = self._service.place(part.provider, self._environ)
            check_provider(part.provider, place, dials=False)
            Prices.of(self._service, self._environ).keep_fresh(part, self._tell)

        offer = plan_run(
            self._service, recipe, self._environ, self._make_quoter,
            allow_stale=allow_stale, can_agree=can_agree, keep_s=keep_s,
        )  # fmt: skip
        return PlannedRun(offer.recipe, offer)

    def _make_quoter(
        self, candidate_offers: CandidateOffers | None = None, tell: Callable[[str], None] | None = None
    ) -> Quoter:
        from trainmaster.service.quotes.quote_service import Quoter

        tell = tell or self._tell
        self._quoter = Quoter(self._service, tell, self._show, candidate_offers, measures=self.measures)
        return self._quoter


def _once(tell: Callable[[str], None]) -> Callable[[str], None]:
    """Takes lines; each that was told is not told again."""
    told = set[str]()

    def tell_once(line: str) -> None:
        if line not in told:
            tell(line)
        told.add(line)

    return tell_once


def check_services_and_sinks(service: Service, recipe: Recipe, environ: Mapping[str, str]) -> None:
    """Refuse services whose models are not there or cannot be served, and sinks that can never work.

    Raises:
        UsageError: naming the key at fault.
    """
    if any(each.serve is not None for each in recipe.experiments.values()):
        from trainmaster.service.endpoints.service_surroundings import new_endpoints

        new_endpoints(service, recipe)
    if recipe.sinks is not None:
        from trainmaster.service.sinks.feeding import check_sinks

        check_sinks(service, recipe, environ)


def capped(recipe: Recipe, max_usd: float) -> Recipe:
    """The recipe with at most so much as its ``budget.total``."""
    found, had_usd = with_total(recipe, max_usd), recipe.budget.total_usd if recipe.budget else None
    return found if had_usd is None or max_usd < had_usd else with_total(recipe, had_usd)


def capped_by_month(offer: RentalOffer, budgets: Sequence[TeamBudget], tell: Callable[[str], None]) -> Recipe:
    """The recipe of an offer, with a cap if a month's budget needs one: what was reserved must suffice.

    Args:
        offer: what is to be rented.
        budgets: that it draws on.
        tell: takes a note.

    Returns:
        With ``budget.total``; without where its cost is unknown, which no such budget admits.
    """
    recipe, months = offer.recipe, [each.monthly_usd for each in budgets if each.monthly_usd is not None]
    total_usd = recipe.budget.total_usd if recipe.budget is not None else None
    given_usd = offer.cap_usd if total_usd is None else total_usd
    if not months or not offer.costs or given_usd is None:
        return recipe
    cap_usd = min(given_usd, *months)
    if cap_usd != total_usd:
        lower = "budget.total, or max_usd, sets a lower one"
        tell(f"its cap is {dollars(cap_usd)}, as there is a budget for the month; {lower}")
    return capped(recipe, cap_usd)


def capped_by_wallet(offer: RentalOffer, balance: WalletBalance) -> Recipe:
    """The recipe of an offer with a cap, ``budget.total``, that what is left of a wallet pays for.

    Raises:
        OverBudgetError: its budget, or the upper end of its quote, is more than is left.
        UsageError: it has neither.
    """
    from trainmaster.service.teams.wallet import known_cost

    recipe = offer.recipe
    if not offer.costs:
        return recipe
    total_usd = recipe.budget.total_usd if recipe.budget is not None else None
    balance.check(known_cost(balance.wallet, offer.most_usd if total_usd is None else total_usd))
    cap_usd = known_cost(balance.wallet, offer.cap_usd if total_usd is None else total_usd)
    return capped(recipe, min(cap_usd, balance.left_usd))


def capped_as_paid(
    offer: RentalOffer,
    budgets: Sequence[TeamBudget],
    wallet: Wallet | None,
    database: Database,
    tell: Callable[[str], None],
) -> Recipe:
    """The recipe of an offer, as its month's budgets and a wallet cap it; see those."""
    recipe = capped_by_month(offer, budgets, tell)
    if wallet is None:
        return recipe
    from trainmaster.service.teams.wallet import balance_of

    return capped_by_wallet(replace(offer, recipe=recipe), balance_of(wallet, database.read))


def awake_notes(offer: RentalOffer, environ: Mapping[str, str]) -> list[str]:
    """Whether this machine must stay awake for a run; machines of one's own do not end themselves."""
    if not offer.costs:
        return []
    from trainmaster.service.driving.run_clusters import node_lease_s

    expected = offer.quote.time_s if offer.quote is not None else None
    risk, now = SuspendRisk.of_this_machine(environ), datetime.now().astimezone()
    note = awake_note(expected.p95 if expected else None, risk, node_lease_s(environ), now)
    return [note] if note else []
