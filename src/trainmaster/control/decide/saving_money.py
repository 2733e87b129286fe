"""`SavingMoney`: what machines cost that only wait for something to be saved, and when that is enough."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from trainmaster.control.decide.budget import SWITCH_OFF_S, USUAL_LEASE_S
from trainmaster.control.loop.run_state import Task
from trainmaster.spec.states import State

#: Set aside for waiting where the recipe's ``budget.saving`` says nothing: a day's rent, or so much if less.
USUAL_USD: Final = 20.0
USUAL_HOURS: Final = 24.0

#: Of a task that uses its machines, or is about to.
_AT_WORK: Final = (State.ACQUIRING, State.STAGING, State.RUNNING)
_ENDED: Final = (State.RECOVERING, State.SAVING)


def saving_limit_usd(given_usd: float | None, usd_per_hour: float) -> float:
    """How much waiting for something to be saved may cost.

    Args:
        given_usd: the recipe's ``budget.saving``.
        usd_per_hour: price of the machines.

    >>> saving_limit_usd(None, 0.5), saving_limit_usd(None, 40.0), saving_limit_usd(3.0, 40.0)
    (12.0, 20.0, 3.0)
    """
    return min(USUAL_USD, USUAL_HOURS * usd_per_hour) if given_usd is None else given_usd


@dataclass(slots=True)
class SavingMoney:
    """Counts while nothing else is done on the machines of the run. On one's own, waiting costs nothing.

    Attributes:
        given_usd: see `saving_limit_usd`.
        spent_usd: so far.
        usd_per_hour: price of the machines, when it was looked at last.
    """

    given_usd: float | None = None
    spent_usd: float = 0.0
    usd_per_hour: float = 0.0
    _counted_at: float | None = None

    @property
    def limit_usd(self) -> float:
        """See `saving_limit_usd`."""
        return saving_limit_usd(self.given_usd, self.usd_per_hour)

    @property
    def is_used(self) -> bool:
        """True if what waits has waited for long enough."""
        return self.usd_per_hour > 0 and self.spent_usd >= self.limit_usd

    def left_s(self) -> float | None:
        """Seconds until it is used, if all else is over; None if that is never."""
        if not self.usd_per_hour:
            return None
        return max(self.limit_usd - self.spent_usd, 0.0) / self.usd_per_hour * 3600

    def look(self, tasks: Iterable[Task], usd_per_hour: float, now: float) -> None:
        """Count what has passed since the last look.

        Args:
            tasks: of the run that are not DONE.
            usd_per_hour: price of what is rented.
            now: in seconds, of a clock that is not set.
        """
        self.usd_per_hour = usd_per_hour
        waiting, is_at_work = [], False
        for task in tasks:
            if task.tries and task.state in _ENDED:
                waiting.append(task)
            is_at_work = is_at_work or task.state in _AT_WORK
        if not waiting:
            self.spent_usd, self._counted_at = 0.0, None
            return
        # An earlier driver may have waited already.
        self.spent_usd = max([self.spent_usd, *(task.saving_usd for task in waiting)])
        if not is_at_work and self._counted_at is not None:
            # While this machine slept the others ended with their leases.
            passed_s = min(max(now - self._counted_at, 0.0), USUAL_LEASE_S + SWITCH_OFF_S)
            self.spent_usd += usd_per_hour * passed_s / 3600
        self._counted_at = now
