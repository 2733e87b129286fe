"""What one attempt at a task showed of its speed: the raw material of quotes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trainmaster.spec import Strategy

if TYPE_CHECKING:
    from trainmaster.advisor.model.profile import Point
    from trainmaster.advisor.model.time_shares import TimeShares


@dataclass(frozen=True, slots=True)
class Measurement:
    """One attempt, measured: a profiling attempt, or an attempt of a real run.

    Attributes:
        point: shape and step time; None where the task shows no steps (then ``duration_s`` is known).
        startup_s: from the start of its members to the end of its first step; 0 without steps.
        warmup_s: what the steps before the steady ones took beyond what steady ones take.
        pause_s: per epoch, what validation and checkpoints took; None if no epoch was seen to end.
        tail_s: from the last step to the end; None if it was stopped before it ended.
        duration_s: of the whole attempt, if it ended by itself and succeeded; else None.
        steps_done: how many steps it made, 0 without steps.
        memory_bytes: peak of main memory of one member (the largest), None if unknown.
        device_memory_bytes: peak of a device's memory of one member, None without a device.
        output_bytes: of what it left as its model so far. checkpoint_bytes: of its checkpoint directory.
        cores: CPU cores that one worker kept busy on average, None if unknown.
        server_cores: that the busiest parameter server kept busy, None without one.
        rare_share: what rare slow steps add to the time of all, relative to typical ones.
        time_shares: where the time of a step went, as far as it is known; None without steps.
        step_spread: how well the steady step time is known (log): its error, and how it drifted.
        offer: what it ran on: name of an instance type, or ``local``.
        measured_at: Unix seconds.
        does_not_fit: True where it failed, as its batch was too large for the machines; else None.
        epochs_done: number of the last epoch that was seen, None if it shows none.
        code_lines: what `kinship` compares: hashes of lines of its code.
        numbers: of its command, parameters and environment, by name.
    """

    point: Point | None
    startup_s: float = 0.0
    warmup_s: float = 0.0
    pause_s: float | None = None
    tail_s: float | None = None
    duration_s: float | None = None
    steps_done: int = 0
    memory_bytes: float | None = None
    device_memory_bytes: float | None = None
    output_bytes: float | None = None
    checkpoint_bytes: float | None = None
    cores: float | None = None
    server_cores: float | None = None
    rare_share: float = 0.0
    step_spread: float = 0.0
    time_shares: TimeShares | None = None
    offer: str = "local"
    measured_at: float = 0.0
    does_not_fit: bool | None = None
    epochs_done: float | None = None
    code_lines: tuple[int, ...] | None = None
    numbers: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ValueError: neither a step time nor a duration, or a negative or infinite time.
        """
        has_step = self.point is not None and self.point.step_time_s is not None
        if not has_step and self.duration_s is None and not self.does_not_fit:
            raise ValueError("a measurement needs a step time or a duration")
        for name in ("startup_s", "warmup_s", "pause_s", "tail_s", "duration_s"):
            value = getattr(self, name)
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} is {value}; zero or more is needed")

    def to_json(self) -> str:
        """As text for the database."""
        values = asdict(self)
        return json.dumps({name: value for name, value in values.items() if value is not None})

    @classmethod
    def from_json(cls, text: str) -> Measurement:
        """Read what `to_json` wrote."""
        from trainmaster.advisor.model.profile import Point
        from trainmaster.advisor.model.time_shares import TimeShares

        values: Mapping[str, Any] = json.loads(text)
        point = values.get("point")
        if point is not None:
            point = Point(**{**point, "sync": Strategy(point["sync"])})
        shares = values.get("time_shares")
        lines = values.get("code_lines")
        return cls(
            **{
                **values,
                "point": point,
                "time_shares": TimeShares(**shares) if shares else None,
                "code_lines": None if lines is None else tuple(lines),
            }
        )

    def as_dict(self) -> dict[str, Any]:
        """For ``quote --json``: what is known of it."""
        values = asdict(self)
        point = values.pop("point") or {}
        del values["code_lines"], values["numbers"]
        return {name: value for name, value in {**values, **point}.items() if value is not None}
