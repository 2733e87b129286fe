"""`CandidateOffers`: what the provider of a recipe has: offers, zones, hosts. Asks no other provider."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Final

from trainmaster.dataclass import dataclass, field
from trainmaster.providers import Catalogue
from trainmaster.providers.capabilities import HOST, OfferSource, capabilities_of, measured_name
from trainmaster.providers.offer import Extras, site_offer
from trainmaster.service.quotes.prices import CATALOGUE, Prices
from trainmaster.spec import Recipe
from trainmaster.spec.errors import TrainmasterError, UsageError

if TYPE_CHECKING:
    from trainmaster.advisor.market.memory_floor import Shares
    from trainmaster.advisor.model.measurement import Measurement
    from trainmaster.cluster.renting.offer_filter import AvailableOffers
    from trainmaster.control.task.layout import Home
    from trainmaster.providers.base import ProviderPlace
    from trainmaster.providers.host_ledger import HostLedger
    from trainmaster.providers.inventory import InventoryHost
    from trainmaster.service.open_home import OpenHome

#: The kernel and sshd of a lab's host do not fit into less, whatever the scale.
_LAB_MEMORY_BYTES: Final = 512 * 2**20
_ARCHES: Final = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "arm64", "arm64": "arm64"}


@dataclass(frozen=True)
class CandidateOffers:
    """What there is.

    Attributes:
        provider: whose.
        catalogue: its offers; for `hosts` one that stands for all of them.
        zones: by region, where they are known.
        hosts: of the inventory; None if it is another provider.
        shares: of the published sizes that machines really have; None: all.
        notes: for the user.
        extras: what is rented with every machine.
    """

    provider: str
    catalogue: Catalogue
    zones: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hosts: tuple[InventoryHost, ...] | None = None
    shares: Shares | None = None
    notes: tuple[str, ...] = ()
    extras: Extras = field(default_factory=Extras)

    @property
    def costs(self) -> bool:
        """Whether its machines are billed."""
        return capabilities_of(self.provider).costs

    def available(self, arch: str) -> AvailableOffers:
        """The same for `plan_clusters`.

        Args:
            arch: processors that the code is known to run on; empty is any.
        """
        from trainmaster.cluster.renting.offer_filter import AvailableOffers

        offers = self.catalogue.offers if self.hosts is None else ()
        return AvailableOffers(
            self.provider,
            offers,
            self.zones,
            self.hosts,
            arch,
            self.catalogue.name,
            self.extras,
            self.shares,
        )

    def fresh(self, today: date) -> CandidateOffers:
        """Without offers whose price is too old to rent by."""
        if self.catalogue.by_hand:
            return self
        old = {offer.key for offer in self.catalogue.stale(today)}
        kept = [offer for offer in self.catalogue if offer.key not in old]
        return replace(self, catalogue=self.catalogue.with_offers(kept)) if old else self


def candidate_offers_of(
    recipe: Recipe, service: OpenHome, environ: Mapping[str, str], today: date
) -> CandidateOffers:
    """What the recipe's provider has.

    Args:
        recipe: of any provider.
        service: the home, as the team sees it: for settings, the lab's price list, the inventory of hosts.
        environ: of the caller; ``TRAINMASTER_CATALOGUE``, ``TRAINMASTER_HOSTS`` and the region of AWS count.
        today: the day.

    Raises:
        UsageError: it has nothing: no lab is up, no inventory, or a catalogue without offers of it.
    """
    if capabilities_of(recipe.provider).offers is OfferSource.MACHINE:
        from trainmaster.providers import load_catalogue

        return CandidateOffers(recipe.provider, load_catalogue(recipe.provider, today=today))
    place = _settings_place(recipe.provider, service, environ)
    found = _offers_at(place, recipe, service, environ, today)
    own = (f"{recipe.provider}: with the login of team {place.team}",) if place.team else ()
    return replace(found, notes=(*found.notes, *own))


def _offers_at(
    place: ProviderPlace, recipe: Recipe, service: OpenHome, environ: Mapping[str, str], today: date
) -> CandidateOffers:
    from trainmaster.providers import load_catalogue

    can = capabilities_of(provider := recipe.provider)
    if can.offers is OfferSource.INVENTORY:
        return _hosts(place, today)
    own = own_list_of(provider, service, environ, today)
    if own is not None:
        return own
    named = environ.get(CATALOGUE)
    catalogue = (
        load_catalogue(named, today=today) if named else Prices.of(service, environ, today).catalogue()
    )
    found, extras = catalogue.where(provider=provider), extras_of(place.environ)
    if not len(found):
        raise UsageError(
            f"provider: {provider}: the catalogue '{catalogue.name}' has no offers of it",
            f"Name another provider, or a catalogue with {CATALOGUE}=FILE (`quote`: --catalogue NAME|FILE).",
        )
    if not can.tells_prices or _names_region(recipe):
        return CandidateOffers(provider, found, extras=extras)
    from trainmaster.providers.aws.settings import configured_region

    region = configured_region(place.environ)
    known = f"There are prices of {', '.join(sorted({offer.region for offer in found}))}."
    if not region and catalogue.by_hand:
        return CandidateOffers(provider, found, extras=extras)  # whoever names a price list chooses by it
    if not region:
        raise UsageError(
            "provider: aws: no region is chosen",
            "Write `hardware: {region: ...}`. Or set AWS_REGION, or run `aws configure`. " + known,
        )
    here = found.where(region=region)
    if not len(here):
        raise UsageError(
            f"provider: aws: '{catalogue.name}' has no prices of {region}, the region of your AWS settings",
            "Ask AWS for them with `trainmaster offers --refresh`, choose another one with AWS_REGION or "
            f"`hardware.region`, or name prices with {CATALOGUE}=FILE. " + known,
        )
    return CandidateOffers(provider, here, extras=extras)


def _settings_place(provider: str, service: OpenHome, environ: Mapping[str, str]) -> ProviderPlace:
    """Where settings and login are. Nothing is asked of the provider: the home need not be there yet."""
    from trainmaster.providers.base import ProviderPlace

    return service.with_login(provider, ProviderPlace(service.home.root, "", dict(environ)))


def own_list_of(
    provider: str, service: OpenHome, environ: Mapping[str, str], today: date
) -> CandidateOffers | None:
    """What a provider has whose machines are in no catalogue but in a list of its own; None of the others.

    Raises:
        UsageError: there is none: no lab is up, or no settings.
    """
    match capabilities_of(provider).offers:
        case OfferSource.LAB:
            return _lab(service.home, today)
        case OfferSource.SETTINGS:
            return _of_settings(provider, service, environ, today)
    return None


def extras_of(environ: Mapping[str, str]) -> Extras:
    """What is rented with every machine whose provider's rates are known, which is AWS.

    Raises:
        UsageError: a setting of AWS means nothing.
    """
    from trainmaster.providers.aws.settings import AwsSettings

    settings = AwsSettings.from_environment(environ)
    return Extras(settings.disk_bytes, settings.public_addresses)


def own_arch() -> str:
    """This machine's processors as catalogues call them: what was measured here is known to run on such."""
    return _ARCHES.get(platform.machine().lower(), "")


def catalogue_is_own(catalogue: Catalogue) -> bool:
    """True if it is the user's own machine."""
    return len(catalogue) == 1 and capabilities_of(catalogue.offers[0].provider).is_here


def measured_for(found: list[Measurement], catalogue: Catalogue) -> list[Measurement]:
    """What was measured on this machine where it is meant; elsewhere what was measured there, if anything."""
    here = [each for each in found if each.offer == "local"]
    if catalogue_is_own(catalogue):
        return here
    types = {measured_name(offer.provider, offer.instance_type): offer.instance_type for offer in catalogue}
    return [replace(each, offer=types[each.offer]) for each in found if each.offer in types] or here


def measured_elsewhere(found: list[Measurement], catalogue: Catalogue) -> list[Measurement]:
    """What was measured in other places, where nothing else is known; names of machines say so."""
    from trainmaster.advisor.model.devices import ELSEWHERE

    own = catalogue_is_own(catalogue)
    return [] if own else [replace(each, offer=f"{ELSEWHERE}{each.offer}") for each in found]


def _lab(home: Home, today: date) -> CandidateOffers:
    from trainmaster.advisor.market.memory_floor import RUNTIME_CORES, Shares
    from trainmaster.providers import load_catalogue
    from trainmaster.providers.aws.settings import AwsSettings

    directory = home.root / "lab"
    region = AwsSettings.from_lab(directory).region  # says so if no lab is up
    facts = json.loads((directory / "lab.json").read_text())
    # It was not named: it is the lab's, and as old as the lab.
    prices = load_catalogue(directory / "prices.csv", today=today).where(provider="lab")
    catalogue = replace(prices, name="lab", by_hand=False)
    scale = {name: float(share) for name, share in (facts.get("scale") or {}).items()}
    cpu, memory, network = (scale.get(name, 1.0) for name in ("cpu", "memory", "network"))
    shares = Shares(cpu, memory, network, _LAB_MEMORY_BYTES, RUNTIME_CORES)
    return CandidateOffers("lab", catalogue, {region: tuple(facts.get("zones") or ())}, shares=shares)


def _of_settings(
    provider: str, service: OpenHome, environ: Mapping[str, str], today: date
) -> CandidateOffers:
    """What the provider's own settings name; where these rest on other prices, by the catalogue in use."""
    from trainmaster.providers import load_catalogue
    from trainmaster.providers.plugins import PROVIDERS, told_of_own_logins

    def prices() -> Catalogue:
        named = environ.get(CATALOGUE)
        if named:
            return load_catalogue(named, today=today)
        return Prices.of(service, environ, today).catalogue()

    read = PROVIDERS.stated(provider, "catalogue_of")
    if read is None:
        raise UsageError(
            f"provider: {provider}: its module has no `catalogue_of`", "See docs/extend/provider-promises.md."
        )
    place = _settings_place(provider, service, environ)
    with told_of_own_logins(provider, place):
        return CandidateOffers(provider, read(place.root, place.environ, today, prices))


def _hosts(place: ProviderPlace, today: date) -> CandidateOffers:
    """All hosts as one offer that costs nothing: what the least of them has."""
    from trainmaster.advisor.market.memory_floor import Shares
    from trainmaster.providers.host_ledger import HostLedger
    from trainmaster.providers.inventory import inventory_file, read_inventory

    file = inventory_file(place.root, place.environ)
    hosts = read_inventory(file).hosts
    if not hosts:
        raise UsageError(f"{file} lists no hosts", "List at least one; see docs/hosts.md.")
    gpus = min(host.gpus for host in hosts)
    told = HostLedger(place.directory("hosts"))
    least = _cores_of(hosts, told)
    vcpus = min((host.slots for host in hosts if host.slots), default=0) or math.ceil(least or _cores())
    offer = site_offer("hosts", HOST, vcpus, _memory_of(hosts, told), today, str(file), gpus=gpus)
    rates = [rate for host in hosts if (rate := told.mbps().get(host.name))]
    gbps = min(rates) / 1000 if rates else None
    offer = replace(offer, nic_gbps=gbps, nic_burst_gbps=gbps)
    shares = Shares(least / vcpus, 1.0, 1.0) if least else None
    return CandidateOffers("hosts", Catalogue(file.name, (offer,)), hosts=hosts, shares=shares)


def learn_machines(recipe: Recipe, service: OpenHome, environ: Mapping[str, str]) -> None:
    """Ask hosts of one's own what they have never said, before a quote goes by it; it is made anyway.

    Args:
        recipe: that is quoted: for gangs what goes between hosts is measured, which takes a second, once.
        service: the home, as the team sees it.
        environ: of the caller.
    """
    if capabilities_of(recipe.provider).offers is not OfferSource.INVENTORY:
        return
    from trainmaster.providers import get_provider
    from trainmaster.providers.base import Learns

    with (
        suppress(TrainmasterError),
        closing(get_provider(recipe.provider, service.place(recipe.provider, environ))) as provider,
    ):
        if isinstance(provider, Learns):
            provider.learn(network=any(each.distributed for each in recipe.experiments.values()))


def _cores_of(hosts: Sequence[InventoryHost], told: HostLedger) -> float:
    """What the least host has, as they told last; 0 if some have never said."""
    known = [told.cores().get(host.name, 0.0) for host in hosts]
    return min(known) if all(known) else 0.0


def _memory_of(hosts: Sequence[InventoryHost], told: HostLedger) -> int:
    """What the largest host has, as they told last: the others are left out where that is needed.

    One byte if some have never said, which `Supply.hosts` takes for unknown.
    """
    sizes = told.sizes()
    known = [sizes.get(host.name, 0) for host in hosts]
    return max(known) if all(known) else 1


def _cores() -> int:
    from trainmaster.executors.capacity import detect_capacity

    return detect_capacity().cores


def _names_region(recipe: Recipe) -> bool:
    overrides = (e.distributed.hardware.values() for e in recipe.experiments.values() if e.distributed)
    return any(e.hardware.regions for e in recipe.experiments.values()) or any(
        hardware.regions for some in overrides for hardware in some
    )
