"""`ImProvider`: rents in any cloud that Infrastructure Manager knows.

A cluster is an infrastructure of IM's, as machines of two cannot reach each other. IM has no token that makes
a call repeatable: what is asked for is written down before, and found again by the mark in the description of
the infrastructure, and by the name that machines of a request have there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from trainmaster.providers.base import Node, NodeRequest
from trainmaster.providers.im.client import ImClient, ImRefusedError, ImState, Send
from trainmaster.providers.im.credentials import ImCredentials, read_credentials
from trainmaster.providers.im.documents import RadlDocuments
from trainmaster.providers.im.errors import Explained, explained
from trainmaster.providers.im.memory import Asked, ClusterMemory, ImMemory
from trainmaster.providers.im.nodes import node_id, number_in
from trainmaster.providers.im.observed import ImObserved
from trainmaster.providers.im.preflight import check
from trainmaster.providers.im.radl import Mark, renewed
from trainmaster.providers.im.settings import ImSettings, read_settings, settings_file
from trainmaster.providers.offer import Offer
from trainmaster.providers.place import ProviderPlace
from trainmaster.spec.clocks import steady_s
from trainmaster.spec.errors import ProviderError

log = logging.getLogger(__name__)

#: How long one call waits for machines that IM is making; whoever asked asks again.
_MADE_S: Final = 60.0
#: What is not there by then does not come any more.
_STUCK_S: Final = 1200.0
#: After so long IM is asked whether it is still at work on it.
_FORGOTTEN_S: Final = 120.0
#: How long one call waits for an infrastructure to be gone.
_GONE_S: Final = 240.0
_LOOK_S: Final = 0.5
#: What takes a moment only is looked at soon, then less and less often.
_SOON_S: Final = 0.1
#: How often an infrastructure whose answer was lost is looked for before it is believed not to be there.
_LOOKS: Final = 3
#: Drivers of one home may have clocks that differ by so much.
_CLOCKS_DIFFER_S: Final = 300.0
_CREATE: Final = "POST /infrastructures"
_ADD: Final = "POST /infrastructures/ID"


def im_provider(place: ProviderPlace) -> ImProvider:
    """The provider of a home, as its ``im.yaml`` says.

    Raises:
        UsageError: there are no settings or credentials, or a mistake in them.
    """
    from trainmaster.providers.im.prices import im_offers

    settings = read_settings(settings_file(place.root, place.environ))
    credentials = read_credentials(settings.credentials_file)
    offers = im_offers(settings, credentials.clouds)
    return ImProvider(settings, credentials, offers, place)


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
        self._client = ImClient(settings.url, credentials, send)
        known = {(offer.region, offer.instance_type.lower()): offer for offer in offers if not offer.spot}
        self._documents = RadlDocuments(place.identity, settings, credentials.clouds, known)
        self._memory = ImMemory(place.directory(self.name), place.saved)
        self._observed = ImObserved(self._client, settings, place.identity, self._memory)

    def check_settings(self) -> None:
        """Refuse a cloud without credentials."""
        for cloud in self._settings.clouds:
            self._documents.cloud(NodeRequest("", 1, region=cloud))

    def check_up(self) -> None:
        """Refuse what does not answer, or does not take the login."""
        self._client.version()
        with Explained("", ()):
            self._client.infrastructures()

    def close(self) -> None:
        """Nothing is kept open."""

    def preflight(self, requests: Sequence[NodeRequest]) -> list[str]:
        """See `Provider`."""
        return check(self._client, self._documents, requests, self._clock())

    def dry_run(self, cluster: str, requests: Sequence[NodeRequest]) -> list[dict[str, Any]]:
        """See `Provider`: the documents that would be sent, all to one infrastructure."""
        shown = []
        for index, request in enumerate(requests):
            radl = self._documents.document(cluster, request, self._clock())
            parameters = {"infrastructure": "${infrastructure.id}"} if index else {}
            operation = _ADD if index else _CREATE
            shown.append(
                {"service": self.name, "operation": operation, "parameters": {**parameters, "radl": radl}}
            )
        return shown

    # --- renting -----------------------------------------------------------------------------------

    def acquire(self, cluster: str, request: NodeRequest) -> list[Node]:
        """See `Provider`. It waits a while for IM to have asked the cloud for all of them.

        Raises:
            ProviderError: IM is not done with it yet: to be asked again, which finds what was begun.
        """
        wanted = self._documents.wanted(cluster, request)
        system = wanted.system
        with self._memory.alone(cluster), Explained(wanted.cloud, [request.zone or wanted.cloud]):
            known = self._memory.of(cluster) or ClusterMemory(cluster)
            asked = known.asked.get(system)
            if asked is None or not asked.machines:
                known = self._asked(known, system, request, wanted.cloud)
        return [node for name, node in self._observed.named_nodes(known) if name == system]

    def _asked(self, known: ClusterMemory, system: str, request: NodeRequest, cloud: str) -> ClusterMemory:
        """Ask for the machines of a request, or look for those that were asked for; what is known then."""
        infrastructure, state = self._observed.present(known)
        repeated = known.asked.get(system)
        asked = replace(
            repeated
            or Asked(
                token=request.token,
                role=request.role,
                count=request.count,
                labels=dict(request.labels),
                place=request.zone or cloud,
                instance_type=request.instance_type,
                at=self._clock(),
            ),
            infrastructure=infrastructure,
        )
        known = replace(known, infrastructure=infrastructure, asked={**known.asked, system: asked})
        is_coming = (
            repeated is not None
            and state is not None
            and (_is_pending(state) or bool(self._observed.of_system(infrastructure, state, system)))
        )
        if not is_coming:  # or the call never got there
            radl = self._documents.document(known.cluster, request, self._clock())
            self._memory.put(replace(known, is_asked=True))
            known = self._sent(known, system, radl)
        return self._made(known, system, cloud)

    def _sent(self, known: ClusterMemory, system: str, radl: str) -> ClusterMemory:
        """Send a document: to the infrastructure, or for a new one."""
        asked = known.asked[system]
        try:
            if known.infrastructure:
                self._client.add(known.infrastructure, radl)
            else:
                asked = replace(asked, infrastructure=self._client.create(radl))
        except ImRefusedError:
            self._forget(known, system)  # IM says no: there is nothing
            raise
        known = replace(
            known,
            is_asked=True,
            infrastructure=asked.infrastructure,
            asked={**known.asked, system: asked},
        )
        self._memory.put(known)
        return known

    def _made(self, known: ClusterMemory, system: str, cloud: str) -> ClusterMemory:
        """Wait until the machines of a request are listed, all of them; else there are none of them."""
        asked, infrastructure = known.asked[system], known.infrastructure
        deadline = self._clock() + _MADE_S
        is_sure = False
        while True:
            state = self._observed.state_of(infrastructure)
            if state is None:
                self._forget(replace(known, infrastructure="", is_asked=False), system)
                raise ProviderError(
                    f"the infrastructure {infrastructure} was destroyed by somebody else while it was made",
                    "It is made again.",
                )
            mine = self._observed.of_system(infrastructure, state, system)
            is_first = len(mine) == len(state.machines)
            failed = any(state.machines[number] == "failed" for number in mine)
            if failed or (is_first and state.state in ("failed", "unconfigured") and len(mine) < asked.count):
                self._undo(known, system, mine, cloud, is_first=is_first)
            if len(mine) >= asked.count:
                break
            waited_s = self._clock() - asked.at
            if is_first and not is_sure and waited_s > _FORGOTTEN_S:
                self._give_up_forgotten(known, system)
                is_sure = True
            if waited_s > _STUCK_S:
                self._undo(known, system, mine, cloud, is_first=is_first)
            if self._clock() >= deadline:
                raise ProviderError(
                    f"Infrastructure Manager has {len(mine)} of {asked.count} machines in {cloud} so far",
                    "It is asked again.",
                )
            self._sleep(_LOOK_S)
        if surplus := mine[asked.count :]:  # of a call that was sent twice, as its answer was lost
            self._client.remove(infrastructure, surplus)
        done = replace(asked, machines=tuple(mine[: asked.count]))
        known = replace(known, asked={**known.asked, system: done})
        self._memory.put(known)
        return known

    def _undo(
        self, known: ClusterMemory, system: str, mine: Sequence[str], cloud: str, *, is_first: bool
    ) -> None:
        """Some could not be made: give back the others.

        Raises:
            TrainmasterError: always: why they could not.
        """
        asked, infrastructure = known.asked[system], known.infrastructure
        message = self._client.message(infrastructure)
        if is_first:
            self._destroy(infrastructure)
            known = replace(known, infrastructure="", is_asked=False)
        elif mine:
            self._client.remove(infrastructure, mine)
        self._forget(known, system)
        raise explained(message, cloud, [asked.place])

    def _give_up_forgotten(self, known: ClusterMemory, system: str) -> None:
        """IM destroys nothing that it is at work on; if it does, it was started anew and has forgotten it.

        Raises:
            ProviderError: it had; nothing of it is there any more.
        """
        try:
            self._client.destroy(known.infrastructure)
        except ImRefusedError as refused:
            if refused.status == 409:
                return
            if not refused.is_gone:
                raise
        self._destroy(known.infrastructure)
        self._forget(replace(known, infrastructure="", is_asked=False), system)
        raise ProviderError(
            f"Infrastructure Manager has stopped making {known.infrastructure}: it was started anew",
            "It is made again.",
        )

    def _forget(self, known: ClusterMemory, system: str) -> None:
        left = {name: each for name, each in known.asked.items() if name != system}
        if left or known.infrastructure:
            self._memory.put(replace(known, asked=left))
        else:
            self._memory.forget(known.cluster)

    # --- looking -----------------------------------------------------------------------------------

    def nodes(self, cluster: str) -> list[Node]:
        """See `Provider`. Those that IM has forgotten are gone, and known to be as long as the cluster is."""
        known = self._memory.of(cluster)
        return [] if known is None else [node for _, node in self._observed.named_nodes(known)]

    def renew(self, cluster: str, lease_s: float) -> None:
        """See `Provider`. The machines' own switch needs `renewal_command` over SSH: it must not need an API.

        This writes into the infrastructure until when it is wanted, for whoever reaps.
        """
        known = self._memory.of(cluster)
        for infrastructure in known.infrastructures if known else ():
            mark = Mark(self._home, cluster, self._clock() + lease_s)
            try:
                self._client.add(infrastructure, renewed(mark))
            except ImRefusedError as refused:
                if not refused.is_gone:
                    raise
                log.info("the lease of %s is not written down: %s", infrastructure, refused)

    # --- giving back -------------------------------------------------------------------------------

    def release(self, cluster: str, ids: Sequence[str] | None = None) -> None:
        """See `Provider`. With the whole cluster its networks and its security group go, too."""
        with self._memory.alone(cluster), Explained("", ()):
            known = self._memory.of(cluster)
            if known is None:
                return
            if ids is not None:
                self._remove(known, ids)
                return
            found = known.infrastructures
            if known.is_asked and not known.infrastructure:
                found += self._lost(cluster)
            for infrastructure in found:
                self._destroy(infrastructure)
            self._memory.forget(cluster)

    def reap(self, known: Sequence[str]) -> list[str]:
        """See `Provider`. Until when an infrastructure is wanted stands in its description."""
        ended = []
        before = self._clock() - _CLOCKS_DIFFER_S
        with Explained("", ()):
            lost = [
                (infrastructure, mark.cluster)
                for infrastructure, mark in self._observed.marked()
                if mark.cluster not in known and mark.until < before
            ]
            for infrastructure, cluster in lost:
                with self._memory.alone(cluster):
                    state = self._observed.state_of(infrastructure)
                    ended += [node_id(infrastructure, number) for number in (state.machines if state else ())]
                    self._destroy(infrastructure)
                    self._memory.forget(cluster)
        return ended

    def _remove(self, known: ClusterMemory, ids: Sequence[str]) -> None:
        for infrastructure in known.infrastructures:
            state = self._observed.state_of(infrastructure)
            numbers = [number_in(infrastructure, name) for name in ids]
            if there := [number for number in numbers if state is not None and number in state.machines]:
                self._client.remove(infrastructure, there)

    def _lost(self, cluster: str) -> list[str]:
        """Infrastructures of which the answer never came: IM shows the description a moment later."""
        for look in range(_LOOKS):
            if found := [each for each, mark in self._observed.marked() if mark.cluster == cluster]:
                return found
            self._sleep(_LOOK_S * 2**look)
        return []

    def _destroy(self, infrastructure: str) -> None:
        """Have it destroyed, and wait until it is.

        Raises:
            ProviderError: it is still there: to be asked again.
        """
        deadline = self._clock() + _GONE_S
        is_asked, pause_s = False, _SOON_S
        while (state := self._observed.state_of(infrastructure)) is not None:
            if state.state != "deleting":
                try:
                    # What goes wrong in the background is told to nobody: the second time it is waited for.
                    self._client.destroy(infrastructure, wait=is_asked)
                    is_asked = True
                except ImRefusedError as refused:
                    if refused.is_gone:
                        return
                    if refused.status != 409:  # machines are being added just now
                        raise ProviderError(
                            f"the infrastructure {infrastructure} cannot be destroyed: {refused.words}",
                            "It is tried again. If it goes on, end its machines in the cloud's own console.",
                        ) from None
            if self._clock() >= deadline:
                raise ProviderError(
                    f"Infrastructure Manager has not destroyed {infrastructure} yet", "It is asked again."
                )
            self._sleep(pause_s)
            pause_s = min(1.5 * pause_s, _LOOK_S)


def _is_pending(state: ImState) -> bool:
    """Whether IM is still making the first machines."""
    return state.state == "pending" and not state.machines
