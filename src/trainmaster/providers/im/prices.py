"""`im_offers`: what the clouds behind Infrastructure Manager have, and for how much: IM knows no prices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Final

from trainmaster.providers.catalogue import Catalogue
from trainmaster.providers.im.settings import ImSettings
from trainmaster.providers.loading import load_catalogue
from trainmaster.providers.offer import Offer
from trainmaster.spec.errors import UsageError

_EC2: Final = "EC2"
_EC2_IMAGE: Final = re.compile(r"aws://([a-z0-9-]+)/")


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
