"""`Intervals`: the time between what was seen of an attempt, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster.dataclass import dataclass

#: Twice as many are put together to so many. At two looks a second that is after half an hour.
MOST = 2048


@dataclass(frozen=True, slots=True)
class StepInterval:
    """From one observation to the next that saw more steps.

    Attributes:
        seconds: between the two.
        steps: made in it.
        begin: number of the step that it begins after.
        crosses: an epoch ended in it.
        examples: made in it, None if unknown.
    """

    seconds: float
    steps: float
    begin: float
    crosses: bool = False
    examples: float | None = None

    def joined(self, other: StepInterval) -> StepInterval:
        """Both as one."""
        examples = None if self.examples is None or other.examples is None else self.examples + other.examples
        return StepInterval(
            self.seconds + other.seconds, self.steps + other.steps, self.begin, self.crosses, examples
        )


class Intervals:
    """Grows at the end. When it is full, neighbours are joined: blocks' means stay what they are."""

    def __init__(self) -> None:
        self._found: list[StepInterval] = []
        self._steps = 0.0

    def __len__(self) -> int:
        return len(self._found)

    @property
    def steps(self) -> float:
        """Of all together."""
        return self._steps

    @property
    def grain(self) -> float:
        """How many steps are between two observations, typically."""
        return median([i.steps for i in self._found]) if self._found else 1.0

    def all(self) -> Sequence[StepInterval]:
        """In their order."""
        return self._found

    def clear(self) -> None:
        """Begin again."""
        self._found.clear()
        self._steps = 0.0

    def append(self, new: StepInterval) -> None:
        """The next one."""
        self._found.append(new)
        self._steps += new.steps
        if len(self._found) > 2 * MOST:
            self._join()

    def widen(self, steps: float, examples: float | None, crosses: bool) -> None:
        """At the end of the last one more steps were seen."""
        if not self._found:
            return
        last = self._found[-1]
        known = last.examples is not None and examples is not None
        self._found[-1] = StepInterval(
            last.seconds,
            last.steps + steps,
            last.begin,
            last.crosses or crosses,
            (last.examples or 0.0) + (examples or 0.0) if known else None,
        )
        self._steps += steps

    def _join(self) -> None:
        joined: list[StepInterval] = []
        free: StepInterval | None = None
        for interval in self._found:
            if interval.crosses:  # what an epoch's end takes must stay visible
                if free is not None:
                    joined.append(free)
                joined.append(interval)
                free = None
            elif free is None:
                free = interval
            else:
                joined.append(free.joined(interval))
                free = None
        if free is not None:
            joined.append(free)
        if len(joined) > MOST * 3 // 2:  # epochs' ends everywhere: every other one will do
            ends = [i for i in joined if i.crosses]
            kept = {id(i) for i in ends[::2]}
            joined = [i for i in joined if not i.crosses or id(i) in kept]
        self._found = joined[-2 * MOST :]


def median(values: Sequence[float]) -> float:
    """Of at least one value.

    >>> median([3.0, 1.0, 2.0, 10.0])
    2.5
    """
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
