"""A cloud in memory that speaks as EC2 does: machines, a spot market, tags, outages, and a bill of its own.

`AwsProvider` is real down to the call of boto3's method; what answers is `Ec2`. Only the cloud itself
reckons the bill, so what the project thinks that it owes can be compared with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from botocore.exceptions import ClientError, EndpointConnectionError

from trainmaster.dataclass import dataclass, field
from trainmaster.providers.aws.nodes import NOTICE_S
from trainmaster.providers.aws.provider import AwsProvider
from trainmaster.providers.aws.requests import CLUSTER_TAG, HOME_TAG
from trainmaster.providers.aws.settings import AwsSettings
from trainmaster.providers.dead_man_switch import end_command
from trainmaster.testing.simulated_host import _working
from trainmaster.testing.simulated_world import ViolationError, World

if TYPE_CHECKING:
    from trainmaster.testing.simulated_host import SimulatedProcess

TYPE: Final = "m4.large"
REGION: Final = "us-east-1"
ZONES: Final = ("us-east-1a", "us-east-1b")
#: Less is never billed.
MINIMUM_S: Final = 60.0
#: On demand costs so many times what spot costs when a plan is made: no spot machine ever costs more.
ON_DEMAND: Final = 2.5
_HOUR_S: Final = 3600.0
_GIB_MONTH_USD: Final = 0.08
_ADDRESS_USD_PER_HOUR: Final = 0.005
_MONTH_HOURS: Final = 730.0
#: Amazon forgets a machine so long after its end.
_FORGETS_S: Final = 3600.0
#: From the decision to switch off to being off.
_SHUTDOWN_S: Final = 10.0
_TICK_S: Final = 5.0
#: A request whose sender's clock is further off is refused by Amazon.
SKEW_S: Final = 300.0
#: A driver that rents more machines than any schedule needs, gives them back for no reason.
_MOST_MACHINES: Final = 100
_FIRST_LEASE: Final = re.compile(r"first=\$\(\(now \+ (\d+)\)\)")
_RENEWAL: Final = re.compile(r"\+ (\d+)\)\) > lease\.")


@dataclass(slots=True)
class Instance:
    """A rented machine.

    Attributes:
        tags: by name.
        usd_per_hour: on demand; spot is billed by the market.
        max_usd_per_hour: what a spot machine may cost at most.
        disk_bytes: of its root disk.
        started_at, ready_at, ended_at: true time.
        lease_until: true time at which it ends itself.
        why: it ended.
        leaves_at: when the cloud takes it back.
        cut_until: it is out of reach until then.
    """

    id: str
    zone: str
    spot: bool
    tags: dict[str, str]
    usd_per_hour: float
    max_usd_per_hour: float
    disk_bytes: int
    started_at: float
    ready_at: float
    shown_at: float
    lease_until: float
    ended_at: float | None = None
    why: str = ""
    leaves_at: float | None = None
    told_at: float | None = None
    cut_until: float = 0.0

    @property
    def address(self) -> str:
        """Private and public."""
        return f"10.0.{int(self.id[2:]) // 250}.{int(self.id[2:]) % 250}"


class SimulatedCloud:
    """One account in one region.

    Args:
        world: its time.
        on_end: is called for each machine that ended, with the reason.

    Attributes:
        instances: all that there ever were, by id.
        away_until: the API is silent until then.
        throttled_until: the same, in other words.
        keys_expired_until: it refuses all credentials until then.
        empty_until: by zone, until when there is no capacity.
        spot_usd_per_hour: what the market asked when plans were made.
        most_skew_s: a request whose sender's clock is further off is refused; not all look at that.
    """

    def __init__(self, world: World, on_end: Callable[[Instance], None]) -> None:
        self.world = world
        self.instances: dict[str, Instance] = {}
        self.away_until = self.throttled_until = self.keys_expired_until = 0.0
        self.empty_until: dict[str, float] = {}
        self.spot_usd_per_hour = 1.0
        self.most_skew_s = SKEW_S
        self._on_end = on_end
        self._by_token: dict[str, list[Instance]] = {}
        self._market: list[tuple[float, float]] = [(world.now, 1.0)]

    # --- the market and the bill ---------------------------------------------------------------------

    def move_market(self, factor: float) -> None:
        """From now on spot costs so many times what it cost when plans were made; some machines go."""
        self._market.append((self.world.now, factor))
        self.world.note(f"spot costs {factor:.2f} times its price")
        price = self.spot_usd_per_hour * factor
        for one in self.live():
            if one.spot and one.leaves_at is None and price > one.max_usd_per_hour + 1e-9:
                self.take_back(one)

    def bill_usd(self, clusters: Callable[[str], bool] = lambda _: True) -> float:
        """What Amazon bills until now for machines of clusters, by their ids."""
        return sum(self.billed_usd(one) for one in self.instances.values() if clusters(one.tags[CLUSTER_TAG]))

    def billed_usd(self, one: Instance) -> float:
        """What is billed until now for a machine."""
        until = max(self.world.now if one.ended_at is None else one.ended_at, one.started_at + MINIMUM_S)
        hours = (until - one.started_at) / _HOUR_S
        fixed = one.disk_bytes / 2**30 * _GIB_MONTH_USD / _MONTH_HOURS + _ADDRESS_USD_PER_HOUR
        if not one.spot:
            return hours * (one.usd_per_hour + fixed)
        total = hours * fixed
        for (since, factor), (before, _) in zip(
            self._market, [*self._market[1:], (float("inf"), 0.0)], strict=True
        ):
            overlap_s = min(until, before) - max(one.started_at, since)
            if overlap_s > 0:
                price = min(self.spot_usd_per_hour * factor, one.max_usd_per_hour, one.usd_per_hour)
                total += overlap_s / _HOUR_S * price
        return total

    # --- machines ----------------------------------------------------------------------------------------

    def live(self) -> Iterator[Instance]:
        """Machines that are billed."""
        return (one for one in list(self.instances.values()) if one.ended_at is None)

    def end(self, one: Instance, why: str) -> None:
        """A machine ends; its processes with it."""
        if one.ended_at is not None:
            return
        one.ended_at, one.why = self.world.now, why
        self.world.note(f"{one.id} ends: {why}")
        self._on_end(one)

    def take_back(self, one: Instance) -> None:
        """Announce that a spot machine is taken back, and do so."""
        if one.ended_at is None and one.leaves_at is None:
            one.told_at, one.leaves_at = self.world.now, self.world.now + NOTICE_S
            self.world.note(f"{one.id} is to be taken back")
            self.world.after(NOTICE_S, lambda: self.end(one, "Server.SpotInstanceTermination"))

    def reaches(self, machine: str) -> Instance | None:
        """The machine, if somebody who logs in there gets an answer."""
        one = self.instances.get(machine)
        if one is None or one.ended_at is not None:
            return None
        return one if max(one.ready_at, one.cut_until) <= self.world.now else None

    def renew(self, one: Instance, lease_s: float) -> None:
        """Its lease file was written again."""
        is_shorter = self.world.now + lease_s < one.lease_until
        one.lease_until = self.world.now + lease_s
        if is_shorter:  # the switch looks every few seconds, not only when the earlier one would be over
            self._watch(one)

    def command(self, machine: str, command: str) -> SimpleNamespace | None:
        """What a shell command there gives; None without an answer."""
        one = self.reaches(machine)
        if one is None:
            return None
        if found := _RENEWAL.search(command):
            self.renew(one, float(found[1]))
        elif command == end_command():
            self.world.after(
                2 * _TICK_S + _SHUTDOWN_S, lambda: self.end(one, "Client.InstanceInitiatedShutdown")
            )
        return SimpleNamespace(code=0, out="", last_words="")

    def _watch(self, one: Instance) -> None:
        """The dead-man switch: it looks every few seconds, by the machine's own uptime."""
        if one.ended_at is not None:
            return
        left_s = one.lease_until - self.world.now
        if left_s >= 0:
            self.world.after(left_s + _TICK_S, lambda: self._watch(one))
        else:
            self.world.after(_SHUTDOWN_S, lambda: self.end(one, "Client.InstanceInitiatedShutdown"))

    # --- what the API does ---------------------------------------------------------------------------------

    def refuse(self, operation: str) -> None:
        """Raise what a call gets while the API is away, throttled, or refuses the credentials."""
        now = self.world.now
        if now < self.away_until:
            raise EndpointConnectionError(endpoint_url="https://ec2.us-east-1.amazonaws.com")
        if now < self.throttled_until:
            raise _error(operation, "RequestLimitExceeded", "Request limit exceeded.", 503)
        if _working and abs(_working[-1].host.ahead_s) > self.most_skew_s:
            raise _error(operation, "RequestExpired", "Request has expired.", 400)
        if now < self.keys_expired_until:
            raise _error(
                operation, "ExpiredToken", "The security token included in the request is expired", 400
            )

    def rent(self, asked: Mapping[str, Any]) -> list[Instance]:
        """RunInstances: all or none, once per token."""
        token = asked["ClientToken"]
        if token in self._by_token:
            return self._by_token[token]
        zone = asked["Placement"]["AvailabilityZone"]
        spot = "InstanceMarketOptions" in asked
        if self.world.now < self.empty_until.get(zone, 0.0):
            raise _error("RunInstances", "InsufficientInstanceCapacity", f"none in {zone}", 500)
        price = self.spot_usd_per_hour * self._market[-1][1]
        on_demand = self.spot_usd_per_hour * ON_DEMAND
        options = asked.get("InstanceMarketOptions", {}).get("SpotOptions", {})
        most = float(options.get("MaxPrice", on_demand))
        if spot and price > most + 1e-9:
            raise _error("RunInstances", "SpotMaxPriceTooLow", f"the price is {price}", 400)
        lease = _FIRST_LEASE.search(asked["UserData"])
        if lease is None or asked["InstanceInitiatedShutdownBehavior"] != "terminate":
            raise ViolationError("a machine is rented without a dead-man switch")
        tags = {tag["Key"]: tag["Value"] for tag in asked["TagSpecifications"][0]["Tags"]}
        found = []
        for _ in range(asked["MaxCount"]):
            now, rng = self.world.now, self.world.rng
            ready_at = now + rng.uniform(20, 60)
            one = Instance(
                f"i-{len(self.instances)}",
                zone,
                spot,
                dict(tags),
                on_demand,
                most,
                asked["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] * 2**30,
                now,
                ready_at,
                now + rng.choice((0.0, 0.0, 6.0)),
                ready_at + float(lease[1]),
            )
            self.instances[one.id] = one
            self.world.note(f"{one.id} is rented in {zone} for {tags[CLUSTER_TAG]}")
            self.world.after(ready_at - now, lambda one=one: self._watch(one))  # type: ignore[misc]
            found.append(one)
        self._by_token[token] = found
        if len(self.instances) > _MOST_MACHINES:
            self.world.fail(f"{len(self.instances)} machines were rented")
        return found

    def shown(self, filters: Sequence[Mapping[str, Any]]) -> list[Instance]:
        """DescribeInstances."""
        wanted = {one["Name"].removeprefix("tag:"): one["Values"] for one in filters}
        now = self.world.now
        return [
            one
            for one in self.instances.values()
            if one.shown_at <= now
            and (one.ended_at is None or now - one.ended_at < _FORGETS_S)
            and all(one.tags.get(name) in values for name, values in wanted.items())
        ]


class Ec2:
    """What boto3's client of EC2 is, as far as renting goes."""

    def __init__(self, cloud: SimulatedCloud) -> None:
        self._cloud = cloud

    def close(self) -> None:
        """Nothing is open."""

    def describe_instances(self, Filters: Sequence[Mapping[str, Any]]) -> dict[str, Any]:  # noqa: N803 - Amazon's
        """Machines by tags."""
        self._cloud.refuse("DescribeInstances")
        return self._answer(Instances=[self._told(one) for one in self._cloud.shown(Filters)])

    def describe_spot_instance_requests(self, Filters: Sequence[Mapping[str, Any]]) -> dict[str, Any]:  # noqa: N803
        """Which are to be taken back."""
        self._cloud.refuse("DescribeSpotInstanceRequests")
        found = [self._cloud.instances[name] for name in Filters[0]["Values"]]
        told = [
            {
                "InstanceId": one.id,
                "Status": {"Code": "marked-for-termination", "UpdateTime": _date(one.told_at)},
            }
            for one in found
            if one.told_at is not None
        ]
        return self._answer(SpotInstanceRequests=told)

    def run_instances(self, **asked: Any) -> dict[str, Any]:  # noqa: ANN401 - Amazon's
        """Rent."""
        self._cloud.refuse("RunInstances")
        return self._answer(Instances=[self._told(one) for one in self._cloud.rent(asked)])

    def create_tags(self, Resources: Sequence[str], Tags: Sequence[Mapping[str, str]]) -> dict[str, Any]:  # noqa: N803
        """Such as until when a lease is."""
        self._cloud.refuse("CreateTags")
        for name in Resources:
            self._cloud.instances[name].tags.update({tag["Key"]: tag["Value"] for tag in Tags})
        return self._answer()

    def terminate_instances(self, InstanceIds: Sequence[str]) -> dict[str, Any]:  # noqa: N803
        """Give back."""
        self._cloud.refuse("TerminateInstances")
        for name in InstanceIds:
            self._cloud.end(self._cloud.instances[name], "Client.UserInitiatedShutdown")
        return self._answer()

    def _answer(self, **said: Any) -> dict[str, Any]:  # noqa: ANN401 - Amazon's
        date = format_datetime(_date(self._cloud.world.now), usegmt=True)
        return {**said, "ResponseMetadata": {"HTTPHeaders": {"date": date}}}

    def _told(self, one: Instance) -> dict[str, Any]:
        now = self._cloud.world.now
        state = "terminated" if one.ended_at is not None else "running" if one.ready_at <= now else "pending"
        told: dict[str, Any] = {
            "InstanceId": one.id,
            "InstanceType": TYPE,
            "State": {"Name": state},
            "Tags": [{"Key": key, "Value": value} for key, value in one.tags.items()],
            "PrivateIpAddress": one.address,
            "PublicIpAddress": one.address,
            "Placement": {"AvailabilityZone": one.zone},
            "LaunchTime": _date(one.started_at),
        }
        if one.spot:
            told["InstanceLifecycle"] = "spot"
        if one.ended_at is not None:
            ended = datetime.fromtimestamp(one.ended_at, UTC).strftime("%Y-%m-%d %H:%M:%S")
            told["StateTransitionReason"] = f"{one.why} ({ended} GMT)"
            told["StateReason"] = {"Code": one.why}
        return told


@dataclass
class ProviderMemory:
    """What `AwsLedger` keeps in the home, without a disk."""

    private_key: Path = Path("/nonexistent/key")
    zones: dict[tuple[str, str], str] = field(default_factory=dict)
    known: list[str] = field(default_factory=list)

    def regions(self) -> list[str]:
        """See `AwsLedger.regions`."""
        return self.known

    def add_region(self, region: str) -> None:
        """See `AwsLedger.add_region`."""
        self.known = [region]

    def attempt(self, cluster: str, token: str) -> str:
        """See `AwsLedger.attempt`."""
        return self.zones.get((cluster, token), "")

    def set_attempt(self, cluster: str, token: str, zone: str) -> None:
        """See `AwsLedger.set_attempt`."""
        self.zones[cluster, token] = zone

    def attempts(self, cluster: str) -> list[str]:
        """See `AwsLedger.attempts`."""
        return [token for (of, token), zone in self.zones.items() if of == cluster and zone]

    def host_key(self, cluster: str, token: str) -> tuple[str, str]:
        """See `AwsLedger.host_key`."""
        return "begin\nprivate\nend", "ssh-ed25519 AAAA"

    def forget(self, cluster: str) -> None:
        """See `AwsLedger.forget`."""
        self.zones = {key: zone for key, zone in self.zones.items() if key[0] != cluster}


class _Site:
    """Images, networks and groups, which have nothing to do with time."""

    def __init__(self, cloud: SimulatedCloud) -> None:
        self._cloud = cloud

    def zones(self, _: str) -> list[str]:
        return list(ZONES)

    def image(self, _: object) -> dict[str, str]:
        return {"image.ImageId": "ami-1", "image.RootDeviceName": "/dev/xvda"}

    def prepare(self, *_: object) -> dict[str, str]:
        self._cloud.refuse("CreateSecurityGroup")
        return {**self.image(0), "subnet.SubnetId": "s", "subnet.VpcId": "v", "group.GroupId": "g"}

    def forget(self, _: str) -> None: ...

    def open_again(self, *_: object) -> None: ...

    def remove(self, *_: object) -> bool:
        return True

    def leftovers(self, *_: object) -> list[Mapping[str, Any]]:
        return []


def provider_of(
    cloud: SimulatedCloud, process: SimulatedProcess, home: str, memory: ProviderMemory
) -> AwsProvider:
    """The real provider of a home, as a process has it.

    Args:
        cloud: that answers it.
        process: whose clock it looks at.
        home: identity of the home, which is in the tags.
        memory: of the home.
    """
    settings = AwsSettings(region=REGION, ssh_from="10.0.0.0/8", attempts=1, placement_groups=False)
    nowhere = Path("/nonexistent")
    place = SimpleNamespace(identity=home, directory=lambda _: nowhere, saved=lambda: None)
    provider = AwsProvider(
        settings, cast("Any", place), sleep=lambda _: None, **process.clocks_of(AwsProvider)
    )
    provider._memory = cast("Any", memory)
    provider._site = cast("Any", _Site(cloud))
    ec2, client = Ec2(cloud), cast("Any", provider._client)
    session = SimpleNamespace(
        get_available_partitions=lambda: ["aws"], get_available_regions=lambda *_: [REGION]
    )
    client._client, client._boto = lambda *_: ec2, lambda: session
    return provider


def _error(operation: str, code: str, message: str, status: int) -> ClientError:
    answer = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(cast("Any", answer), operation)


def _date(seconds: float | None) -> datetime:
    return datetime.fromtimestamp(seconds or 0.0, UTC)


def home_of(one: Instance) -> str:
    """Identity of the home that has rented a machine."""
    return one.tags[HOME_TAG]
