"""What was seen of a running attempt's steps: when it was warm, how long a step takes, and how sure that is.

Observations have a finite resolution: files are looked at now and then, scripts report every tenth step
or once per epoch, bars jump. So nothing here rests on single steps: intervals between observations are
put together to blocks, and the median of the blocks' means is the step time. Plain Python: every run follows
its tasks' steps, and importing NumPy takes longer than a short run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from trainmaster.advisor.model.intervals import Intervals, StepInterval, median
from trainmaster.advisor.model.step_counter import StepCounter
from trainmaster.dataclass import dataclass

#: A profiling attempt is not stopped before that, however steady it looks.
MIN_STEPS = 20
MIN_SECONDS = 5.0
#: Blocks whose means are compared: enough for a median, few enough that each is long.
BLOCKS = 20
_MIN_BLOCKS = 6
_WARMUP_BLOCKS = 40
#: A beginning that differs by less than this is no warm-up, however regular the steps are.
_SAME = 0.02
#: Blocks and "single" steps last several looks: the error of a look is that of both ends.
_LOOKS_PER_BLOCK = 4.0
_LOOKS_PER_STEP = 4.0
#: Standard error of a median over that of a mean, for normal errors.
_MEDIAN_FACTOR = math.sqrt(math.pi / 2)
_NORMAL_95 = 1.96
_MAD_TO_SIGMA = 1.4826
#: A doubt of its start-up that matters to no attempt.
_START_S = 1.0
#: Less than this share of the time outside of epochs' ends: then the ends cannot be told from the rest.
_MIN_SHARE = 0.3

#: Steps whose median is in so much doubt, relative to it, came in bursts.
_BURSTS = 0.5
#: No clock shows more.
_LAST_TIME_S = 1e12


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """Statistics of the steps after the warm-up; seconds.

    Attributes:
        step_time_s: median of the blocks' means; what validation takes at epochs' ends is left out.
        mean_s: all time over all steps, also of rare slow ones.
        p10_s, p90_s: quantiles of the single steps, as far as single ones were seen.
        half_width_s: of the 95 % confidence interval of ``step_time_s``; infinite with too few blocks.
        steps: how many it rests on.
        seconds: how long they took.
        blocks: how many blocks.
        drift: by how much the second half is slower than the first, relative.
        warmup_s: what the steps before took beyond what steady ones take.
        pause_s: per epoch, what came at its end beyond its steps; None if no epoch was seen to end.
        examples_per_step: as reported, None if they are not counted.
        mean_error: standard error of the blocks' mean, relative to it; at most 1.
    """

    step_time_s: float
    mean_s: float
    p10_s: float
    p90_s: float
    half_width_s: float
    steps: float
    seconds: float
    blocks: int
    drift: float
    warmup_s: float
    pause_s: float | None
    examples_per_step: float | None
    mean_error: float = 0.0

    def by_mean(self) -> StepStatistics:
        """The same by the mean of all steps, where these come in bursts so that their median says little."""
        error = self.half_width_s / self.step_time_s / _NORMAL_95 if math.isfinite(self.half_width_s) else 0.0
        if max(error, abs(self.drift) / 2) <= max(_BURSTS, self.mean_error):
            return self
        half_width_s = _NORMAL_95 * self.mean_error * self.mean_s
        return replace(self, step_time_s=self.mean_s, half_width_s=half_width_s, drift=0.0)


class StepTrace:
    """Follows the steps of one attempt in bounded memory; never raises for what it is told.

    The only way in is `add`, one observation at a time: how they were cut into pieces changes nothing.

    Args:
        resolution_s: how often somebody looks: no time of an observation is better than that.
        steps_per_epoch: if known; then epochs count as so many steps for scripts that show nothing else.
        examples_per_step: if known; then examples count as steps for scripts that show nothing else.

    >>> trace = StepTrace()
    >>> for step in range(1, 101):
    ...     trace.add(3.0 + (2.0 if step > 1 else 0.0) + 0.1 * step, step)
    >>> round(trace.steady().step_time_s, 6), round(trace.startup_s(0.0), 6)
    (0.1, 3.1)
    """

    def __init__(
        self,
        resolution_s: float = 0.0,
        steps_per_epoch: float | None = None,
        examples_per_step: float | None = None,
    ) -> None:
        self._resolution_s = resolution_s
        self._counter = StepCounter(steps_per_epoch, examples_per_step)
        self._intervals = Intervals()
        self._first: tuple[float, float] | None = None
        self._last: tuple[float, float, float | None] | None = None
        self._crossed = False
        self._unseen: float | None = None
        self._head: float | None = None
        self._gap: float | None = None
        self._known: StepStatistics | None = None
        self._known_at = -1
        self._changes = 0

    @property
    def first_at(self) -> float | None:
        """When the first step was seen."""
        return None if self._first is None else self._first[0]

    @property
    def last_at(self) -> float | None:
        """When the newest step was seen."""
        return None if self._last is None else self._last[0]

    @property
    def steps(self) -> float:
        """Steps from the first to the newest observation."""
        return self._intervals.steps

    @property
    def epoch(self) -> float | None:
        """Number of the newest epoch; None if none was seen."""
        return self._counter.epoch

    def learn_epochs(self, steps: float, epochs: float) -> None:
        """So many steps are so many epochs, where that was not known; before the first observation."""
        if self._counter.steps_per_epoch is None and epochs > 0:
            self._counter.steps_per_epoch = steps / epochs

    @property
    def unit(self) -> str:
        """What its steps are, see `StepCounter.unit`."""
        return self._counter.unit

    @property
    def resolution_s(self) -> float:
        """How often somebody looks."""
        return self._resolution_s

    @property
    def steps_done(self) -> float:
        """Steps that the attempt has made, also those before the first observation."""
        return self._done_first() + self._intervals.steps

    @property
    def begun_at(self) -> float:
        """The number of steps that were done before the attempt, if it counts on from a checkpoint.

        >>> trace = StepTrace()
        >>> for step in (290, 300, 310):
        ...     trace.add(0.1 * step, step)
        >>> trace.begun_at
        280.0
        """
        head, gap = self._head or 0.0, self._gap or 1.0
        return head - gap if head > 1.5 * gap else 0.0

    def steps_since(self, time_s: float) -> float:
        """Steps from the newest observation to that moment, if they go on; at most those until the next one.

        >>> trace = StepTrace()
        >>> for step in (10, 20, 30, 40, 50):
        ...     trace.add(0.5 * step, step)
        >>> trace.steps_since(26.0), trace.steps_since(80.0)
        (2.0, 10.0)
        """
        found = self.steady()
        if found is None or self._last is None:
            return 0.0
        return min(max(time_s - self._last[0], 0.0) / found.step_time_s, self._intervals.grain)

    def steps_at(self, time_s: float) -> float:
        """Steps from the first observation to that moment, in between as if they were regular."""
        if self._first is None:
            return 0.0
        left_s, steps = time_s - self._first[0], 0.0
        for interval in self._intervals.all():
            if left_s < interval.seconds:
                return steps + interval.steps * max(0.0, left_s) / interval.seconds
            left_s -= interval.seconds
            steps += interval.steps
        return steps

    def add(self, time_s: float, step: object = None, examples: object = None, epoch: object = None) -> None:
        """At ``time_s`` (Unix seconds, or of any steady clock) so much was seen to be done.

        Args:
            time_s: when it was seen.
            step: number of the newest step, if the script says it.
            examples: done in all, if the script counts them.
            epoch: number of the epoch, if the script says it.
        """
        if not abs(time_s) < _LAST_TIME_S:
            return
        if self._last is not None and time_s < self._last[0]:
            time_s = self._last[0]  # a clock was set back; the interval is lost, not the rest
        reading = self._counter.read(step, examples, epoch)
        if reading is None:
            return
        self._changes += 1
        if reading.anew or self._last is None:
            self._intervals.clear()
            self._first = (time_s, reading.count)
            self._last = (time_s, reading.count, reading.examples)
            self._crossed, self._unseen = False, None
            self._head, self._gap = reading.count, None
            return
        self._crossed |= reading.crossed
        before_s, count, seen = self._last
        steps = reading.count - count
        if steps <= 0:
            return
        self._gap = self._gap or steps
        done = None if seen is None or reading.examples is None else reading.examples - seen
        if time_s == before_s:  # the same look
            self._intervals.widen(steps, done, self._crossed)
            if not len(self._intervals) and self._first is not None:
                self._first = (time_s, reading.count)
        else:
            self._intervals.append(StepInterval(time_s - before_s, steps, count, self._crossed, done))
        self._crossed = False
        self._last = (time_s, reading.count, reading.examples)

    def restart(self, time_s: float, *, is_own: bool = False) -> None:
        """The steps until now were not seen when they were made: times are looked at from here on.

        Args:
            time_s: when that is.
            is_own: this attempt has made all of them, and none before it.
        """
        self._intervals.clear()
        self._crossed = False
        self._changes += 1
        if self._last is not None:
            _, count, examples = self._last
            self._first, self._last = (time_s, count), (time_s, count, examples)
            self._unseen = count if is_own else None

    def knows_start(self, started_at: float) -> bool:
        """Whether an attempt whose first steps were not seen tells its start-up all the same.

        It does by how many they were, if the doubt of so many is small beside it, or beside all the time
        until then.
        """
        found = self.steady()
        if found is None or self._unseen is None or self._first is None:
            return False
        elapsed_s = self._first[0] - started_at
        doubt_s = self._unseen * found.half_width_s
        return doubt_s <= max(_START_S, self.startup_s(started_at) / 2, elapsed_s * _SAME)

    def steady(self) -> StepStatistics | None:
        """What the steady steps are like; None until two different moments were seen."""
        if self._known_at != self._changes:
            self._known = self._look()
            self._known_at = self._changes
        return self._known

    def is_tight(self, rel: float = 0.03, min_seconds: float = MIN_SECONDS) -> bool:
        """True if more steps would tell little more.

        Args:
            rel: half width of the confidence interval over the step time; twice that much drift is allowed.
            min_seconds: how long its steady steps must have taken.
        """
        found = self.steady()
        return (
            found is not None
            and found.blocks >= _MIN_BLOCKS
            and found.steps >= MIN_STEPS
            and found.seconds >= min_seconds
            and found.half_width_s <= rel * found.step_time_s
            and abs(found.drift) <= 2 * rel
        )

    def startup_s(self, started_at: float) -> float:
        """From the start of the members to the end of the first step, also if that one was not shown."""
        if self._first is None:
            return 0.0
        found = self.steady()
        elapsed_s = max(0.0, self._first[0] - started_at)
        if found is None:
            return elapsed_s
        return max(0.0, elapsed_s - max(0.0, self._done_first() - 1) * found.step_time_s)

    def _done_first(self) -> float:
        """How many steps this attempt had made when the first one was seen."""
        if self._first is None:
            return 0.0
        if self._unseen is not None:
            return max(self._unseen, 1.0)
        # A task that reports every tenth step made nine before; one at 5,000 comes from a checkpoint.
        grain = self._intervals.grain
        done = self._first[1] if self._first[1] <= 1.5 * grain else grain
        return max(done, grain if self._counter.by_epoch else 1.0)

    def tail_s(self, ended_at: float) -> float:
        """From the newest step to the end."""
        return 0.0 if self._last is None else max(0.0, ended_at - self._last[0])

    def _look(self) -> StepStatistics | None:
        every = self._intervals.all()
        if not every:
            return None
        inner, ends = self._sorted(every)
        warm, rest = _split_warmup(inner)
        blocks = _means(_blocks(rest, self._resolution_s))
        step_time_s = median(blocks)
        seconds, steps = sum(i.seconds for i in rest), sum(i.steps for i in rest)
        if not (step_time_s > 0 and math.isfinite(step_time_s)):
            return None
        singles = sorted(_singles(rest, self._resolution_s))
        counted = [i for i in every if i.examples is not None and i.examples > 0]
        return StepStatistics(
            step_time_s=step_time_s,
            mean_s=seconds / steps,
            p10_s=min(_quantile(singles, 0.1), step_time_s),
            p90_s=max(_quantile(singles, 0.9), step_time_s),
            half_width_s=_half_width(blocks, step_time_s, self._resolution_s, seconds),
            steps=steps,
            seconds=seconds,
            blocks=len(blocks),
            drift=_drift(blocks, step_time_s),
            warmup_s=max(0.0, sum(i.seconds - i.steps * step_time_s for i in warm)),
            pause_s=self._pause_s(ends, step_time_s),
            examples_per_step=(
                sum(i.examples or 0.0 for i in counted) / sum(i.steps for i in counted) if counted else None
            ),
            mean_error=_mean_error(blocks),
        )

    def _sorted(self, every: Sequence[StepInterval]) -> tuple[list[StepInterval], list[StepInterval]]:
        """Intervals inside of epochs, and those across their ends."""
        if self._counter.by_epoch:
            return list(every), []
        ends = [i for i in every if i.crosses]
        inner = [i for i in every if not i.crosses]
        per_epoch = self._counter.steps_per_epoch
        if not ends and per_epoch is not None and per_epoch > 1:
            # The epoch is not reported, but the recipe tells its length. Scripts count from 0 or from 1.
            def across(i: StepInterval, offset: int) -> bool:
                return math.floor((i.begin + offset) / per_epoch) < math.floor(
                    (i.begin + i.steps - 1 + offset) / per_epoch
                ) or (i.begin + offset > 0 and (i.begin + offset) % per_epoch == 0)

            excess = {
                offset: sum(i.seconds / i.steps for i in every if across(i, offset)) for offset in (0, 1)
            }
            offset = max(excess, key=lambda key: (excess[key], -key))
            ends = [i for i in every if across(i, offset)]
            inner = [i for i in every if not across(i, offset)]
        total_s = sum(i.seconds for i in every)
        inner_steps, steps = sum(i.steps for i in inner), sum(i.steps for i in every)
        if not inner or (sum(i.seconds for i in inner) < _MIN_SHARE * total_s and inner_steps < 0.5 * steps):
            return list(every), []  # epochs shorter than a look: what their ends take is part of the steps
        return inner, ends

    def _pause_s(self, ends: Sequence[StepInterval], step_time_s: float) -> float | None:
        if ends:
            return max(0.0, median([i.seconds - i.steps * step_time_s for i in ends]))
        # By epochs, or in the mix above, it is part of the steps.
        return 0.0 if self._counter.by_epoch or self._counter.epochs_seen else None


def _split_warmup(found: Sequence[StepInterval]) -> tuple[list[StepInterval], list[StepInterval]]:
    """Intervals before the steps are steady, and the rest.

    The marginal standard error rule (White 1997) on blocks' means: cut where the standard error of the
    mean of what remains is smallest. Outliers are drawn in first, as the later half sees them, so that one
    slow step in the middle does not pass for the end of the warm-up.
    """
    if len(found) < 4:
        return [], list(found)
    groups = _groups(found, _WARMUP_BLOCKS)
    means = _means(groups)
    later = means[len(means) // 2 :]
    middle = median(later)
    spread = _MAD_TO_SIGMA * median([abs(value - middle) for value in later])
    reach = max(5 * spread, 2 * _SAME * middle)
    drawn = [min(max(value, middle - reach), middle + reach) for value in means]
    tries = range(len(drawn) // 2 + 1)
    errors = [_power(drawn[cut:]) / (len(drawn) - cut) ** 2 for cut in tries]
    # Not beyond the first blocks that are like the rest: what is slow after those is no warm-up.
    same = max(_SAME * middle, 2 * spread)
    alike = (k for k in tries if max(abs(means[k] - middle), abs(median(means[k : k + 3]) - middle)) <= same)
    cut = min(min(tries, key=lambda k: errors[k]), next(alike, len(drawn)))
    at = sum(len(group) for group in groups[:cut])
    return list(found[:at]), list(found[at:])


def _blocks(found: Sequence[StepInterval], resolution_s: float) -> list[Sequence[StepInterval]]:
    """Blocks of about equally many intervals, each of which lasts several looks."""
    wanted = BLOCKS
    if resolution_s > 0:
        total_s = sum(i.seconds for i in found)
        wanted = min(wanted, max(1, int(total_s / (_LOOKS_PER_BLOCK * resolution_s))))
    return _groups(found, wanted)


def _singles(found: Sequence[StepInterval], resolution_s: float) -> list[float]:
    """Seconds per step of the shortest stretches that a look can tell apart."""
    values: list[float] = []
    seconds = steps = 0.0
    for interval in found:
        seconds += interval.seconds
        steps += interval.steps
        if seconds >= _LOOKS_PER_STEP * resolution_s:
            values.append(seconds / steps)
            seconds = steps = 0.0
    return values or _means([found])


def _half_width(blocks: Sequence[float], middle: float, resolution_s: float, seconds: float) -> float:
    """Of the confidence interval of the blocks' median; what neighbours share counts only once."""
    count = len(blocks)
    if count < 3 or seconds <= 0:
        return math.inf
    # Robust, but never nothing because most blocks are alike to the last digit.
    drawn = [min(max(value, 0.5 * middle), 2 * middle) for value in blocks]
    spread = max(
        _MAD_TO_SIGMA * median([abs(value - middle) for value in blocks]),
        0.5 * math.sqrt(_power(drawn) / (count - 1)),
    )
    power = _power(drawn)
    shared = _shared(drawn, power) if power > 0 else 0.0
    independent = max(2.0, count * (1 - shared) / (1 + shared))
    error = _MEDIAN_FACTOR * spread / math.sqrt(independent)
    small_sample = 1 + 2.5 / independent  # about Student's t over the normal quantile
    return math.hypot(_NORMAL_95 * small_sample * error, middle * resolution_s / seconds)


def _mean_error(blocks: Sequence[float]) -> float:
    """Standard error of their mean, relative to it; what neighbours share counts only once.

    >>> _mean_error([1.0, 1.0]), round(_mean_error([0.0, 0.0, 6.0]), 6)
    (0.0, 1.0)
    """
    count, power = len(blocks), _power(blocks)
    if count < 2 or power <= 0:
        return 0.0
    shared = _shared(blocks, power)
    error = math.sqrt(power * count / (count - 1) * (1 + shared) / (1 - shared)) / sum(blocks)
    return min(error, 1.0)


def _shared(values: Sequence[float], power: float) -> float:
    """Correlation of neighbours, as far as it is believed."""
    mean = sum(values) / len(values)
    shared = sum((first - mean) * (second - mean) for first, second in itertools.pairwise(values)) / power
    return min(0.9, max(0.0, shared))


def _drift(blocks: Sequence[float], middle: float) -> float:
    half = len(blocks) // 2
    return (median(blocks[-half:]) - median(blocks[:half])) / middle if half else 0.0


def _groups(found: Sequence[StepInterval], wanted: int) -> list[Sequence[StepInterval]]:
    """At most so many groups of neighbours, as equal as can be; none is empty."""
    wanted = min(wanted, len(found))
    edges = [len(found) * k // wanted for k in range(wanted + 1)]
    return [found[begin:end] for begin, end in itertools.pairwise(edges)]


def _means(groups: Sequence[Sequence[StepInterval]]) -> list[float]:
    """Seconds per step of each."""
    return [sum(i.seconds for i in group) / sum(i.steps for i in group) for group in groups]


def _power(values: Sequence[float]) -> float:
    """Sum of the squared distances from the mean."""
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values)


def _quantile(ordered: Sequence[float], share: float) -> float:
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])
