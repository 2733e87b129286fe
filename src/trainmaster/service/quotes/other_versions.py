"""What other versions of a job lend to one: times in its unit, with the doubt that lending has shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import hypot, log, sqrt
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from trainmaster.advisor.model.intervals import median
from trainmaster.advisor.model.knowledge import shape_of
from trainmaster.service.quotes.job_numbers import as_long, nearest

if TYPE_CHECKING:
    from trainmaster.advisor.model.measurement import Measurement

#: Times of one version of a job, by those of others, before any were compared (log); counts as so many.
SIMILAR_SPREAD: Final = 0.35
_BELIEF: Final = 4
#: So many of the newest versions are left out in turn.
_MOST_LEFT_OUT: Final = 12


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
