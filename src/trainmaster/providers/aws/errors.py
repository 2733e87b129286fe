"""What EC2 refuses, as errors of ours: by its error code, with what to do. Pure.

* UsageError            keys, permissions, names: nothing that waiting would mend
* NoCapacityError       none there now
  + QuotaError          more than the account may have at once in that region
* ProviderError         everything else
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from trainmaster.providers.base import NoCapacityError
from trainmaster.spec.errors import ProviderError, TrainmasterError, UsageError

#: Codes of failures that pass by themselves; the call is made again.
PASSING: Final = frozenset(
    {
        "RequestLimitExceeded", "Throttling", "ThrottlingException", "ThrottledException",
        "TooManyRequestsException", "EC2ThrottledException", "InternalError", "InternalFailure",
        "ServiceUnavailable", "Unavailable", "RequestTimeout", "RequestTimeoutException",
        "PriorRequestNotComplete", "ServerInternal",
    }
)  # fmt: skip
#: What was made a moment ago is not known everywhere at once; after some tries it is really not there.
SETTLING: Final = frozenset(
    {
        "InvalidGroup.NotFound",
        "InvalidKeyPair.NotFound",
        "InvalidPlacementGroup.Unknown",
        "InvalidInstanceID.NotFound",
    }
)
_CAPACITY: Final = frozenset(
    {
        "InsufficientInstanceCapacity", "InsufficientCapacity", "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity", "InsufficientFreeAddressesInSubnet", "SpotMaxPriceTooLow",
        "CapacityNotAvailable", "Server.InsufficientInstanceCapacity", "UnfulfillableCapacity",
    }
)  # fmt: skip
_QUOTA: Final = frozenset(
    {
        "VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded", "VolumeLimitExceeded",
        "SecurityGroupLimitExceeded", "AddressLimitExceeded", "PlacementGroupLimitExceeded",
        "KeyPairLimitExceeded", "MaxConfigLimitExceededException",
    }
)  # fmt: skip
_KEYS: Final = frozenset(
    {
        "AuthFailure", "InvalidClientTokenId", "SignatureDoesNotMatch", "UnrecognizedClientException",
        "ExpiredToken", "ExpiredTokenException", "RequestExpired", "IncompleteSignature",
        "MissingAuthenticationToken", "InvalidAccessKeyId",
    }
)  # fmt: skip
_PERMISSION: Final = frozenset(
    {"UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "Client.UnauthorizedOperation"}
)
_ACCOUNT: Final = frozenset({"OptInRequired", "Blocked", "PendingVerification", "NotSignedUp"})


class QuotaError(NoCapacityError):
    """More than the account may have at once there; another region or market, or a higher quota helps."""


def is_lack(code: str) -> bool:
    """Whether there are no machines, or no more are allowed: asking again at once is in vain."""
    return code in _CAPACITY or code in _QUOTA


def is_of_keys(code: str) -> bool:
    """Whether the credentials are refused: others may be let in."""
    return code in _KEYS or code == "AuthFailure"


def api_error(
    operation: str,
    code: str,
    message: str,
    *,
    region: str = "",
    zones: Sequence[str] = (),
    service: str = "ec2",
) -> TrainmasterError:
    """The error for an answer.

    Args:
        operation: that was refused, such as ``RunInstances``.
        code: Amazon's.
        message: Amazon's.
        region: asked.
        zones: asked, or all of the region.
        service: asked; with the operation it names the permission.
    """
    where = zones[0] if len(zones) == 1 else region
    told = _short(message)
    if code in _PERMISSION:
        permission = f"{service.replace('-', '')}:{operation}"
        return UsageError(
            f"AWS does not let you {permission} in {region}: {told}",
            f"Ask whoever runs the account for the permission {permission}; docs/aws.md has the whole "
            "policy.",
        )
    if code == "AuthFailure.ServiceLinkedRoleCreationNotPermitted":
        return UsageError(
            "AWS does not let you iam:CreateServiceLinkedRole, which the first spot request of an account "
            f"needs: {told}",
            "Run `aws iam create-service-linked-role --aws-service-name spot.amazonaws.com` once as an "
            "administrator.",
        )
    if code in _KEYS or code.startswith("AuthFailure"):
        return UsageError(
            f"AWS refuses the credentials ({code}) in {region}: {told}",
            "If they have expired: `aws sso login`, or renew them in ~/.aws/credentials. Else check "
            "AWS_PROFILE, AWS_ACCESS_KEY_ID and the clock; `aws sts get-caller-identity` must work.",
        )
    if code in _ACCOUNT:
        return UsageError(
            f"the AWS account cannot be used yet ({code}): {told}",
            "See the account's page at console.aws.amazon.com.",
        )
    if code in _QUOTA:
        return QuotaError(
            f"over the account's quota in {region} ({code}): {told}",
            "Ask for more in the console under Service Quotas, take another region, or fewer or smaller "
            "machines.",
            zones,
        )
    unsupported = code == "Unsupported" and "Zone" in message
    if code in _CAPACITY or unsupported:
        return NoCapacityError(
            f"no capacity in {where} ({code}): {told}", "Another zone, type or time may help.", zones
        )
    if code in PASSING:
        return ProviderError(
            f"AWS did not do {operation} in {region}, asked several times ({code}): {told}",
            "Try again in some minutes; see https://health.aws.amazon.com/health/status.",
        )
    if (
        code.startswith(("Invalid", "Missing", "Unknown", "Unsupported", "Validation"))
        and code not in SETTLING
    ):
        return UsageError(f"AWS refuses {operation} in {region} ({code}): {told}", _advice(code))
    return ProviderError(f"AWS refuses {operation} in {region} ({code}): {told}")


def _advice(code: str) -> str:
    if code.startswith("InvalidAMI"):
        return "Check TRAINMASTER_AWS_IMAGE; an image's id holds in one region only."
    if "Vpc" in code or "Subnet" in code:
        return "Check TRAINMASTER_AWS_VPC, or make a default VPC: `aws ec2 create-default-vpc`."
    return ""


def _short(message: str) -> str:
    """Without the encoded part of an authorisation failure, which fills a screen and says nothing."""
    plain = re.sub(r"\s*Encoded authorization failure message:.*", "", message, flags=re.DOTALL)
    return " ".join(plain.split()).rstrip(".") or "no reason given"
