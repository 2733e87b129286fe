"""`ProviderOutage`: times in which a provider has nothing to give or is away, or this machine is. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from trainmaster.dataclass import dataclass, field
from trainmaster.spec.units import format_duration

#: A provider's shorter failures are not reported.
AWAY_S: Final = 10.0
#: A loop that has not turned for so long was stopped: the machine slept, or the process was.
ASLEEP_S: Final = 30.0
#: What lasts is told again after so long.
TELL_S: Final = 300.0


@dataclass(slots=True)
class Reminder:
    """Tells something that lasts once, and again now and then."""

    text: str = ""
    at: float = 0.0

    def is_due(self, text: str, now: float) -> bool:
        """Whether it is to be told now; an empty text is never told, and forgets what was.

        >>> reminder = Reminder()
        >>> [reminder.is_due("it rains", at) for at in (0.0, 10.0, 310.0)]
        [True, False, True]
        """
        if not text or (text == self.text and now - self.at < TELL_S):
            self.text = text
            return False
        self.text, self.at = text, now
        return True


@dataclass(slots=True)
class ProviderOutage:
    """One cluster's view of it.

    Attributes:
        name: of the cluster, for people.
        provider: its name.
        slept: from when to when this process did not run, the last time.
    """

    name: str
    provider: str
    slept: tuple[float, float] | None = None
    _turned_at: float | None = None
    _told: Reminder = field(default_factory=Reminder)
    _told_waits: Reminder = field(default_factory=Reminder)

    def turned(self, now: float) -> bool:
        """The loop turns; whether it has not done so for long, though it was not ended."""
        turned_at, self._turned_at = self._turned_at, now
        if turned_at is None or now - turned_at < ASLEEP_S:
            return False
        self.slept = (turned_at, now)
        return True

    def paused(self) -> None:
        """The loop does not turn until it is started again."""
        self._turned_at = None

    def sleep_note(self, lives_until: float) -> str:
        """What is told on waking.

        Args:
            lives_until: when the last machine has ended itself, Unix seconds.
        """
        assert self.slept is not None
        note = f"{self.name}: this machine slept from {_times(self.slept)}"
        if self.slept[1] > lives_until:
            note += "; leases were over meanwhile, so machines have ended themselves"
        return f"{note}; {self.provider} is asked what is there"

    def away_note(
        self, since: float | None, error: str, now: float, *, is_cut_off: bool, is_used: bool
    ) -> str:
        """What the user reads about a provider that does not answer, or does so again; mostly nothing.

        Args:
            since: when it did not answer first, Unix seconds; None if it does.
            error: what it, or the network, said.
            now: Unix seconds.
            is_cut_off: no machine answers either.
            is_used: there are machines.
        """
        if since is None:
            was_told, self._told = bool(self._told.text), Reminder()
            return f"{self.name}: {self.provider} answers again" if was_told else ""
        if now - since < AWAY_S:
            return ""
        if is_cut_off:
            how = "nor does any machine: this machine seems to be cut off from the network"
        elif is_used:
            how = "machines go on, and their leases are renewed over SSH; none can be rented or given back"
        else:
            how = "and no machine can be rented"
        if not self._told.is_due(how, now):
            return ""
        asked = f"{clock_time(since)} ({format_duration(now - since)})"
        return f"{self.name}: {self.provider} has not answered since {asked}, {how}: {error}"

    def waiting_note(self, waits: str, retry_at: float | None, now: float) -> str:
        """What is told while a provider has no machines: once, and now and then as long as it lasts.

        Args:
            waits: for what, in words; empty for nothing.
            retry_at: when it is asked again, Unix seconds.
            now: Unix seconds.
        """
        if not self._told_waits.is_due(waits if retry_at is not None else "", now) or retry_at is None:
            return ""
        left = format_duration(max(retry_at - now, 1.0))
        return (
            f"{self.name} {waits}; asked again at {clock_time(retry_at)}, in {left} "
            "(TRAINMASTER_CAPACITY_PATIENCE says how often)"
        )

    def lapsed(
        self, leased_until: Mapping[str, float], lost_since: Mapping[str, float], now: float
    ) -> dict[str, str]:
        """Why leases were not renewed in time, by machine id.

        Args:
            leased_until: as they were renewed last, Unix seconds, by id.
            lost_since: since when machines do not answer, Unix seconds, by id.
            now: Unix seconds.
        """
        found = {}
        for machine, until in leased_until.items():
            if until >= now:
                continue
            why = f"it could not be reached by SSH since {clock_time(lost_since.get(machine, until))}"
            if self.slept is not None and self.slept[0] <= until <= self.slept[1]:
                why = f"this machine slept from {_times(self.slept)}"
            found[machine] = f"its lease was over at {clock_time(until)}, as {why}"
        return found


def clock_time(at: float) -> str:
    """Of the day, for people.

    Args:
        at: Unix seconds.
    """
    return time.strftime("%H:%M:%S", time.localtime(at))


def _times(between: tuple[float, float]) -> str:
    began, ended = between
    return f"{clock_time(began)} to {clock_time(ended)} ({format_duration(ended - began)})"
