"""`AwsProvider`: rents on EC2, and on whatever speaks its API.

What is rented bears the home's and the cluster's name as tags; nothing without the home's tag is ever
touched. A request is known to EC2 by a client token, and to the home by the zone that it was sent to, so that
a call that is repeated after a crash finds what the first one made.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

from trainmaster.providers.aws.client import AwsClient, AwsRefusedError
from trainmaster.providers.aws.errors import QuotaError
from trainmaster.providers.aws.images import AwsImages, is_gone
from trainmaster.providers.aws.ledger import AwsLedger
from trainmaster.providers.aws.nodes import (
    ENDED,
    instances_of,
    leased_until,
    node_of,
    notices_of,
    state_of,
    tags_of,
)
from trainmaster.providers.aws.preflight import AwsPreflight
from trainmaster.providers.aws.prerequisites import AwsPrerequisites
from trainmaster.providers.aws.requests import (
    ANY_ZONE,
    CLUSTER_TAG,
    LEASE_FORMAT,
    AwsRequest,
    AwsRequestBuilder,
    host_key_answers,
)
from trainmaster.providers.aws.settings import AwsSettings
from trainmaster.providers.aws.team_login import TEAM_LOGIN, settings_of
from trainmaster.providers.base import BakedImage, NoCapacityError, Node, NodeRequest, ProviderPlace
from trainmaster.providers.dead_man_switch import deadman_script
from trainmaster.providers.examining import Finding, clock_finding, unseen_drivers
from trainmaster.providers.ledger_provider import check_requests
from trainmaster.providers.next_offer import COOL_DOWN_S, CapacityFailure, zones_in_order
from trainmaster.spec.clocks import steady_s
from trainmaster.spec.errors import ProviderError, UsageError

__all__ = ["TEAM_LOGIN", "AwsProvider", "aws_provider", "lab_provider"]

log = logging.getLogger(__name__)

_SEND_AGAIN: Final = 3
#: A lab is on this machine: it answers at once.
_UP_S: Final = 2.0
#: How often a machine that was asked for before a crash is looked for before it is believed not to be there.
_LOOKS: Final = 3
#: Whatever EC2 does not show by then of machines that were asked for together has ended long ago.
_SHOWN_AFTER_S: Final = 60.0
#: A wait for machines to be gone looks at least every so many times the first pause.
_MOST_PAUSES: Final = 10


def aws_provider(place: ProviderPlace) -> AwsProvider:
    """``aws``: Amazon's, or what ``AWS_ENDPOINT_URL`` names."""
    return AwsProvider(settings_of(place), place)


def lab_provider(place: ProviderPlace) -> AwsProvider:
    """``lab``: the same, pointed at the lab of the home."""
    return AwsProvider(AwsSettings.from_lab(place.root / "lab"), place)


class AwsProvider:
    """See `Provider`. Threads may share it.

    Args:
        settings: how to rent.
        place: of the home.
        sleep: between looks.
        clock: gives Unix seconds; never set back.

    Attributes:
        name: ``aws`` or ``lab``.
        settings: how it rents.
    """

    def __init__(
        self,
        settings: AwsSettings,
        place: ProviderPlace,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = steady_s,
    ) -> None:
        if settings.placement_groups is None:
            settings = replace(settings, placement_groups=not settings.is_own_cloud)
        self.name = settings.name
        self.settings = settings
        self._sleep = sleep
        self._clock = clock
        self._memory = AwsLedger(place.directory(settings.name), place.saved)
        self._builder = AwsRequestBuilder(place.identity, settings)
        self._client = AwsClient(settings, sleep, clock)
        self._site = AwsPrerequisites(self._client, self._builder, self._memory)
        self._images = AwsImages(self._client, self._builder)
        self._failures: list[CapacityFailure] = []

    def close(self) -> None:
        """Close connections to AWS; it may be used again."""
        self._client.close()

    def preflight(self, requests: Sequence[NodeRequest]) -> list[str]:
        """See `Provider`."""
        checked = [self._checked(request) for request in requests]
        return AwsPreflight(self._client, self._builder, self._site).check(checked)

    def examine(self, builds: Mapping[str, str]) -> list[Finding]:
        """See `Examined`. A security group of ours lets the machines of a cluster reach each other."""
        found = AwsPreflight(self._client, self._builder, self._site).examine(self.name)
        return [*found, clock_finding(self._client.clock.ahead_s, "AWS"), *unseen_drivers(builds)]

    def dry_run(self, cluster: str, requests: Sequence[NodeRequest]) -> list[dict[str, Any]]:
        """See `Provider`. What depends on an answer is a reference there, such as ``${group.GroupId}``."""
        planned: list[AwsRequest] = []
        for request in map(self._checked, requests):
            zone = request.zone or ANY_ZONE
            steps = [
                self._builder.find_nodes(request.region, cluster, self._builder.token(request)),
                *self._site.plan(cluster, request, zone),
                self._run_request(cluster, request),
            ]
            # What is there already is not made again.
            planned += [step for step in steps if step not in planned]
        return [step.as_dict() for step in planned]

    def acquire(self, cluster: str, request: NodeRequest) -> list[Node]:
        """See `Provider`. Without a zone, the region's zones are tried, those that failed lately last."""
        request = self._checked(request)
        region, token = request.region, self._builder.token(request)
        self._memory.add_region(region)
        if found := self._find_all(region, cluster, token, request.count):
            return self._nodes(cluster, found, {})
        self._site.image(request)
        zones = self._zones(cluster, request)
        refusals: list[NoCapacityError] = []
        for zone in zones:
            try:
                return self._nodes(cluster, self._rent(cluster, request, zone), {})
            except QuotaError as error:
                self._failed(request, "")
                raise QuotaError(error.args[0], error.hint, self._site.zones(region)) from None
            except NoCapacityError as error:
                self._failed(request, zone)
                refusals.append(error)
        if len(zones) == 1:
            raise refusals[0]
        raise NoCapacityError(
            f"no capacity for {request.count} {request.instance_type} {'spot ' if request.spot else ''}in "
            f"any zone of {region}: {refusals[-1].args[0]}",
            "Another region, type or time may help.",
            zones,
        )

    def nodes(self, cluster: str) -> list[Node]:
        """See `Provider`. EC2 forgets a machine about an hour after its end."""
        found: list[Node] = []
        for region in self._memory.regions():
            instances = list(self._instances(region, cluster))
            found += self._nodes(cluster, instances, self._notices(region, instances))
        return found

    def console(self, cluster: str, id: str) -> str:
        """See `Provider`. EC2 keeps the last 64 KB, for about an hour after its end."""
        for region in self._memory.regions():
            asked = AwsRequest("GetConsoleOutput", {"InstanceId": id}, region)
            try:
                return str(self._client.try_call(asked, settle=False).get("Output") or "")
            except AwsRefusedError as refused:
                if not refused.code.startswith("InvalidInstanceID"):
                    raise refused.explained() from None
        return ""

    def renew(self, cluster: str, lease_s: float) -> None:
        """See `Provider`. The machines' own switch needs `renewal_command` over SSH: it must not need an API.

        This lets SSH in from where we are now, if we have moved, and writes down for people until when they
        live.
        """
        for region in self._memory.regions():
            live = [
                str(one["InstanceId"])
                for one in self._instances(region, cluster)
                if state_of(one) not in ENDED
            ]
            if not live:
                continue
            self._site.open_again(cluster, region)
            # By EC2's clock, as what reaps reads it: other clocks may differ from ours by hours.
            until = datetime.fromtimestamp(self._client.clock.now() + lease_s, UTC).strftime(LEASE_FORMAT)
            try:
                self._client.try_call(self._builder.tag_lease(region, live, until), settle=False)
            except AwsRefusedError as refused:
                log.info("the lease of %s is not written down: %s", cluster, refused)

    def release(self, cluster: str, ids: Sequence[str] | None = None) -> None:
        """See `Provider`. Of a whole cluster, its groups and its key pair are removed, too."""
        regions = self._memory.regions()
        if ids is not None:
            for region in regions:
                self._end(
                    region, [one for one in self._instances(region, cluster) if one["InstanceId"] in ids]
                )
            return
        self._wait_until_seen(cluster, regions)
        deadline = self._clock() + self.settings.release_patience_s
        pause_s = self.settings.backoff_s
        while not self._is_released(cluster, regions):
            if self._clock() >= deadline:
                log.warning(
                    "%s: machines are ended, but something is still in use; a later reap removes it", cluster
                )
                return
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_PAUSES * self.settings.backoff_s)
        self._memory.forget(cluster)

    def check_settings(self) -> None:
        """Refuse to go on without credentials; they are not verified.

        Raises:
            UsageError: there are none.
        """
        self._client.require_keys()

    def check_up(self) -> None:
        """Refuse a lab that does not answer, at once.

        Raises:
            UsageError: it is down.
        """
        if self.settings.facts_file is None:
            return
        place = urlsplit(self.settings.endpoint_url)
        try:
            socket.create_connection((place.hostname or "", place.port or 80), _UP_S).close()
        except OSError:
            raise UsageError(
                f"the lab does not answer at {self.settings.endpoint_url}",
                "Put it up: `trainmaster lab up`. Nothing was started.",
            ) from None

    def reap(self, known: Sequence[str]) -> list[str]:
        """See `Provider`. Other homes keep theirs; what lost clusters stood on is removed, too.

        A copy of the home has its name and its key, and does not know of runs since it was made.
        """
        ended: list[str] = []
        for region in self._memory.regions():
            unknown = [one for one in self._instances(region) if tags_of(one).get(CLUSTER_TAG) not in known]
            now = self._client.clock.now()
            lost = [one for one in unknown if leased_until(one) < now]
            ended += self._end(region, lost)
            held = {
                tags_of(one).get(CLUSTER_TAG, "")
                for one in unknown
                if one not in lost and state_of(one) not in ENDED
            }
            kinds = ["SecurityGroups", "KeyPairs"] + ["PlacementGroups"] * bool(
                self.settings.placement_groups
            )
            clusters = {
                tags_of(thing).get(CLUSTER_TAG, "")
                for kind in kinds
                for thing in self._site.leftovers(region, kind)
            }
            for cluster in sorted(clusters - {*known, *held, ""}):
                if self._site.remove(cluster, region):
                    self._memory.forget(cluster)
        return ended

    # --- images ------------------------------------------------------------------------------------

    def bake(self, cluster: str, node: str, image: BakedImage) -> BakedImage:
        """See `Baker`."""
        for region in self._memory.regions():
            for one in self._instances(region, cluster):
                if one["InstanceId"] == node:
                    return self._images.bake(cluster, one, replace(image, region=region))
        raise ProviderError(f"{node} is no machine of {cluster} any more", "Build the image again.")

    def images(self) -> list[BakedImage]:
        """See `Baker`."""
        return self._images.all(self._memory.regions())

    def remove_image(self, image: str) -> bool:
        """See `Baker`."""
        mine = [one for one in self.images() if one.id == image]
        for one in mine:
            self._images.remove(one)
        return bool(mine)

    # --- renting -----------------------------------------------------------------------------------

    def _checked(self, request: NodeRequest) -> NodeRequest:
        check_requests(self.name, [request])
        if not request.instance_type:
            raise UsageError(
                f"no instance type for the role {request.role!r}",
                "Name one with `hardware.instance` in the recipe.",
            )
        return replace(request, region=request.region or self._client.region)

    def _run_request(self, cluster: str, request: NodeRequest) -> AwsRequest:
        script = deadman_script(request.lease_s, self._builder.image(request).user)
        return self._builder.run(cluster, request, request.zone or ANY_ZONE, script)

    def _zones(self, cluster: str, request: NodeRequest) -> list[str]:
        if request.zone:
            return [request.zone]
        zones = zones_in_order(self._site.zones(request.region), self._failures, self._clock())
        before = self._memory.attempt(cluster, self._builder.token(request))
        # A call whose answer was lost is repeated as it was.
        return sorted(zones, key=lambda zone: zone != before)

    def _rent(self, cluster: str, request: NodeRequest, zone: str) -> list[Mapping[str, Any]]:
        region, token = request.region, self._builder.token(request)
        run = self._run_request(cluster, request)
        for _ in range(_SEND_AGAIN):
            answers = {
                **self._site.prepare(cluster, replace(request, zone=zone), zone),
                "subnet.AvailabilityZone": zone,
                "subnet.ClientToken": self._builder.client_token(cluster, request, zone),
                **host_key_answers(*self._memory.host_key(cluster, token)),
            }
            self._memory.set_attempt(cluster, token, zone)
            try:
                return instances_of(self._client.try_call(run.resolved(answers)))
            except AwsRefusedError as refused:
                if refused.code == "IdempotentParameterMismatch":
                    # An earlier call with this token did it, with an older image, say.
                    return self._look_for(region, cluster, token, request.count, refused)
                self._memory.set_attempt(cluster, token, "")
                error = refused.explained([zone])
                if request.content and is_gone(refused):  # since it was chosen somebody has removed it
                    request = replace(request, content=())
                    continue
                if not refused.code.startswith(("InvalidGroup", "InvalidKeyPair", "InvalidPlacementGroup")):
                    raise error from None
                self._site.forget(cluster)  # somebody removed them: made again
        raise error

    def _look_for(
        self, region: str, cluster: str, token: str, asked: int, refused: AwsRefusedError
    ) -> list[Mapping[str, Any]]:
        for look in range(_LOOKS):
            if found := self._find_all(region, cluster, token, asked):
                return found
            self._sleep(self.settings.backoff_s * 2**look)
        raise ProviderError(
            f"AWS has rented machines for {cluster} in {region} already, but does not show them: "
            f"{refused.message}",
            "Try again in a minute.",
        )

    def _failed(self, request: NodeRequest, zone: str) -> None:
        now = self._clock()
        self._failures = [one for one in self._failures if now < one.at + COOL_DOWN_S]
        self._failures.append(CapacityFailure(request.region, zone, request.spot, now, request.instance_type))

    # --- looking -----------------------------------------------------------------------------------

    def _instances(self, region: str, cluster: str = "", token: str = "") -> Iterator[Mapping[str, Any]]:
        for page in self._client.pages(self._builder.find_nodes(region, cluster, token)):
            yield from instances_of(page)

    def _find_all(self, region: str, cluster: str, token: str, asked: int) -> list[Mapping[str, Any]]:
        """What a token has made: all or nothing, but EC2 shows some of them seconds later than others.

        Raises:
            ProviderError: some are not shown yet; it is to be asked again.
        """
        found = list(self._instances(region, cluster, token))
        latest = max((one["LaunchTime"].timestamp() for one in found), default=0.0)
        if 0 < len(found) < asked and self._client.clock.now() - latest < _SHOWN_AFTER_S:
            raise ProviderError(
                f"AWS shows {len(found)} of {asked} machines that were asked for together in {region}",
                "Try again in a minute.",
            )
        return found

    def _notices(self, region: str, instances: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        rented = [
            str(one["InstanceId"])
            for one in instances
            if one.get("InstanceLifecycle") == "spot" and state_of(one) not in ENDED
        ]
        if not rented:
            return {}
        try:
            return notices_of(self._client.try_call(self._builder.find_notices(region, rented)))
        except AwsRefusedError as refused:
            log.warning("whether spot machines of %s will be taken back is not told: %s", region, refused)
            return {}

    def _nodes(
        self, cluster: str, instances: Sequence[Mapping[str, Any]], notices: Mapping[str, float]
    ) -> list[Node]:
        return [
            node_of(
                one,
                cluster=cluster,
                user=self._user(one),
                key=self._memory.private_key,
                leaves_at=notices.get(str(one["InstanceId"])),
                ahead_s=self._client.clock.ahead_s,
                inside_vpc=self.settings.inside_vpc,
            )
            for one in instances
        ]

    def _user(self, instance: Mapping[str, Any]) -> str:
        asked = NodeRequest("", 1, str(instance.get("InstanceType", "")))
        return self._builder.image(asked).user

    # --- giving back -------------------------------------------------------------------------------

    def _end(self, region: str, instances: Sequence[Mapping[str, Any]]) -> list[str]:
        live = [str(one["InstanceId"]) for one in instances if state_of(one) not in ENDED]
        if live:
            self._client.call(AwsRequest("TerminateInstances", {"InstanceIds": live}, region))
        return live

    def _wait_until_seen(self, cluster: str, regions: Sequence[str]) -> None:
        """EC2 shows a new machine some seconds late; what a crashed call has made must not be overlooked."""
        for look in range(_LOOKS):
            shown = {
                tags_of(one).get("trainmaster:token")
                for region in regions
                for one in self._instances(region, cluster)
            }
            if shown >= set(self._memory.attempts(cluster)):
                return
            self._sleep(self.settings.backoff_s * 2**look)

    def _is_released(self, cluster: str, regions: Sequence[str]) -> bool:
        """End what still runs; remove what is unused; whether nothing is left."""
        done = True
        for region in regions:
            instances = list(self._instances(region, cluster))
            self._end(region, instances)
            if all(state_of(one) == "terminated" for one in instances):
                done &= self._site.remove(cluster, region)
            else:
                done = False
        return done
