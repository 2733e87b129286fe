"""Whether a run is to have another machine in the place of one that is slow (`adapt: true`), and when. Pure.

The slow one works until the other one is a node, so what a change costs is the way back to the newest
checkpoint, the steps since then, and two machines for one seat meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.units import dollars, format_duration

#: An experiment changes its machines so often at most.
MOST_CHANGES: Final = 2
#: What is slow must be so for as long, and a change is given as long to show what it was good for.
SEEN_S: Final = 10.0
REST_S: Final = 60.0
#: What is gained must be so many times what it costs: what is measured is uncertain, and nothing may flap.
WORTH: Final = 1.5
#: A checkpoint is fresh for so long, or for such a share of the time between two.
_FRESH_S: Final = 3.0
_FRESH_SHARE: Final = 0.1
#: For so many times of that a fresh one is waited for.
_PATIENCE: Final = 2.0
#: Members are asked to stop, and what they left is saved.
_STOP_S: Final = 3.0


class ChangeTiming(StrEnum):
    """What is to be done now that the other machine is there."""

    WAIT = "WAIT"
    GO = "GO"
    KEEP = "KEEP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptable:
    """A task whose machines or members may change, as things stand.

    Attributes:
        left_s: until its last step, at the pace that it has.
        checkpoint_s: age of its newest checkpoint; None without any. every_s: from one to the next.
        machine_s: until a machine that is asked for is a node, at most.
        restart_s: from the end of its members until steps are made again.
        spent_usd: by the run. most_usd: that it may spend. end_s: for how long money is left for its end.
        time, cost: weights of the run's objective.
        changes: how often it was changed before. changed_s: how long that is ago.
    """

    left_s: float
    checkpoint_s: float | None
    every_s: float
    machine_s: float
    restart_s: float
    spent_usd: float = 0.0
    most_usd: float = math.inf
    time: float = 0.0
    cost: float = 1.0
    end_s: float = 0.0
    changes: int = 0
    changed_s: float = math.inf

    @property
    def loss_s(self) -> float:
        """The way back, and the steps since the newest checkpoint: half of those between two."""
        return self.restart_s + self.every_s / 2

    def why_not_yet(self, what: str) -> str:
        """Why nothing is changed now, whatever it would gain; empty if it may be."""
        if self.changes >= MOST_CHANGES:
            return f"{what} changed {self.changes} times already"
        if self.changed_s < REST_S:
            return f"{what} changed {format_duration(self.changed_s)} ago"
        return "there is no checkpoint to go on from yet" if self.checkpoint_s is None else ""

    def timing(self, ready_s: float) -> ChangeTiming:
        """Whether a change that is wanted is made now, or as soon as there is a checkpoint.

        Args:
            ready_s: for how long all that is needed is there.
        """
        if self.checkpoint_s is None:
            return ChangeTiming.WAIT
        is_fresh = self.checkpoint_s <= max(_FRESH_S, _FRESH_SHARE * self.every_s)
        return ChangeTiming.GO if is_fresh or ready_s > _PATIENCE * self.every_s else ChangeTiming.WAIT


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowTask(Adaptable):
    """One whose steps have become slower because of one of its machines.

    Attributes:
        machine: which one, for people; empty if none stands out.
        kept: why no other one can be asked for in its place; empty if one can.
        usual_s, step_s: what a step took, and takes.
        usd_per_hour: of all its machines. machine_usd_per_hour: of one.
    """

    machine: str
    kept: str
    usual_s: float
    step_s: float
    usd_per_hour: float = 0.0
    machine_usd_per_hour: float = 0.0

    @property
    def _saved(self) -> float:
        """Share of its time that a step would save."""
        return max(1.0 - self.usual_s / self.step_s, 0.0) if self.step_s > 0 else 0.0

    @property
    def gain_s(self) -> float:
        """What is saved at most once another machine is there."""
        return max(self.left_s - self.machine_s, 0.0) * self._saved

    @property
    def extra_usd(self) -> float:
        """What the other machine costs before it works."""
        return self.machine_usd_per_hour * (self.machine_s + self.loss_s) / 3600

    @property
    def net_s(self) -> float:
        """By how much it ends sooner."""
        return self.gain_s - self.loss_s

    @property
    def net_usd(self) -> float:
        """By how much it costs less."""
        return self.usd_per_hour * self.net_s / 3600 - self.extra_usd

    @property
    def is_worth_it(self) -> bool:
        """Whether the objective gains more than it loses, both as shares of what is left."""
        loss = (self.time + self.cost) * self.loss_s
        if self.usd_per_hour > 0:
            loss += self.cost * self.extra_usd / self.usd_per_hour * 3600
        return self.gain_s > 0 and (self.time + self.cost) * self.gain_s > WORTH * loss

    @property
    def is_within_cap(self) -> bool:
        """Whether the run may cost what it will with another machine."""
        left_usd = self.usd_per_hour * (max(self.left_s, 0.0) + self.end_s) / 3600
        return self.spent_usd + left_usd - self.net_usd <= self.most_usd


def why_not_replace(slow: SlowTask) -> str:
    """Why its machine is left where it is; empty if another one is to be asked for."""
    if not slow.machine:
        longer_s = slow.left_s * slow._saved
        dearer = f", and {dollars(slow.usd_per_hour * longer_s / 3600)} more" if slow.usd_per_hour else ""
        lost = f"{format_duration(longer_s)}{dearer}"
        return f"no machine stands out, so another one gains nothing of the {lost} that it takes longer"
    if slow.kept:
        return slow.kept
    if why_not := slow.why_not_yet("its machines were"):
        return why_not
    if not slow.is_worth_it:
        gain, loss = format_duration(slow.gain_s), format_duration(slow.loss_s)
        ends = f", as it ends in {format_duration(slow.left_s)}" if slow.left_s < 2 * slow.machine_s else ""
        return f"another one would save {gain} and cost {loss}{ends}"
    return "" if slow.is_within_cap else f"the run may cost {dollars(slow.most_usd)} at most"


def why_replace(slow: SlowTask) -> str:
    """What is gained by that, for people."""
    saves = f"{format_duration(max(slow.net_s, 0.0))} sooner"
    if slow.usd_per_hour:
        word = "less" if slow.net_usd >= 0 else "more"
        saves += f", for {dollars(abs(slow.net_usd))} {word}"
    return f"the run ends about {saves}"


def moment(slow: SlowTask, ready_s: float) -> ChangeTiming:
    """Whether its members go on with the other machine now, as soon as there is a checkpoint, or not at all.

    Args:
        slow: what is known now; that the other machine is there already costs nothing more.
        ready_s: for how long that is there.
    """
    if slow.left_s * slow._saved <= slow.restart_s:
        return ChangeTiming.KEEP
    return slow.timing(ready_s)


def change_s(lines: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Seconds until another machine is a node at most, and from the end of members until steps are made.

    Args:
        lines: of the phases that an experiment went through; see `PhaseLine.as_dict`.
    """
    took = {line["phase"]: line["seconds"] for line in lines}
    expected = {line["phase"]: line["expected_s"]["p95"] for line in lines if line["expected_s"]}
    machine_s = expected.get("machines", took.get("machines", 0.0))
    machine_s += sum(took.get(phase, 0.0) for phase in ("image", "setup"))
    return machine_s, _STOP_S + sum(took.get(phase, 0.0) for phase in ("data", "staging", "first step"))
