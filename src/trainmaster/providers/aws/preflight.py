"""What EC2 would refuse later, found before anything costs: types, images, networks, permissions, quotas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from trainmaster.providers.aws.client import AwsClient, AwsRefusedError
from trainmaster.providers.aws.errors import QuotaError
from trainmaster.providers.aws.facts import quota_code
from trainmaster.providers.aws.nodes import cores_of, instances_of
from trainmaster.providers.aws.prerequisites import AwsPrerequisites
from trainmaster.providers.aws.requests import AwsRequest, AwsRequestBuilder
from trainmaster.providers.base import NodeRequest
from trainmaster.providers.examining import Finding, found_by
from trainmaster.spec.errors import ProviderError, UsageError

_WOULD_WORK: Final = "DryRunOperation"
#: Of a cluster that is never made.
_CLUSTER: Final = "preflight"
#: A type of each kind that has a quota of its own, by what people call it.
_EXAMPLES: Final = {"standard": "m5.large", "G and VT": "g5.xlarge", "P": "p3.2xlarge"}


class AwsPreflight:
    """The checks. None of them changes anything.

    Args:
        client: to AWS.
        builder: of requests.
        site: finds images and networks.
    """

    def __init__(self, client: AwsClient, builder: AwsRequestBuilder, site: AwsPrerequisites) -> None:
        self._client = client
        self._builder = builder
        self._site = site

    def check(self, requests: Sequence[NodeRequest]) -> list[str]:
        """Refuse what cannot be rented; notes about what could not be looked at.

        Args:
            requests: each with its region.

        Raises:
            UsageError: a type, zone, image, network or permission is missing.
            QuotaError: more than the account may have.
        """
        asked: set[tuple[object, ...]] = set()
        for request in requests:
            self._check_type(request)
            self._site.image(request)
            zone = request.zone or self._site.zones(request.region)[0]
            answers = {**self._site.image(request), **self._site.subnet(request.region, zone)}
            # What differs in nothing that permissions look at is asked once.
            placement = self._builder.wants_placement(request)
            kind = (request.region, request.instance_type, request.spot, placement)
            if kind not in asked:
                asked.add(kind)
                self._check_permissions(request, zone, answers)
        return self._check_quotas(requests)

    def examine(self, name: str) -> list[Finding]:
        """What the account may have in the region that is asked when nothing names one.

        Args:
            name: of the provider.

        Raises:
            TrainmasterError: credentials are not taken, or there is no region.
        """
        region = self._client.region
        zones = self._site.zones(region)
        request = NodeRequest("worker", 1, _EXAMPLES["standard"], region)

        def check_rights() -> None:
            answers = {**self._site.image(request), **self._site.subnet(region, zones[0])}
            self._check_permissions(request, zones[0], answers)

        found = [
            Finding("login", f"{name} takes the credentials"),
            Finding("network", f"{region}: subnets in {', '.join(zones)}"),
            found_by(check_rights, "rights", f"{region}: machines and what they stand on may be made"),
        ]
        for kind, example in _EXAMPLES.items():
            for spot in (False, True):
                code, how = quota_code(example, spot=spot), "spot" if spot else "on demand"
                quota = self._quota(region, code)
                if isinstance(quota, str):
                    found.append(Finding("quota", f"{region}, {kind}, {how}: not to be read ({quota})"))
                else:
                    used = self._used(region, code) if quota else 0
                    words = f"{region}, {kind}, {how}: {used} of {quota:g} vCPUs are used"
                    advice = "" if quota else f"None until you ask for them: quota {code} in Service Quotas."
                    found.append(Finding("quota", words, advice=advice))
        return found

    def _quota(self, region: str, code: str) -> float | str:
        """VCPUs that the account may have; why that is not to be read."""
        call = AwsRequest(
            "GetServiceQuota", {"ServiceCode": "ec2", "QuotaCode": code}, region, "service-quotas"
        )
        try:
            return float(self._client.try_call(call)["Quota"]["Value"])
        except (AwsRefusedError, ProviderError, KeyError) as error:
            return error.code if isinstance(error, AwsRefusedError) else type(error).__name__

    def _check_type(self, request: NodeRequest) -> None:
        wanted = {"Filters": [{"Name": "instance-type", "Values": [request.instance_type]}]}
        call = AwsRequest(
            "DescribeInstanceTypeOfferings", {"LocationType": "availability-zone", **wanted}, request.region
        )
        pages = self._client.pages(call)
        zones = sorted({offer["Location"] for page in pages for offer in page["InstanceTypeOfferings"]})
        if not zones:
            raise UsageError(
                f"AWS has no instance type {request.instance_type!r} in {request.region}",
                "Take another type or region: `trainmaster offers` lists them.",
            )
        if request.zone and request.zone not in zones:
            raise UsageError(
                f"AWS has no {request.instance_type} in {request.zone}", f"It is in {', '.join(zones)}."
            )

    def _check_permissions(self, request: NodeRequest, zone: str, answers: Mapping[str, str]) -> None:
        for call in self._builder.permission_checks(_CLUSTER, request, zone):
            try:
                self._client.try_call(call.resolved(answers))
            except AwsRefusedError as refused:
                # Whatever is there already by that name is fine, too: we were let in.
                if refused.code == _WOULD_WORK or refused.code.endswith(".Duplicate"):
                    continue
                raise refused.explained([zone]) from None

    def _check_quotas(self, requests: Sequence[NodeRequest]) -> list[str]:
        wanted: dict[tuple[str, str], int] = defaultdict(int)
        kinds: dict[tuple[str, str], str] = {}
        notes: list[str] = []
        for request in requests:
            code = quota_code(request.instance_type, spot=request.spot)
            if not code:
                notes.append(f"which quota {request.instance_type} counts against is not known; not checked")
                continue
            bucket = (request.region, code)
            wanted[bucket] += request.count * self._vcpus(request.region, request.instance_type)
            kinds[bucket] = f"{request.instance_type} {'spot' if request.spot else 'on demand'}"
        for (region, code), vcpus in wanted.items():
            quota = self._quota(region, code)
            if isinstance(quota, str):
                notes.append(f"the quota {code} in {region} could not be read ({quota}); not checked")
                continue
            used = self._used(region, code)
            if used + vcpus > quota:
                raise QuotaError(
                    f"{vcpus} vCPUs are wanted in {region} ({kinds[region, code]}), but the account may "
                    f"have {quota:g} and uses {used}",
                    f"Ask for more: quota {code} in the console under Service Quotas. Or take another "
                    "region, fewer or smaller machines.",
                    self._site.zones(region),
                )
        return notes

    def _vcpus(self, region: str, instance_type: str) -> int:
        call = AwsRequest("DescribeInstanceTypes", {"InstanceTypes": [instance_type]}, region)
        kinds = self._client.call(call).get("InstanceTypes", [])
        return int(kinds[0].get("VCpuInfo", {}).get("DefaultVCpus", 0)) if kinds else 0

    def _used(self, region: str, code: str) -> int:
        """VCPUs of everything in the account that counts against the same quota."""
        only = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
        total = 0
        for page in self._client.pages(AwsRequest("DescribeInstances", {"Filters": only}, region)):
            for instance in instances_of(page):
                spot = instance.get("InstanceLifecycle") == "spot"
                kind = str(instance.get("InstanceType", ""))
                if quota_code(kind, spot=spot) == code:
                    total += cores_of(instance) or self._vcpus(region, kind)  # the lab's do not say
        return total
