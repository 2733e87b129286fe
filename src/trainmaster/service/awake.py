"""`awake_note`: whether to tell the user that this machine has to stay awake for a run, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from trainmaster.spec.units import format_duration

#: A machine that may be closed or fall asleep is mentioned if it is needed for longer.
_SHORT_S: Final = 1800.0
#: And any machine: it may be switched off for the night, or its terminal be closed.
_LONG_S: Final = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class Sleepiness:
    """What makes this machine fall asleep.

    Attributes:
        has_battery: of its own; that of a mouse does not count.
        has_lid: that can be closed.
        has_desktop: somebody sits before it, and the desktop suspends it when they do not.
        is_kept_awake: its administrator has switched suspending off.
    """

    has_battery: bool = False
    has_lid: bool = False
    has_desktop: bool = False
    is_kept_awake: bool = False

    @classmethod
    def of_this_machine(cls, environ: Mapping[str, str], root: Path = Path("/")) -> Sleepiness:
        """As its kernel and systemd show it.

        Args:
            environ: of the user's session.
            root: where ``sys``, ``proc`` and ``etc`` are (tests make their own).
        """
        supplies = sorted((root / "sys/class/power_supply").glob("*"))
        mask = root / "etc/systemd/system/sleep.target"
        return cls(
            has_battery=any(
                _text(each / "type") == "Battery" and _text(each / "scope") != "Device" for each in supplies
            ),
            has_lid=any((root / "proc/acpi/button/lid").glob("*/state")),
            has_desktop=environ.get("XDG_SESSION_TYPE", "") in ("x11", "wayland"),
            is_kept_awake=mask.is_symlink() and mask.readlink() == Path("/dev/null"),
        )

    @property
    def may_sleep(self) -> bool:
        """Whether it is to be expected that it falls asleep when it is left alone."""
        return not self.is_kept_awake and (self.has_battery or self.has_lid or self.has_desktop)


def awake_note(time_s: float | None, sleepiness: Sleepiness, lease_s: float, now: datetime) -> str:
    """What to tell before machines are rented; empty if this machine will see the end of the run anyway.

    Args:
        time_s: that the run takes at most, most likely; None if unknown.
        sleepiness: of this machine.
        lease_s: after which abandoned machines end themselves.
        now: local time.
    """
    if time_s is None:
        if not sleepiness.may_sleep:
            return ""
        long = "until the run is over"
    else:
        if time_s < (_SHORT_S if sleepiness.may_sleep else _LONG_S):
            return ""
        long = f"for up to {format_duration(time_s)} ({_until(now, time_s)})"
    return (
        f"this machine must stay awake and connected {long}: if it sleeps, the machines end themselves "
        f"{format_duration(lease_s)} later and the run waits until it wakes (after a restart: `trainmaster "
        "resume`); better run it on a machine that stays on (ssh, tmux)"
    )


def _until(now: datetime, time_s: float) -> str:
    end = now + timedelta(seconds=time_s)
    days = (end.date() - now.date()).days
    day = "" if not days else " tomorrow" if days == 1 else f" on {end.date().isoformat()}"
    return f"until {end:%H:%M}{day}"


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
