"""What is asked of Infrastructure Manager before anything is made: would it, and do quotas suffice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from trainmaster.providers.base import NoCapacityError, NodeRequest
from trainmaster.providers.im.client import ImClient, ImRefusedError
from trainmaster.providers.im.documents import RadlDocuments
from trainmaster.providers.im.errors import explained_refusal
from trainmaster.spec.errors import UsageError

_GIB: Final = 2**30
#: What it says of clouds that it knows no way to ask, such as EC2.
_UNTOLD: Final = "Should have implemented this"


def check(
    client: ImClient, documents: RadlDocuments, requests: Sequence[NodeRequest], now: float
) -> list[str]:
    """Refuse what cannot be rented; notes for the user. Nothing is made.

    Raises:
        UsageError: a type, a cloud, credentials or a quota that will not do.
        ProviderError: IM does not answer.
    """
    needed: dict[str, dict[str, float]] = {}
    for request in requests:
        document = documents.document("preflight", request, now)
        cloud, offer = documents.cloud(request), documents.offer(request)
        try:
            client.estimate(document)
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
        if not documents.boots(cloud):
            notes.append(
                f"machines of {cloud} end themselves when their lease is not renewed only once somebody has "
                f"logged in: IM hands no user data to {documents.clouds[cloud]}"
            )
        try:
            quotas = client.quotas(cloud)
        except ImRefusedError as refused:
            error = explained_refusal(refused, cloud, [cloud])
            if isinstance(error, UsageError):
                raise error from None
            why = "IM cannot ask it for them" if _UNTOLD in refused.words else refused.words
            notes.append(f"the quotas of {cloud} are not known: {why}")
            continue
        for name, amount in sums.items():
            _check_quota(cloud, name, amount, quotas.get(name))
    return notes


def _check_quota(cloud: str, name: str, needed: float, quota: Any) -> None:  # noqa: ANN401 - as IM says it
    """Refuse what a quota does not allow; -1 and what is not told are no limits."""
    if not isinstance(quota, dict):
        return
    limit, used = quota.get("limit"), quota.get("used")
    if not isinstance(limit, int | float) or not isinstance(used, int | float) or limit < 0:
        return
    if needed > limit - used:
        raise UsageError(
            f"your quota of {name} in the cloud {cloud} does not suffice: {needed:g} are needed, "
            f"{max(limit - used, 0):g} of {limit:g} are free",
            "Give back what you have there, ask for more, or ask for fewer machines.",
        )
