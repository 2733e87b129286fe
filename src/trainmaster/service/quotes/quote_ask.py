"""`QuoteAsk`: what is asked of a server that is to quote a recipe, or to plan a run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from trainmaster.dataclass import dataclass
from trainmaster.service.driving.submissions import RunRequest
from trainmaster.service.quotes.quote_options import QuoteOptions


@dataclass(frozen=True, slots=True)
class QuoteAsk:
    """What is asked, in the words of `RunRequest`, `QuoteOptions` and `ClientProtocol.plan_run`.

    Attributes:
        recipe: its YAML. code, provider: as for a run.
        policy, catalogue, parameter_server, worker_types, max_workers, usd_per_hour, p, fresh: of a quote.
        latency_ms: of a quote: between machines, one way.
        measure: of a quote: False: what is known at once.
        bandwidth, measurements: of a quote: the text of such a file.
        allow_stale: old prices will do.
        keep_s: of both. can_agree, measure_first: of a plan.
    """

    recipe: str
    code: str | None = None
    provider: str | None = None
    policy: str = ""
    catalogue: str | None = None
    parameter_server: str | None = None
    max_workers: int | None = None
    fresh: bool = False
    bandwidth: str | None = None
    measurements: str | None = None
    allow_stale: bool = False
    can_agree: bool = True
    measure_first: bool = False
    keep_s: float = 0.0
    measure: bool = True
    worker_types: str | None = None
    usd_per_hour: float | None = None
    p: float | None = None
    latency_ms: float | None = None

    @property
    def run_request(self) -> RunRequest:
        """What of it is the same for a run."""
        return RunRequest(self.recipe, self.code, self.provider)

    @contextmanager
    def options(self) -> Iterator[QuoteOptions]:
        """Those of `Quoter`, with files where it wants files."""
        with tempfile.TemporaryDirectory(prefix="trainmaster-quote-") as directory:
            paths: dict[str, Path | None] = {}
            for name in ("bandwidth", "measurements"):
                text = getattr(self, name)
                paths[name] = None if text is None else Path(directory) / f"{name}.csv"
                if text is not None:
                    (Path(directory) / f"{name}.csv").write_text(text, encoding="utf-8")
            names = {each.name for each in fields(self)} & {each.name for each in fields(QuoteOptions)}
            given = {name: getattr(self, name) for name in names}
            yield QuoteOptions(**given | paths, measures=self.measure)
