"""`Capabilities`: what kind of place a provider is, known by its name alone: nothing is connected.

What wants to know whether machines cost something, or go with what is on them, asks this; nothing compares
names of providers.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from trainmaster.dataclass import dataclass
from trainmaster.providers import billing
from trainmaster.providers.billing import Billing
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.log_normal import LogNormal
from trainmaster.spec.plugins import PluginRegistry

if TYPE_CHECKING:
    from trainmaster.providers.base import ProviderPlace
    from trainmaster.transport.base import Transport


class OfferSource(StrEnum):
    """Where it is written what it has.

    MACHINE: this machine is measured. INVENTORY: the user's list of hosts. CATALOGUE: a price list, ours or
    the user's. SETTINGS: the provider's own settings, read by ``catalogue_of`` of its module. LAB:
    the price list of the home's lab, whose machines are smaller than they are called.
    """

    MACHINE = "machine"
    INVENTORY = "inventory"
    LAB = "lab"
    SETTINGS = "settings"
    CATALOGUE = "catalogue"


class Installed(StrEnum):
    """What its machines have of Python's packages before anything of ours or the user's comes there.

    OURS: what is installed for the Python that runs Trainmaster. NOTHING: a system only. UNKNOWN: whatever
    the user has put there.
    """

    OURS = "ours"
    NOTHING = "nothing"
    UNKNOWN = "unknown"


#: There are no machines but this one.
HERE: Final = "here"
#: How machines are reached, by `Capabilities.reach`. Each is called with a `ProviderPlace`.
TRANSPORTS: Final = PluginRegistry(
    "transport",
    {
        "kubernetes": "trainmaster.transport.kubernetes.pods:pods_transport",
        "ray": "trainmaster.providers.ray.reaching:ray_transport",
        "ssh": "trainmaster.providers.hosts_over_ssh:transport_of",
    },
)
#: What a host of one's own is called where an instance type would stand.
HOST: Final = "host"
#: Of a provider that says nothing.
_THERE_S: Final = LogNormal(180.0, 0.8)
_GIVEN_BACK_S: Final = LogNormal(30.0, 0.6)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Of a provider. Those of a plug-in that says nothing are those of a cloud.

    Attributes:
        reach: how its machines are reached: `HERE`, or the name of a transport, see `TRANSPORTS`.
        rents: its machines are there for one cluster: what is on them goes with them. Else they stay, and
            what is ours is removed from them.
        costs: its machines are billed.
        may_be_free: some of them cost nothing.
        spot: it has machines that it may take back, for less.
        no_spot: why not, for people; empty if there is no more to say.
        ends_itself: a machine ends itself if its lease is not renewed.
        leaves_nothing: one that has ended itself is gone; else it is off, and is there until it is deleted.
        switch_at_boot: what makes it do so comes with the machine; else the first login brings it.
        moves: another server can go on with its machines: what must be known of them is kept by `AwsLedger`.
        offers: where it is written what it has.
        tells_prices: its API tells the prices of the user's account, whose settings also choose a region.
        installed: what is on its machines from the start.
        console: it keeps what the consoles of its machines have shown: `Provider.console`.
        has_own_kernel: what the kernel of its machines says is of them only.
        image_variable: with it users name an image of their own, whose content is unknown.
        billing: how it bills.
        provisioning_s: seconds from asking for machines until they can be worked on, before any were seen.
        bakes: an image can be made of a machine, from which others start; see `Baker`.
        giving_back_s: seconds from the end of the work until machines are paid for no more.
        queues: its machines may wait in a queue of its own, which is no part of that.
        no_containers: why nothing on its machines may start containers; empty if something may.
        dials_slowly: until it answers first takes a second or more, which is used while a run is planned.
    """

    reach: str = "ssh"
    rents: bool = True
    costs: bool = True
    may_be_free: bool = False
    spot: bool = True
    no_spot: str = ""
    ends_itself: bool = True
    leaves_nothing: bool = True
    switch_at_boot: bool = True
    moves: bool = False
    bakes: bool = False
    offers: OfferSource = OfferSource.CATALOGUE
    tells_prices: bool = False
    installed: Installed = Installed.UNKNOWN
    console: bool = False
    has_own_kernel: bool = True
    image_variable: str = ""
    billing: Billing = billing.UNKNOWN
    provisioning_s: LogNormal = _THERE_S
    giving_back_s: LogNormal = _GIVEN_BACK_S
    queues: bool = False
    no_containers: str = ""
    dials_slowly: bool = False

    @property
    def is_here(self) -> bool:
        """Whether it is this machine, which is not rented."""
        return self.reach == HERE


_OWN: Final = Capabilities(
    rents=False, costs=False, spot=False, ends_itself=False, billing=billing.NOTHING_BESIDE
)
#: Schedules by itself; what its machines cost stands in its settings.
_SITE: Final = Capabilities(
    may_be_free=True,
    spot=False,
    offers=OfferSource.SETTINGS,
    has_own_kernel=False,
    billing=billing.NOTHING_BESIDE,
    provisioning_s=LogNormal(15.0, 1.0),  # an image that has to be fetched: minutes
    giving_back_s=LogNormal(2.0, 0.7),
    queues=True,
)
BUILT_IN: Final = {
    "local": replace(
        _OWN,
        reach=HERE,
        offers=OfferSource.MACHINE,
        installed=Installed.OURS,
        provisioning_s=LogNormal(0.0, 0.0),
    ),
    "hosts": replace(
        _OWN,
        offers=OfferSource.INVENTORY,
        provisioning_s=LogNormal(6.0, 0.8),
        giving_back_s=LogNormal(0.5, 0.7),
    ),
    "aws": Capabilities(
        moves=True,
        bakes=True,
        tells_prices=True,
        console=True,
        installed=Installed.NOTHING,
        image_variable="TRAINMASTER_AWS_IMAGE",
        billing=billing.AWS,
        provisioning_s=LogNormal(90.0, 0.5),
    ),
    "im": Capabilities(
        spot=False,
        no_spot="what Infrastructure Manager 2.0 sends EC2 for them is refused there, and of other clouds it "
        "has none",
        switch_at_boot=False,  # not in every cloud
        leaves_nothing=False,
        offers=OfferSource.SETTINGS,
        console=True,
        provisioning_s=LogNormal(1000.0, 0.4),  # Jorge et al. waited 15 to 20 minutes
    ),
    "openstack": Capabilities(
        may_be_free=True,
        spot=False,
        no_spot="OpenStack has none",
        leaves_nothing=False,
        offers=OfferSource.SETTINGS,
        console=True,
        billing=billing.NOTHING_BESIDE,
        provisioning_s=LogNormal(90.0, 0.6),
        giving_back_s=LogNormal(15.0, 0.7),
    ),
    "ray": replace(
        _SITE,
        reach="ray",
        no_spot="nodes that are taken back have labels or resources, which a machine in ray.yaml asks for",
        provisioning_s=LogNormal(6.0, 0.8),
        dials_slowly=True,
    ),
    "slurm": replace(
        _SITE, no_spot="a partition that is preempted is a machine of its own, named by `instance`"
    ),
    "kubernetes": replace(
        _SITE,
        reach="kubernetes",
        no_spot="nodes that are taken back are a machine of its own, named by `instance`",
        no_containers="its machines are containers: `image` in kubernetes.yaml names theirs",
        console=True,
    ),
    "lab": Capabilities(
        moves=True,
        bakes=True,
        offers=OfferSource.LAB,
        console=True,
        has_own_kernel=False,
        installed=Installed.OURS,
        billing=billing.NOTHING_BESIDE,
        provisioning_s=LogNormal(6.0, 0.6),
        giving_back_s=LogNormal(3.0, 0.7),
    ),
}
#: Clouds of which offers are known, though only plug-ins rent there yet.
_CLOUDS: Final = {
    "azure": Capabilities(billing=billing.AZURE, provisioning_s=LogNormal(150.0, 0.6)),
    "gcp": Capabilities(billing=billing.GOOGLE, provisioning_s=LogNormal(90.0, 0.5)),
}


def capabilities_of(provider: str) -> Capabilities:
    """Those of a provider: built in, or ``CAPABILITIES`` of the module that defines a plug-in.

    Args:
        provider: its name; an unknown one is taken for a cloud's.
    """
    return BUILT_IN.get(provider) or _of_plug_in(provider)


@functools.cache
def _plug_ins() -> frozenset[str]:
    from trainmaster.providers.plugins import PROVIDERS  # a run on this machine needs none of that

    return frozenset(PROVIDERS.plug_ins())


@functools.cache
def _of_plug_in(provider: str) -> Capabilities:
    if provider not in _plug_ins():
        return _CLOUDS.get(provider, Capabilities())
    from trainmaster.providers.plugins import PROVIDERS

    try:
        found = PROVIDERS.stated(provider, "CAPABILITIES")
    except TrainmasterError:  # told when it is to be used
        found = None
    return found if isinstance(found, Capabilities) else Capabilities()


def on_this_machine(offer: str) -> bool:
    """Whether what measurements call a machine is this one, or a lab's, which is a part of it.

    >>> on_this_machine("local"), on_this_machine("lab:m4.large"), on_this_machine("m4.large")
    (True, True, False)
    """
    provider, _, instance = offer.partition(":")
    return offer == "local" or (bool(instance) and capabilities_of(provider).offers is OfferSource.LAB)


def measured_name(provider: str, instance_type: str) -> str:
    """What measurements call a machine: a lab's are smaller than those that they are called after.

    >>> measured_name("aws", "m4.large"), measured_name("lab", "m4.large"), measured_name("hosts", "")
    ('m4.large', 'lab:m4.large', 'host')
    """
    if capabilities_of(provider).is_here:
        return provider
    if capabilities_of(provider).offers is OfferSource.LAB:
        return f"{provider}:{instance_type}"
    return instance_type or HOST


def get_transport(provider: str, place: ProviderPlace) -> Transport:
    """What the machines of a provider are reached by; close it.

    Args:
        provider: its name.
        place: that leads there.

    Raises:
        UsageError: there is no such provider or transport.
        MissingPartError: it is there, but what it needs is not installed.
    """
    found: Transport = TRANSPORTS.make(capabilities_of(provider).reach, place)
    return found
