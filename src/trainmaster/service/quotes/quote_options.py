"""`QuoteOptions`: how a recipe is to be quoted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class QuoteOptions:
    """The options of ``trainmaster quote``.

    Attributes:
        policy: see `trainmaster.advisor.papers.policy_quote.POLICIES`.
        catalogue: a name or a file; its offers are the candidates whatever the provider is.
        bandwidth: CSV ``instance,mbps``. parameter_server: instance type.
        max_workers: of one task. fresh: measure again what was measured before.
        allow_stale: accept old prices without a warning.
        only: quote these experiments; None for all.
        measurements: CSV of points that the user measured; experiments with rows there are not measured.
        measures: False: what is not known is not measured on this machine.
    """

    policy: str = "quote"
    catalogue: str | None = None
    bandwidth: Path | None = None
    parameter_server: str | None = None
    max_workers: int | None = None
    fresh: bool = False
    allow_stale: bool = False
    only: tuple[str, ...] | None = None
    measurements: Path | None = None
    measures: bool = True
