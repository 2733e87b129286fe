"""`QuotedTarget`: when an experiment comes to its target, as its quote says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.dataclass import dataclass
from trainmaster.spec.plain_json import JsonObject
from trainmaster.spec.units import counted


@dataclass(frozen=True, slots=True)
class QuotedTarget(JsonObject):
    """When an experiment comes to its target, before it is run.

    Attributes:
        experiment: its name. condition: what is to hold, such as ``accuracy >= 0.97``.
        most: steps that it makes at most, with the quoted cluster.
        chance: that it comes to it within these; None while no curve was seen.
        steps: p5, p50 and p95 of the step; None in place of one: not within these.
        curves: that this rests on. reached: how many of them came to it.
        is_measured: no run is among them.
        is_kin: they are of other versions of the job.
        batch: of all workers together; None if unknown.
        critical_batch: beyond it a larger batch saves few steps; 0: none at all; None if unknown.
    """

    experiment: str
    condition: str
    most: float
    chance: float | None = None
    steps: Mapping[str, float | None] | None = None
    curves: int = 0
    reached: int = 0
    is_measured: bool = False
    batch: float | None = None
    critical_batch: float | None = None
    is_kin: bool = False

    @property
    def words(self) -> str:
        """One line for people.

        >>> QuotedTarget("train", "acc >= 0.9", 800).words
        'train to acc >= 0.9: when is known after a run or a measurement; all of its 800 steps are quoted'
        """
        name, most = f"{self.experiment} to {self.condition}", f"{self.most:,.0f}"
        if self.steps is None or self.chance is None:
            unknown = "when is known after a run or a measurement"
            return f"{name}: {unknown}; all of its {most} steps are quoted"
        first, middle, last = (self.steps[key] for key in ("p5", "p50", "p95"))
        curves = f"{counted(self.curves, 'earlier run')}, {self.reached} of which came to it"
        source = "the first reports of its measurement" if self.is_measured else curves
        source += " (with other code, batch or parameters)" * self.is_kin
        if middle is None:
            what = "lower the target, raise `steps` or `epochs`, or change what is trained"
            chance = f"the chance is {100 * self.chance:.0f} %"
            return f"{name}: never by this curve within {most} steps, {chance} (by {source}): {what}"
        until = "never" if last is None else f"{last:,.0f}"
        return f"{name}: at step {middle:,.0f} ({first or 0:,.0f} to {until}) of at most {most}, by {source}"

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**JsonObject.as_dict(self), "words": self.words}
