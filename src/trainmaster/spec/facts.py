"""What is found out of a run while it is driven, and holds for whoever drives it later."""

from __future__ import annotations

from enum import StrEnum


class Fact(StrEnum):
    """Kinds of that; each has a name beside it, and a text."""

    VOLUME = "volume"  #: By what the recipe calls a volume: its URI with the version, or the set built in.
    APPROVAL = "approval"  #: By experiment: an `Approval` as JSON; a person has said so, not the driver.
    ENVIRONMENT = "environment"  #: By experiment: Python, platform and packages as JSON.
