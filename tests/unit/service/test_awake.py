"""When the user is told that this machine has to stay awake."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from trainmaster.service.run_planning import SuspendRisk, awake_note

EVENING = datetime(2026, 11, 20, 19, 10)
LAPTOP = SuspendRisk(has_battery=True, has_lid=True)
SERVER = SuspendRisk()
HOUR = 3600.0


@pytest.mark.parametrize(
    ("machine", "time_s", "told"),
    [
        (LAPTOP, 9 * HOUR, True),
        (LAPTOP, HOUR, True),
        (LAPTOP, 600.0, False),
        (LAPTOP, None, True),
        (SERVER, 9 * HOUR, True),
        (SERVER, HOUR, False),
        (SERVER, None, False),
        (SuspendRisk(has_desktop=True), HOUR, True),
        (SuspendRisk(has_battery=True, is_kept_awake=True), HOUR, False),
    ],
)
def test_who_may_sleep_before_the_run_is_over_is_told(
    machine: SuspendRisk, time_s: float | None, told: bool
) -> None:
    assert bool(awake_note(time_s, machine, 900.0, EVENING)) == told


def test_it_says_until_when_and_what_happens_otherwise() -> None:
    note = awake_note(9 * HOUR, LAPTOP, 900.0, EVENING)
    assert "9 h" in note
    assert "until 04:10 tomorrow" in note
    assert "15 min later" in note
    assert "waits until it wakes (after a restart: `trainmaster resume`)" in note
    assert "until 20:10)" in awake_note(HOUR, LAPTOP, 900.0, EVENING)
    assert "on 2026-11-23" in awake_note(60 * HOUR, LAPTOP, 900.0, EVENING)
    assert "until the run is over" in awake_note(None, LAPTOP, 900.0, EVENING)


def test_a_laptop_is_known_by_its_battery_and_lid(tmp_path: Path) -> None:
    assert SuspendRisk.of_this_machine({}, tmp_path) == SERVER
    candidate_offers = tmp_path / "sys/class/power_supply/hidpp_battery_0"
    candidate_offers.mkdir(parents=True)
    (candidate_offers / "type").write_text("Battery\n")
    (candidate_offers / "scope").write_text("Device\n")
    assert not SuspendRisk.of_this_machine({}, tmp_path).has_battery, "a mouse"
    candidate_offers = tmp_path / "sys/class/power_supply/BAT0"
    candidate_offers.mkdir()
    (candidate_offers / "type").write_text("Battery\n")
    lid = tmp_path / "proc/acpi/button/lid/LID0"
    lid.mkdir(parents=True)
    (lid / "state").write_text("state:      open\n")
    assert SuspendRisk.of_this_machine({}, tmp_path) == LAPTOP
    target = tmp_path / "etc/systemd/system/sleep.target"
    target.parent.mkdir(parents=True)
    target.symlink_to("/dev/null")
    assert not SuspendRisk.of_this_machine({}, tmp_path).may_sleep


def test_a_desktop_is_known_by_its_session(tmp_path: Path) -> None:
    assert SuspendRisk.of_this_machine({"XDG_SESSION_TYPE": "wayland"}, tmp_path).may_sleep
    assert not SuspendRisk.of_this_machine({"XDG_SESSION_TYPE": "tty"}, tmp_path).may_sleep
