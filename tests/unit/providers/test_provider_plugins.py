"""Providers by name."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from trainmaster.providers.base import ProviderPlace
from trainmaster.providers.plugins import PROVIDERS, get_provider
from trainmaster.spec.errors import MissingPartError, UsageError


class Plugin:
    """What somebody has installed."""

    name = "moon"

    def __init__(self, place: ProviderPlace) -> None:
        self.place = place


@pytest.fixture
def place(tmp_path: Path) -> ProviderPlace:
    return ProviderPlace(tmp_path, "f" * 32, {"AWS_REGION": "eu-west-1"})


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Entry points of the group that was asked for."""
    asked: list[str] = []

    def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
        asked.append(group)
        here = __name__
        return [
            importlib.metadata.EntryPoint("moon", f"{here}:Plugin", group),
            importlib.metadata.EntryPoint("aws", f"{here}:Plugin", group),
            importlib.metadata.EntryPoint("lost", "no.such.module:Thing", group),
        ]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    return asked


def test_built_in_first(place: ProviderPlace, installed: list[str]) -> None:
    """No plug-in takes the place of what ships, and none is looked for."""
    found = get_provider("aws", place)
    assert found.name == "aws"
    assert not isinstance(found, Plugin)
    assert installed == []


def test_plug_ins(place: ProviderPlace, installed: list[str]) -> None:
    found = get_provider("moon", place)
    assert isinstance(found, Plugin)
    assert found.place is place
    assert installed == ["trainmaster.providers"]


def test_a_plug_in_that_cannot_be_loaded(place: ProviderPlace, installed: list[str]) -> None:
    with pytest.raises(MissingPartError, match=r"lost.*no\.such\.module") as caught:
        get_provider("lost", place)
    assert caught.value.hint


def test_nobody_knows_it(place: ProviderPlace, installed: list[str]) -> None:
    with pytest.raises(UsageError, match="'asw'") as caught:
        get_provider("asw", place)
    assert "'aws'" in caught.value.hint
    for name in (*PROVIDERS.built_in, "moon"):
        assert name in caught.value.hint


def test_what_it_remembers_is_private(place: ProviderPlace) -> None:
    assert place.directory("aws").stat().st_mode & 0o77 == 0
    assert place.directory("aws") == place.root / "providers" / "aws"


def test_no_lab_is_up(place: ProviderPlace) -> None:
    with pytest.raises(UsageError, match="no lab is up"):
        get_provider("lab", place)
