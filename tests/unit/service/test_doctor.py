"""`places_checkup`: places are looked at at once, and those of plug-ins are offered."""

from __future__ import annotations

import concurrent.futures
import threading
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.providers.base import ProviderPlace
from trainmaster.providers.capabilities import BUILT_IN, Capabilities
from trainmaster.providers.examining import Finding
from trainmaster.providers.own_settings import NotSetUpError
from trainmaster.service import doctor
from trainmaster.spec.plugins import PluginRegistry


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A home, beside a plug-in `moon`."""
    point = EntryPoint("moon", f"{__name__}:service", "trainmaster.providers")
    monkeypatch.setattr(PluginRegistry, "plug_ins", lambda registry: {"moon": point})
    monkeypatch.setattr(doctor, "capabilities_of", lambda name: BUILT_IN.get(name, Capabilities()))
    home = SimpleNamespace(root=tmp_path, identity=lambda: "0123456789abcdef")
    return SimpleNamespace(home=home, place=lambda _, environ: ProviderPlace(tmp_path, "", environ))


def test_a_silent_place_holds_no_other_up(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    calls = dict.fromkeys(("check_settings", "check_up", "close"), lambda: None)
    silent = SimpleNamespace(examine=lambda builds: answered.wait() and [], **calls)
    fine = SimpleNamespace(examine=lambda builds: [Finding("login", "it answers")], **calls)
    monkeypatch.setattr(doctor, "get_provider", lambda name, place: silent if name == "ray" else fine)
    wait = concurrent.futures.wait
    monkeypatch.setattr(concurrent.futures, "wait", lambda looks, limit_s: wait([*looks][1:]))
    try:
        ray, moon = doctor.places_checkup(service, ["ray", "moon", "ray", "local"], None, {}, limit_s=45.0)
    finally:
        answered.set()
    assert (ray.what, ray.found, ray.ok) == ("ray: login", "has not answered in 45 s", False)
    assert "doctor --provider ray" in ray.advice
    assert moon == Finding("moon: login", "it answers")


def test_what_goes_wrong_in_a_look_is_raised(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise LookupError("a fault of ours")

    monkeypatch.setattr(doctor, "get_provider", broken)
    with pytest.raises(LookupError, match="a fault of ours"):
        doctor.places_checkup(service, ["moon"], None, {})


def test_a_team_is_told_of_a_login_of_its_own_where_a_place_has_none(
    service: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_keys() -> None:
        raise NotSetUpError("no keys", "Run `aws configure`.")

    aws = SimpleNamespace(check_settings=lambda: None, check_up=no_keys, close=lambda: None)
    monkeypatch.setattr(doctor, "get_provider", lambda name, place: aws)
    (at_home,) = doctor.places_checkup(service, ["aws"], None, {})
    assert (at_home.found, at_home.advice) == ("no keys", "Run `aws configure`.")
    service.place = lambda _, environ: ProviderPlace(tmp_path, "", environ, asker="red")
    (of_team,) = doctor.places_checkup(service, ["aws"], None, {})
    assert (of_team.what, of_team.ok) == ("aws: login", False)
    assert "`trainmaster team login red aws`" in of_team.advice


def test_places_of_plug_ins_are_offered(service: Any, tmp_path: Path) -> None:
    (tmp_path / "moon.yaml").touch()
    found = doctor.other_places(service.home)
    assert found["moon"]
    assert found["ray"] is False
    assert "local" not in found


def test_what_is_not_installed_says_for_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few machines need no Ray."""
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda part: None if part == "ray" else part)
    home: Any = SimpleNamespace(database_url="sqlite:////nowhere/at/all")
    (found,) = doctor._many_machines(home)
    assert found.found == "not installed: ray"
    assert found.advice == "pip install 'trainmaster[ray]' for more than 24 machines at a time."
