"""`ImProvider`: rents in any cloud that Infrastructure Manager knows.

A cluster is an infrastructure of IM's, as machines of two cannot reach each other. IM has no token that makes
a call repeatable: what is asked for is written down before, and found again by the mark in the description of
the infrastructure, and by the name that machines of a request have there.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

from trainmaster.providers.base import (
    CLOCKS_DIFFER_S,
    NoCapacityError,
    Node,
    NodeRequest,
    ProviderPlace,
    planned,
)
from trainmaster.providers.catalogue import Catalogue
from trainmaster.providers.examining import Finding, check_room, refused, room_finding, unseen_drivers
from trainmaster.providers.im.client import ImClient, ImRefusedError
from trainmaster.providers.im.credentials import ImCredentials, read_credentials
from trainmaster.providers.im.documents import RadlDocuments, node_id, number_in
from trainmaster.providers.im.errors import explained_refusal, refusals_explained
from trainmaster.providers.im.ledger import ImCluster, ImLedger
from trainmaster.providers.im.making import ImMaking
from trainmaster.providers.im.observed import ImObserved
from trainmaster.providers.im.radl import InfrastructureOwner, renewed
from trainmaster.providers.im.settings import IM, ImSettings, read_settings
from trainmaster.providers.loading import load_catalogue
from trainmaster.providers.offer import Offer
from trainmaster.providers.sent_settings import SentSettings, path_mark, with_values
from trainmaster.providers.team_login import LoginKind, check_address
from trainmaster.spec.clocks import steady_s
from trainmaster.spec.errors import UsageError
from trainmaster.spec.plain_json import parsed_json, typed
from trainmaster.transport.checked_connection import team_may_reach
from trainmaster.transport.http_calls import Send, gone_is_fine, sender

_GIB: Final = 2**30
#: What it says of clouds that it knows no way to ask, such as EC2.
_UNTOLD: Final = "Should have implemented this"
_EC2: Final = "EC2"
_EC2_IMAGE: Final = re.compile(r"aws://([a-z0-9-]+)/")


def _room(quotas: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """What is limited, what is used of it, and the limit; -1 and what is not told are no limits."""
    for name, quota in quotas.items():
        limit, used = (quota.get("limit"), quota.get("used")) if isinstance(quota, dict) else (None, None)
        if isinstance(limit, int | float) and isinstance(used, int | float) and limit >= 0:
            yield name, used, limit


log = logging.getLogger(__name__)

_LOOK_S: Final = 0.5
#: How often an infrastructure whose answer was lost is looked for before it is believed not to be there.
_LOOKS: Final = 3
_CREATE: Final = "POST /infrastructures"
_ADD: Final = "POST /infrastructures/ID"


def im_provider(place: ProviderPlace) -> ImProvider:
    """The provider of a home, as its ``im.yaml`` says.

    Raises:
        UsageError: there are no settings or credentials, or a mistake in them.
    """
    settings = read_settings(IM.file(place.root, place.environ))
    credentials = read_credentials(settings.credentials_file)
    offers = im_offers(settings, credentials.clouds)
    return ImProvider(settings, credentials, offers, place)


def _own_login(place: ProviderPlace) -> SentSettings:
    file = IM.file(place.root, place.environ)
    settings = read_settings(file)
    credentials, named = read_credentials(settings.credentials_file), {"credentials": path_mark(_CREDENTIALS)}
    files = {_CREDENTIALS: json.dumps([dict(each) for each in credentials.records])}
    if settings.prices_file is not None:
        files[_PRICES], named["prices"] = settings.prices_file.read_text(), path_mark(_PRICES)
    files["TRAINMASTER_IM"] = with_values(file.read_text(), **named)
    clouds = ", ".join(credentials.clouds) or "no cloud"
    return SentSettings(
        files, {}, (f"the login to {settings.url}, and those to {clouds}, with all that they may do",)
    )


def _check_login(place: ProviderPlace) -> None:
    """Refuse what names a file of this machine."""
    settings = read_settings(IM.file(place.root, place.environ))
    text = Path(place.environ[_CREDENTIALS]).read_text()
    values = [
        str(value) for each in typed(list[dict[str, Any]], parsed_json(text)) for value in each.values()
    ]
    named = (settings.credentials, settings.prices)
    is_sent = named == (place.environ[_CREDENTIALS], place.environ.get(_PRICES, ""))
    if not is_sent or any(value.strip().startswith("file(") for value in values):
        raise UsageError(
            f"{settings.file} or its credentials name another file", "`trainmaster team login` sends all."
        )
    check_address(settings.url, place)


#: Names the file of IM's with credentials, of a team's own login.
_CREDENTIALS: Final = "TRAINMASTER_IM_CREDENTIALS"
#: The same of its price list.
_PRICES: Final = "TRAINMASTER_IM_PRICES"
#: See `LoginKind`.
TEAM_LOGIN: Final = LoginKind(_own_login, _check_login, ("TRAINMASTER_IM", _CREDENTIALS), (), (_PRICES,))


def catalogue_of(
    root: Path, environ: Mapping[str, str], today: date, prices: Callable[[], Catalogue]
) -> Catalogue:
    """What the clouds of a home's settings have; of EC2, what AWS costs by the prices in use.

    Raises:
        UsageError: nothing is known of them.
    """
    settings, aws = read_settings(IM.file(root, environ)), prices()
    offers = im_offers(settings, read_credentials(settings.credentials_file).clouds, aws, today)
    if not offers:
        raise UsageError(
            "provider: im: nothing is known of what its clouds have",
            f"Write a price list and name it in {settings.file} (`prices`); see docs/im.md.",
        )
    by_hand = aws.by_hand or settings.prices_file is not None
    return Catalogue(str(settings.prices_file or aws.name), tuple(offers), by_hand=by_hand)


class ImProvider:
    """See `Provider`. Threads may share it.

    Args:
        settings: where IM is.
        credentials: that it is given.
        offers: what its clouds have.
        place: of the home.
        send: carries requests.
        sleep: between looks.
        clock: gives Unix seconds; never set back.

    Attributes:
        name: ``im``.
    """

    name = "im"

    def __init__(
        self,
        settings: ImSettings,
        credentials: ImCredentials,
        offers: Sequence[Offer],
        place: ProviderPlace,
        *,
        send: Send | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = steady_s,
    ) -> None:
        self._settings = settings
        self._sleep = sleep
        self._clock = clock
        self._home = place.identity
        self._client = ImClient(
            settings.url, credentials, send or sender(may_reach=team_may_reach(place.environ))
        )
        known = {(offer.region, offer.instance_type.lower()): offer for offer in offers if not offer.spot}
        self._documents = RadlDocuments(place.identity, settings, credentials.clouds, known)
        self._memory = ImLedger(place.directory(self.name), place.saved)
        self._observed = ImObserved(self._client, settings, place.identity, self._memory)
        self._making = ImMaking(
            self._client, self._observed, self._memory, self._documents, sleep=sleep, clock=clock
        )

    def check_settings(self) -> None:
        """Refuse a cloud without credentials."""
        for cloud in self._settings.clouds:
            self._documents.cloud(NodeRequest("", 1, region=cloud))

    def check_up(self) -> None:
        """Refuse what does not answer, or does not take the login."""
        self._client.version()
        with refusals_explained():
            self._client.infrastructures()

    def close(self) -> None:
        """Nothing is kept open."""

    def preflight(self, requests: Sequence[NodeRequest]) -> list[str]:
        """See `Provider`: would IM make them, and do quotas suffice."""
        needed: dict[str, dict[str, float]] = {}
        for request in requests:
            document = self._documents.document("preflight", request, self._clock())
            cloud, offer = self._documents.cloud(request), self._documents.offer(request)
            try:
                self._client.estimate(document)
            except ImRefusedError as refused:
                error = explained_refusal(refused, cloud, [cloud])
                if isinstance(error, NoCapacityError):  # a quota: nothing is gained by waiting
                    raise UsageError(error.args[0], error.hint) from None
                raise error from None
            assert offer is not None  # the document would not be there
            one = {
                "instances": 1.0,
                "cores": offer.vcpus,
                "ram": offer.memory_bytes / _GIB,
                "gpus": offer.accelerators,
            }
            sums = needed.setdefault(cloud, dict.fromkeys(one, 0.0))
            for name, amount in one.items():
                sums[name] += request.count * amount
        notes = []
        for cloud, sums in needed.items():
            if not self._documents.boots(cloud):
                notes.append(
                    f"machines of {cloud} end themselves when their lease is not renewed only once somebody "
                    f"has logged in: IM hands no user data to {self._documents.clouds[cloud]}"
                )
            try:
                quotas = self._client.quotas(cloud)
            except ImRefusedError as refused:
                error = explained_refusal(refused, cloud, [cloud])
                if isinstance(error, UsageError):
                    raise error from None
                why = "IM cannot ask it for them" if _UNTOLD in refused.words else refused.words
                notes.append(f"the quotas of {cloud} are not known: {why}")
                continue
            hint = "Give back what you have there, ask for more, or ask for fewer machines."
            for name, used, limit in _room(quotas):
                if name in sums:
                    check_room(f"your quota of {name} in the cloud {cloud}", sums[name], used, limit, hint)
        return notes

    def examine(self, builds: Mapping[str, str]) -> list[Finding]:
        """See `Examined`: quotas of each cloud, as far as IM can ask for them."""
        found = [Finding("login", f"Infrastructure Manager {self._client.version()} takes its credentials")]
        for cloud in self._settings.clouds:
            try:
                quotas = self._client.quotas(cloud)
            except ImRefusedError as refusal:
                if _UNTOLD in refusal.words:
                    found.append(Finding("quota", f"{cloud}: IM cannot ask it for quotas"))
                else:
                    found.append(refused("quota", explained_refusal(refusal, cloud, [cloud])))
                continue
            found += [room_finding(name, used, limit, cloud) for name, used, limit in _room(quotas) if limit]
        return found + unseen_drivers(builds)

    def dry_run(self, cluster: str, requests: Sequence[NodeRequest]) -> list[dict[str, Any]]:
        """See `Provider`: the documents that would be sent, all to one infrastructure."""
        shown = []
        for index, request in enumerate(requests):
            radl = self._documents.document(cluster, request, self._clock())
            parameters = {"infrastructure": "${infrastructure.id}"} if index else {}
            operation = _ADD if index else _CREATE
            shown.append(planned(self.name, operation, {**parameters, "radl": radl}))
        return shown

    # --- renting -----------------------------------------------------------------------------------

    def acquire(self, cluster: str, request: NodeRequest) -> list[Node]:
        """See `Provider`. It waits a while for IM to have asked the cloud for all of them.

        Raises:
            ProviderError: IM is not done with it yet: to be asked again, which finds what was begun.
        """
        wanted = self._documents.wanted(cluster, request)
        system = wanted.system
        with self._memory.alone(cluster), refusals_explained(wanted.cloud, [request.zone or wanted.cloud]):
            known = self._memory.of(cluster)
            asked = known.asked.get(system)
            if asked is None or not asked.machines:
                known = self._making.made(known, system, request, wanted.cloud)
        return [node for name, node in self._observed.named_nodes(known) if name == system]

    # --- looking -----------------------------------------------------------------------------------

    def nodes(self, cluster: str) -> list[Node]:
        """See `Provider`. Those that IM has forgotten are gone, and known to be as long as the cluster is."""
        return [node for _, node in self._observed.named_nodes(self._memory.of(cluster))]

    def console(self, cluster: str, id: str) -> str:
        """See `Provider`: what IM has to say of how it was made. Its clouds' consoles it does not tell."""
        for infrastructure in self._memory.of(cluster).infrastructures:
            if number := number_in(infrastructure, id):
                with gone_is_fine():
                    return self._client.message(infrastructure, number)
        return ""

    def renew(self, cluster: str, lease_s: float) -> None:
        """See `Provider`. The machines' own switch needs `renewal_command` over SSH: it must not need an API.

        This writes into the infrastructure until when it is wanted, for what reaps; not while its first
        machines are made, as IM would call it failed from then on: what it was made with holds for so long.
        """
        for infrastructure in self._memory.of(cluster).with_machines:
            mark = InfrastructureOwner(self._home, cluster, self._clock() + lease_s)
            with gone_is_fine():
                self._client.add(infrastructure, renewed(mark))

    # --- giving back -------------------------------------------------------------------------------

    def release(self, cluster: str, ids: Sequence[str] | None = None) -> None:
        """See `Provider`. With the whole cluster its networks and its security group go, too."""
        with self._memory.alone(cluster), refusals_explained():
            known = self._memory.of(cluster)
            if not known.is_asked:
                return
            if ids is not None:
                self._remove(known, ids)
                return
            for infrastructure in known.infrastructures:
                self._making.destroy(infrastructure)
            for infrastructure in self._lost(known):
                self._making.destroy(infrastructure)
            self._memory.forget(cluster)

    def reap(self, known: Sequence[str]) -> list[str]:
        """See `Provider`. Until when an infrastructure is wanted stands in its description."""
        ended = []
        before = self._clock() - CLOCKS_DIFFER_S
        with refusals_explained():
            lost = [
                (infrastructure, mark.cluster)
                for infrastructure, mark in self._observed.marked()
                if mark.cluster not in known and mark.until < before
            ]
            for infrastructure, cluster in lost:
                with self._memory.alone(cluster):
                    mark = self._observed.mark(infrastructure)
                    if mark is None or mark.until >= before:  # its run goes on by now
                        continue
                    state = self._observed.state_of(infrastructure)
                    ended += [node_id(infrastructure, number) for number in (state.machines if state else ())]
                    # What is known of it is kept until it is given back: `nodes` tells that they are gone.
                    self._making.destroy(infrastructure)
        return ended

    def _remove(self, known: ImCluster, ids: Sequence[str]) -> None:
        for infrastructure in known.infrastructures:
            state = self._observed.state_of(infrastructure)
            numbers = [number_in(infrastructure, name) for name in ids]
            if there := [number for number in numbers if state is not None and number in state.machines]:
                self._client.remove(infrastructure, there)

    def _lost(self, known: ImCluster) -> list[str]:
        """Infrastructures of which the answer never came: IM shows the description a moment later."""
        is_missing = known.is_asked and not known.infrastructure
        for look in range(_LOOKS if is_missing else 1):
            if look:
                self._sleep(_LOOK_S * 2**look)
            try:
                found = [each for each, mark in self._observed.marked() if mark.cluster == known.cluster]
            except (
                ImRefusedError
            ) as refused:  # another infrastructure must not be in the way of this one's end
                if is_missing:
                    raise
                log.info("whether %s has other infrastructures is not known: %s", known.cluster, refused)
                break
            if found:
                return found
        return []


def im_offers(
    settings: ImSettings,
    clouds: Mapping[str, str],
    aws: Catalogue | None = None,
    today: date | None = None,
) -> list[Offer]:
    """Every offer; its region is the id of its cloud.

    The user's list comes first. Of a cloud of the type EC2 that it does not have, the prices of the region of
    its image are taken, on demand: those of AWS, which are the same however one rents there.

    Args:
        settings: name the list, and the clouds that may be used.
        clouds: id -> type, of the credentials.
        aws: prices of AWS that are newer than what ships.
        today: the day.

    Raises:
        UsageError: a mistake in the list.
    """
    day = today or datetime.now(UTC).date()
    own: list[Offer] = []
    if settings.prices_file is not None:
        listed = load_catalogue(settings.prices_file, today=day).where(provider="im")
        own = [offer for offer in listed if not offer.spot]
        if unknown := sorted({offer.region for offer in own} - settings.clouds.keys()):
            raise UsageError(
                f"{settings.prices_file} has prices of {', '.join(unknown)}, which are no clouds of "
                f"{settings.file}",
                f"The column `region` has the id of a cloud: {', '.join(settings.clouds)}.",
            )
    have = {offer.region for offer in own}
    for name, cloud in settings.clouds.items():
        found = _EC2_IMAGE.match(cloud.image)
        if name in have or clouds.get(name) != _EC2 or not found:
            continue
        known = load_catalogue(None, today=day) if aws is None else aws
        own += [
            replace(offer, provider="im", region=name, zone="")
            for offer in known.where(provider="aws", region=found[1])
            if not offer.spot and offer.arch != "arm64"
        ]
    return own
