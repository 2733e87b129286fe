"""`explained`: what Infrastructure Manager says of a failure, as an error that says what to do. Pure.

IM hands on what the cloud said, in the cloud's words, in the middle of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from trainmaster.providers.base import NoCapacityError
from trainmaster.providers.im.client import ImRefusedError
from trainmaster.spec.errors import ProviderError, TrainmasterError, UsageError

_MOST_WORDS: Final = 400
_STAMP: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?: *")
_NOISE: Final = re.compile(
    r"Contextualization disabled by the RADL/TOSCA template\.|All VMs failed\. No contextualize\.|"
    r"Infrastructure without any deploy\. Exiting\.|"
    r"Error (?:Adding resources|adding VMs): *|"
    r"Error Launching in region .{0,400}? of type: \S+ +\. *|^VM \d+:$|^\*+$"
)
#: What each machine, and each try for it, came to begins so.
_TRY: Final = re.compile(
    r"Attempt \d+: *|Error launching the VMs of type \S+ to cloud ID \S+ of type \w+\. *"
)


def _words(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.IGNORECASE)


_LOGIN: Final = _words(
    "Invalid InfrastructureManager credentials", "No authentication data", "No credentials pro"
)
_CREDENTIALS: Final = _words(
    "check the credentials",
    "AuthFailure",
    "InvalidClientTokenId",
    "SignatureDoesNotMatch",
    "UnauthorizedOperation",
    "not authori[sz]ed",
    "unauthori[sz]ed",
    "invalid credentials",
    "authentication failed",
    "error authenticating",
    "access ?denied",
    "permission denied",
    r"\bforbidden\b",
    "No auth data for cloud",
    "ExpiredToken",
    "token (?:has )?expired",
)
_QUOTA: Final = _words("quota", "LimitExceeded", "limit exceeded")
_CAPACITY: Final = _words(
    "InsufficientInstanceCapacity",
    "insufficient .{0,40}(?:capacity|resources)",
    "no valid host",
    "not enough (?:hosts|resources|capacity)",
    "ZONE_RESOURCE_POOL_EXHAUSTED",
    "SkuNotAvailable",
    "AllocationFailed",
    "no capacity",
    "out of capacity",
)
_WRONG: Final = _words(
    "no concrete system",
    "no instance type available",
    "Incorrect AMI",
    "No username for deploy",
    "No VMI obtained",
    "image .{0,80}not found",
    "InvalidAMIID",
    "Error parsing RADL",
    "Error getting correct block_device",
    "No cloud provider available",
    "Cloud ID .{0,60} not found",
)


def reason_of(message: str) -> str:
    """What of IM's message says why, on one line: without times and what it always says.

    >>> reason_of("2026-01-02 03:04:05.6: All VMs failed. No contextualize.Incorrect AMI selected")
    'Incorrect AMI selected'
    """
    told = _TRY.sub("\n", message).splitlines()
    lines = [_NOISE.sub("", _STAMP.sub("", line).strip()).strip() for line in told]
    text = "; ".join(dict.fromkeys(line for line in lines if line))
    return text if len(text) <= _MOST_WORDS else f"{text[:_MOST_WORDS]}..."


def explained(message: str, cloud: str, places: Sequence[str]) -> TrainmasterError:
    """The error for a message.

    Args:
        message: of IM, without secrets.
        cloud: id of the one that was asked.
        places: where it was asked for.
    """
    why = reason_of(message) or "it does not say why"
    if _LOGIN.search(message):
        return UsageError(
            f"Infrastructure Manager does not take your login: {why}",
            "Correct the record of the type InfrastructureManager in your credentials.",
        )
    if _CREDENTIALS.search(message):
        return UsageError(
            f"the cloud {cloud} does not take your credentials, or they do not suffice: {why}",
            f"Correct the record `id = {cloud}` of your credentials, or ask for more rights.",
        )
    if _QUOTA.search(message):
        return NoCapacityError(
            f"your quota in the cloud {cloud} does not suffice: {why}",
            "Give back what you have there, ask for more, or ask for fewer machines.",
            places,
        )
    if _CAPACITY.search(message):
        return NoCapacityError(
            f"the cloud {cloud} has no such machines now: {why}", "Another type or time may help.", places
        )
    if _WRONG.search(message):
        return UsageError(
            f"the cloud {cloud} cannot make such machines: {why}",
            "Correct the image in im.yaml, or the type in your price list or `hardware.instance`.",
        )
    return ProviderError(
        f"Infrastructure Manager could not make the machines in {cloud}: {why}",
        "It is tried again; if it goes on, its own log says more.",
    )


def explained_refusal(refused: ImRefusedError, cloud: str, places: Sequence[str]) -> TrainmasterError:
    """The error for a refusal."""
    if refused.status == 401:
        return explained(f"Invalid InfrastructureManager credentials: {refused.words}", cloud, places)
    if refused.status == 403:
        return UsageError(
            f"Infrastructure Manager does not let you do that: {refused.words}",
            "Use the login that has made it.",
        )
    if refused.status >= 500:
        return ProviderError(f"Infrastructure Manager has trouble: {refused.words}", "It is tried again.")
    return explained(refused.words, cloud, places)


@contextmanager
def refusals_explained(cloud: str = "", places: Sequence[str] = ()) -> Iterator[None]:
    """What IM refuses inside ``with`` is told as an error that says what to do."""
    try:
        yield
    except ImRefusedError as refused:
        raise explained_refusal(refused, cloud, places) from None
