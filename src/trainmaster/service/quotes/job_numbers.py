"""What the numbers of a job (``--steps 800``) and its other versions say of how long steps and tasks take."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import exp, hypot, log, prod, sqrt
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from trainmaster.advisor.model.intervals import median
from trainmaster.advisor.model.knowledge import shape_of
from trainmaster.service.quotes.fingerprint import BEGUN

if TYPE_CHECKING:
    from trainmaster.advisor.model.measurement import Measurement

#: Reports come every so often: the last one may be this share before the end.
_NEAR: Final = 0.05
#: Where no steps were seen, a longer task may take its time for something else: so much of the ratio (log).
_UNSEEN: Final = 0.3
_MOST_DOUBT: Final = 2.3
#: Times follow a number where their ratio is that of the numbers to a power like these. Numbers that differ
#: by less than so many times, and tasks beyond so many, show nothing; nor do fewer values.
_FOLLOWS: Final = (0.6, 1.2)
_DIFFERENT: Final = 1.2
_MOST_COMPARED: Final = 40
_LEAST_VALUES: Final = 3
#: A step follows a number to a power like this, before any were seen; how much steps differ beside (log).
#: Other versions whose numbers leave so much more doubt than the nearest ones do not count.
_NUMBERS: Final = (0.0, 0.5)
#: Hyperparameters of the optimizer and of regularization are believed to change no step.
_HYPERPARAMETERS: Final = (0.0, 0.1)
_IS_HYPERPARAMETER: Final = re.compile(
    r"\W*(lr|wd|l[12])|.*(learning|decay|momentum|dropout|beta|gamma|alpha|epsilon|clip|smooth|temperature"
    r"|warm-?_?up|patience|threshold).*|.*[-_](lr|wd|eps)|\W*(lr|eps)[-_].*",
    re.IGNORECASE,
)
_STEP_NOISE: Final = 0.1
_AS_NEAR: Final = 0.02
#: Of a recipe, the first that there is.
_LENGTHS: Final = ("steps", "epochs")
#: How much of its work is done where it begins with another checkpoint, or with none, is not known (log).
_BEGUN_DOUBT: Final = 0.7
#: What counts no work.
_NO_LENGTH: Final = re.compile(rf"seed|port|rank|local|device|gpu|fold|^{re.escape(BEGUN)}$", re.IGNORECASE)
#: An option or a variable that is its length by its name, whatever it was before.
LENGTH: Final = re.compile(
    r"\W*((max|num|n|total|train)[-_]?)?(steps|epochs|iters|iterations)", re.IGNORECASE
)
#: How long it is, and its batch, are counted apart.
_NO_STEP: Final = re.compile(_NO_LENGTH.pattern + "|^steps$|^epochs$|^batch_", re.IGNORECASE)
#: Times of one version of a job, by those of others, before any were compared (log); counts as so many.
SIMILAR_SPREAD: Final = 0.35
_BELIEF: Final = 4
#: So many of the newest versions are left out in turn.
_MOST_LEFT_OUT: Final = 12


def lengths_seen(measured: Sequence[Measurement]) -> dict[str, tuple[float, float]]:
    """Numbers that the times of whole tasks without steps have followed, with the range in which they did.

    Of ``export.py --rows 5000``, say. Compared are tasks of the same code, on the same kind of machine, that
    differ in one number alone. Their times have to differ about as the number does (log), in every such pair,
    and the number has to have had three values: one pair may be chance.

    Args:
        measured: of a job, and of other versions of it.
    """
    whole = [each for each in measured if each.point is None and each.duration_s and each.numbers]
    alike: dict[tuple[str, object], dict[float, list[float]]] = {}
    for each in whole[:_MOST_COMPARED]:
        numbers = each.numbers or {}
        for name, value in numbers.items():
            if value > 0 and not _NO_LENGTH.search(name):
                rest = frozenset(numbers.items() - {(name, value)})
                seen = alike.setdefault((name, (each.offer, each.code_lines, rest)), {})
                seen.setdefault(value, []).append(log(each.duration_s or 1.0))
    compared: dict[str, set[float]] = {}
    refuted: set[str] = set()
    for (name, _), times in alike.items():
        for one, other in combinations(sorted(times), 2):
            if other >= _DIFFERENT * one:
                follows = (median(times[other]) - median(times[one])) / log(other / one)
                compared.setdefault(name, set()).update((one, other))
                if not _FOLLOWS[0] <= follows <= _FOLLOWS[1]:
                    refuted.add(name)
    return {
        name: (min(values), max(values))
        for name, values in compared.items()
        if len(values) >= _LEAST_VALUES and name not in refuted
    }


def as_long(
    measured: Measurement,
    numbers: Mapping[str, float],
    lengths: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> Measurement:
    """A measurement with time and steps of a whole task as long as this job's numbers make it.

    ``steps`` and ``epochs`` of the recipe are its length; else a number that was the steps or epochs that the
    measured attempt came to: ``train.py --steps 200`` that ended at step 200 says what 800 will take; else
    one that is named so (``--epochs``), of an attempt that shows none, with more doubt; else all that times
    were seen to follow, each by its own ratio, with more doubt beyond the range in which they did. Where
    whole numbers changed and none is known to be the length, it may be anything between. An option that came,
    ``--steps 800``, is held against the steps that the attempt came to without it. Where that is not known,
    or the length's number is gone, how long it is cannot be told.

    Args:
        measured: of this job, or of another version.
        numbers: of this one, see `Fingerprint`.
        lengths: see `lengths_seen`.
    """
    had = measured.numbers
    if measured.begun_at and had is not None and had.get(BEGUN) != numbers.get(BEGUN):
        measured = replace(measured, begun_at=0)
    if measured.duration_s is None or had is None or had == numbers:
        return measured
    if had.get(BEGUN) != numbers.get(BEGUN):
        spread = hypot(measured.step_spread, _BEGUN_DOUBT)
        had = {name: value for name, value in {**had, BEGUN: numbers.get(BEGUN)}.items() if value is not None}
        return as_long(replace(measured, step_spread=spread, numbers=had), numbers, lengths)
    before = {name: value for name, value in had.items() if name in numbers}
    told: list[str] = [name for name in _LENGTHS if name in before]
    told += [name for name, value in before.items() if _is_end(name, value, measured)]
    came = [name for name in numbers if name not in had and name not in _LENGTHS and LENGTH.fullmatch(name)]
    if not told:
        before |= {name: end for name in came if (end := _came_to(name, measured))}
        told = [name for name in came if name in before]
        gone = any(n not in numbers and (LENGTH.fullmatch(n) or _is_end(n, had[n], measured)) for n in had)
        if not told and (came or gone):
            if measured.point is not None:
                return replace(measured, duration_s=None)
            return replace(measured, step_spread=hypot(measured.step_spread, _MOST_DOUBT))
    named = [name for name in before if LENGTH.fullmatch(name) and not _came_to(name, measured)]
    named = [] if told else named  # how many it came to is not known: it is held to be what it says
    learnt = [] if told or named else [name for name in before if name in lengths]
    ratios = [
        numbers[name] / before[name] for name in told + named + learnt if min(before[name], numbers[name]) > 0
    ]
    if ratios:
        # Steps and epochs are one length by two names; what was learnt was seen to change by itself.
        ratio = prod(ratios) if learnt else next((each for each in ratios if each != 1.0), 1.0)
        once_s = min(measured.startup_s + (measured.tail_s or 0.0), measured.duration_s)
        duration_s = once_s + (measured.duration_s - once_s) * ratio
        # Where no steps were seen, what comes once is in there, too.
        doubt = 0.0 if measured.point is not None and not named else _UNSEEN * abs(log(ratio))
        doubt += _UNSEEN * sum(_beyond(numbers[name], lengths[name]) for name in learnt)
    else:
        duration_s, ratio = measured.duration_s, 1.0
        changes = [
            abs(log(numbers[name] / value))
            for name, value in before.items()
            if value >= 1 and numbers[name] >= 1 and value == int(value) and not _NO_LENGTH.search(name)
        ]
        doubt = min(max(changes, default=0.0), _MOST_DOUBT)
    steps_done, spread = round(measured.steps_done * ratio), hypot(measured.step_spread, doubt)
    return replace(measured, duration_s=duration_s, steps_done=steps_done, step_spread=spread)


def _is_end(name: str, value: float, measured: Measurement) -> bool:
    """Whether a number is the steps or epochs that an attempt came to."""
    ends = [end for end in (measured.steps_done, measured.epochs_done) if end]
    return any(value * (1 - _NEAR) - 1 <= end <= value for end in ends) and not _NO_LENGTH.search(name)


def _came_to(name: str, measured: Measurement) -> float | None:
    """How many an attempt made of what a length by that name counts; None or 0 if that is not known."""
    if "epoch" in name.lower():
        return measured.epochs_done
    return measured.steps_done if measured.unit == "step" else None


def with_length(same: Sequence[Measurement], kin: Sequence[Measurement], doubt: float) -> list[Measurement]:
    """Where no attempt at a job was seen to its end: as many steps as another version of it made.

    One that was too short to show steps, or counts in another unit, lends the time that it took, with more
    doubt.

    Args:
        same: of the very job.
        kin: of other versions, see `as_long`, the newest first.
        doubt: that other code makes as many (log).
    """
    wholes = [m for m in kin if m.duration_s is not None]
    if not same or not wholes or any(m.duration_s is not None for m in same):
        return list(same)
    lines, unit = same[0].code_lines, same[0].unit
    lender = min(
        wholes, key=lambda m: (m.code_lines != lines, not _step_s(m) or m.unit != unit, m.step_spread)
    )
    once_s, of_code = lender.startup_s + (lender.tail_s or 0.0), 0.0 if lender.code_lines == lines else doubt

    def told(m: Measurement) -> Measurement:
        step_s, its_step_s, took_s = _step_s(m), _step_s(lender), lender.duration_s or 0.0
        if not step_s:
            return m
        if its_step_s and m.unit == lender.unit:
            many, unseen = lender.steps_done, 0.0
            work_s = max(took_s - once_s, 0.0) * step_s / its_step_s
        else:  # without steps its start is in there, too; what this one has made already is the least
            many, unseen = 0, _UNSEEN
            work_s = max(took_s - (once_s if its_step_s else m.startup_s), m.steps_done * step_s)
        return replace(
            m,
            duration_s=m.startup_s + (lender.tail_s or 0.0) + work_s,
            steps_done=many,
            step_spread=hypot(m.step_spread, lender.step_spread, of_code, unseen),
        )

    return [told(m) for m in same]


def _step_s(m: Measurement) -> float:
    return (m.point and m.point.step_time_s) or 0.0


def nearest(kin: Sequence[Measurement], numbers: Mapping[str, float]) -> list[Measurement | None]:
    """Steps of other versions of a job, as this one's numbers make them; None of those that others beat.

    What a number does to a step is learnt from those that differ in it alone: ``--sleep 0.1`` has much to do
    with it, ``--lr 0.1`` nothing. Of each shape those count whose numbers leave the least doubt.

    Args:
        kin: of the other versions, see `as_long`.
        numbers: of this one, see `Fingerprint`.
    """
    from trainmaster.advisor.model.knowledge import shape_of

    slopes = {
        name: _slope(name, kin) for name, value in numbers.items() if value > 0 and not _NO_STEP.search(name)
    }
    found: list[tuple[Measurement, float]] = []
    for m in kin:
        point, before = m.point, _of_steps(m)
        if point is None or not point.step_time_s:
            found.append((m, m.step_spread))
            continue
        shift, doubt = 0.0, 0.0
        for name in slopes.keys() & before.keys():
            more, (slope, unsure) = log(numbers[name] / before[name]), slopes[name]
            shift, doubt = shift + slope * more, min(hypot(doubt, unsure * more), _MOST_DOUBT)
        found.append((replace(m.paced(exp(shift)), step_spread=hypot(m.step_spread, doubt)), doubt))
    least: dict[object, float] = {}
    # Those of other units are not apart: where their steps are not, their whole times are compared.
    shapes = [(*shape_of(m)[:2], bool(_step_s(m))) for m, _ in found]
    for shape, (_, doubt) in zip(shapes, found, strict=True):
        least[shape] = min(least.get(shape, doubt), doubt)
    return [
        m if doubt <= least[shape] + _AS_NEAR else None
        for shape, (m, doubt) in zip(shapes, found, strict=True)
    ]


def _of_steps(m: Measurement) -> dict[str, float]:
    """Its numbers that a step may follow."""
    return {k: v for k, v in (m.numbers or {}).items() if v > 0 and not _NO_STEP.search(k)}


def _slope(name: str, kin: Sequence[Measurement]) -> tuple[float, float]:
    """To which power of a number steps go, and the doubt about it."""
    from trainmaster.advisor.market.load import slope_within
    from trainmaster.advisor.model.knowledge import shape_of

    groups: dict[Hashable, list[tuple[float, float]]] = {}
    for m in kin:
        mine, seconds = _of_steps(m), m.point and m.point.step_time_s
        if name in mine and seconds:
            rest = frozenset(mine.items() - {(name, mine[name])})
            groups.setdefault((shape_of(m), rest), []).append((log(mine[name]), log(seconds)))
    return slope_within(
        groups, _HYPERPARAMETERS if _IS_HYPERPARAMETER.fullmatch(name) else _NUMBERS, _STEP_NOISE
    )


def _beyond(value: float, seen: tuple[float, float]) -> float:
    """How far a number is out of the range in which times followed it (log).

    >>> _beyond(5.0, (1.0, 10.0)), round(_beyond(20.0, (1.0, 10.0)), 2)
    (0.0, 0.69)
    """
    return max(log(seen[0] / value), log(value / seen[1]), 0.0) if value > 0 else 0.0


def in_one_unit(
    own: Sequence[tuple[str, Measurement]], kin: Sequence[tuple[str, Measurement]], unit: str
) -> tuple[list[tuple[str, Measurement]], list[tuple[str, Measurement]]]:
    """Measurements whose steps are the same: of one that counts epochs, say, only its whole time is left.

    Args:
        own: fingerprints of the very job and its measurements, the newest first.
        kin: the same of other versions.
        unit: in which the recipe says how long it is. Empty where it does not: then the newest of its own
            says it, and other versions lend whole times, whatever they count. One that was stopped lends the
            time that it would have taken, if its script says how long it is.
    """
    if unit:
        kin = _counted(kin, unit)
    else:
        unit = next((m.unit for _, m in own if m.point is not None), "step")
        early = {name for name, m in kin if m.ended_early}
        kin = [(name, m if name in early else m.to_its_end()) for name, m in kin]
    return _counted(own, unit) or list(own), list(kin)


def _counted(measured: Sequence[tuple[str, Measurement]], unit: str) -> list[tuple[str, Measurement]]:
    return [(name, told) for name, m in measured if (told := m.counted_in(unit)) is not None]


def borrowed(
    numbers: Mapping[str, float],
    kin: Sequence[tuple[str, Measurement]],
    lengths: Mapping[str, tuple[float, float]],
) -> list[Measurement]:
    """What was measured of other versions of a job, with the doubt that such borrowing has shown.

    Args:
        numbers: of the job, see `Fingerprint`.
        kin: fingerprints of the others and their measurements.
        lengths: see `lengths_seen`.
    """
    doubt = borrowing_spread(kin, lengths)
    found = [replace(m, step_spread=hypot(m.step_spread, doubt)) for m in _as_this(kin, numbers, lengths)]
    return sorted(found, key=lambda m: -m.measured_at)


def _as_this(
    kin: Sequence[tuple[str, Measurement]],
    numbers: Mapping[str, float],
    lengths: Mapping[str, tuple[float, float]],
) -> list[Measurement]:
    """Measurements of other versions, as the numbers of one make them."""
    told = nearest([as_long(each, numbers, lengths) for _, each in kin], numbers)
    return [each for each in told if each is not None]


def borrowing_spread(
    kin: Sequence[tuple[str, Measurement]], lengths: Mapping[str, tuple[float, float]] = MappingProxyType({})
) -> float:
    """How far times of one version of a job are from what the others say of it (log), each left out in turn.

    What was doubted of a time because numbers differ is not counted again. Where the others count in another
    unit, the whole times are compared.

    Args:
        kin: fingerprints of versions and their measurements, the newest first.
        lengths: see `lengths_seen`.
    """
    squares, many = SIMILAR_SPREAD**2 * _BELIEF, _BELIEF
    for version in list(dict.fromkeys(name for name, _ in kin))[:_MOST_LEFT_OUT]:
        own = [m for name, m in kin if name == version]
        others = [(name, m) for name, m in kin if name != version]
        told = _as_this(others, own[0].numbers or {}, lengths)
        steps, wholes = _by_shape(told), _by_shape(told, whole=True)
        own_wholes = _by_shape(own, whole=True)
        for shape, seen in _by_shape(own).items():
            like = steps.get(shape)
            if not like:
                seen, like = own_wholes.get(shape[:2], []), wholes.get(shape[:2])
            if seen and like:
                apart = median([log(s) for s, _ in seen]) - median([log(s) for s, _ in like])
                squares += max(apart**2 - median([doubt for _, doubt in like]) ** 2, 0.0)
                many += 1
    return sqrt(squares / many)


def _by_shape(
    measured: Sequence[Measurement], *, whole: bool = False
) -> dict[tuple[object, ...], list[tuple[float, float]]]:
    """Seconds of a step, or of a whole task, and the doubt about them (log); the latter of all units."""
    found: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for m in measured:
        step_s = None if whole or m.point is None else m.point.step_time_s
        if seconds := step_s or m.duration_s:
            found.setdefault(shape_of(m)[:2] if whole else shape_of(m), []).append((seconds, m.step_spread))
    return found
