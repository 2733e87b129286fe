"""`HomeLoad`: what was seen on this machine, as it would be at the load that it has now."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from trainmaster.dataclass import dataclass
from trainmaster.providers.capabilities import HOST, measured_name, on_this_machine

if TYPE_CHECKING:
    from trainmaster.advisor.market.load import LoadCorrection
    from trainmaster.db import Database

#: Linux counts there what computes, or waits for a disk, at this moment.
_NOW: Final = Path("/proc/stat")
#: So much more than at this moment may have been at work all the time.
_CHANCE: Final = 1.0
#: What is known of each database: the load at which a run began never changes.
_known: WeakKeyDictionary[Database, dict[str, float]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class PastDuration:
    """A time of an earlier run.

    Attributes:
        kind: what was done: like is held against like. run: its id; None of what is no run.
        seconds: that it took. offer: on what, as in `Measurement`.
        load: as it began; None: that of its run.
    """

    kind: Hashable
    run: str | None
    seconds: float
    offer: str
    load: float | None = None

    @property
    def place(self) -> str:
        """This machine, or the lab, or any other."""
        return self.offer.partition(":")[0]


@dataclass(frozen=True, slots=True)
class HomeLoad:
    """The load of this machine.

    Attributes:
        load: of the last minute, when the run that is quoted began, or now; None if unknown.
    """

    load: float | None

    @classmethod
    def now(cls) -> HomeLoad:
        """That of the last minute, without what has ended since."""
        try:
            load = os.getloadavg()[0]
        except OSError:
            return cls(None)
        with suppress(OSError, ValueError, IndexError, KeyError):
            lines = [line.split() for line in _NOW.read_text().splitlines() if line.startswith("procs_")]
            at_work = {words[0]: int(words[1]) for words in lines}
            others = at_work["procs_running"] - 1 + at_work["procs_blocked"]  # we run, too
            load = min(load, max(others, 0) + _CHANCE)
        return cls(round(load, 2))

    def of(self, providers: Iterable[str]) -> HomeLoad:
        """What counts for a quote of such places: the load of this machine does not matter elsewhere."""
        is_here = any(on_this_machine(measured_name(name, HOST)) for name in providers)
        return self if is_here else HomeLoad(0.0)

    def shifts(
        self, database: Database, seen: Sequence[PastDuration], busy: Mapping[str, float] | None = None
    ) -> list[LoadCorrection]:
        """What each time would be at this load; one of other machines stays what it is.

        Args:
            database: has the loads at which the runs began.
            seen: of one phase, or of one job: what this machine does and what a lab's do is learnt apart.
            busy: share of the time for which it wants a core, by place, as far as it is known.
        """
        from trainmaster.advisor.market.load import LoadCorrection, LoadEffect

        now, cores = self.load, os.cpu_count() or 1
        if now is None:
            return [LoadCorrection()] * len(seen)
        here = {each.run for each in seen if each.run and on_this_machine(each.offer)}
        loads = _loads(database, here) if here else {}
        began = (loads.get(each.run or "") if each.load is None else each.load for each in seen)
        then = [at if on_this_machine(each.offer) else None for each, at in zip(seen, began, strict=True)]
        places: dict[str, list[tuple[Hashable, float | None, float]]] = {}
        for each, load in zip(seen, then, strict=True):
            places.setdefault(each.place, []).append((each.kind, load, each.seconds))
        effects = {
            place: LoadEffect.learnt(points, cores, (busy or {}).get(place))
            for place, points in places.items()
        }
        shifts = zip(seen, then, strict=True)
        return [effects[each.place].shift(load, now, cores) for each, load in shifts]


def _loads(database: Database, runs: Collection[str]) -> Mapping[str, float]:
    """At which runs began, as far as that was kept."""
    known = _known.setdefault(database, {})
    for run, data in database.forecasts(sorted(set(runs) - known.keys())).items():
        with suppress(ValueError, TypeError, KeyError):  # an earlier version wrote it
            known[run] = float(json.loads(data)["load"])
    return known
