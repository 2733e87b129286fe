"""What kind of place a provider is, by its name alone."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainmaster.providers import capabilities
from trainmaster.providers.capabilities import BUILT_IN, Capabilities, OfferSource, capabilities_of
from trainmaster.providers.plugins import PROVIDERS
from trainmaster.spec.log_normal import LogNormal

CAPABILITIES = Capabilities(costs=False, spot=False)
SOURCE = Path(capabilities.__file__).parents[1]


class Plugin:
    """A provider whose module says what it can; it is defined in a part of its package."""

    __module__ = "trainmaster.providers.base"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
        return [
            importlib.metadata.EntryPoint("moon", f"{__name__}:Plugin", group),
            importlib.metadata.EntryPoint("gcp", f"{__name__}:Plugin", group),
            importlib.metadata.EntryPoint("old", "trainmaster.providers.base:ProviderPlace", group),
            importlib.metadata.EntryPoint("lost", "no.such.module:Thing", group),
        ]

    def forget() -> None:
        capabilities._plug_ins.cache_clear()
        capabilities._of_plug_in.cache_clear()

    forget()
    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    yield
    forget()


def test_all_that_are_built_in_say_it() -> None:
    assert {*PROVIDERS.built_in, "local"} <= BUILT_IN.keys()


def test_this_machine_hosts_and_clouds() -> None:
    here, own, cloud, lab = map(capabilities_of, ("local", "hosts", "aws", "lab"))
    assert here.is_here
    assert not any(each.is_here for each in (own, cloud, lab))
    assert [each.rents for each in (here, own, cloud, lab)] == [False, False, True, True]
    assert [each.costs for each in (here, own, cloud, lab)] == [False, False, True, True]
    assert (cloud.reach, cloud.offers, lab.offers) == ("ssh", OfferSource.CATALOGUE, OfferSource.LAB)


def test_a_plug_in_says_it_in_its_module(installed: None) -> None:
    assert capabilities_of("moon") == CAPABILITIES
    assert capabilities_of("gcp") == CAPABILITIES, "it rents there; we only know prices"


@pytest.mark.parametrize("name", ["old", "lost", "nobody", "vast"])
def test_one_that_says_nothing_is_a_cloud(installed: None, name: str) -> None:
    """Those that state nothing or cannot be loaded, and clouds that only a price list names."""
    found = capabilities_of(name)
    assert found == Capabilities()
    assert found.rents
    assert found.ends_itself
    assert found.billing.quantum_s == 60.0


def test_nothing_compares_names_of_providers() -> None:
    """But for rows of the price list of EC2, which are told from others of the same file."""
    compared = re.compile(r"provider\S* (==|!=) \"|\" (==|!=) \S*provider")
    found = [
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in SOURCE.rglob("*.py")
        for line in path.read_text().splitlines()
        if compared.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "there_s", "given_back_s"),
    [
        ("local", (0.0, 0.0), (30.0, 0.6)),
        ("hosts", (6.0, 0.8), (0.5, 0.7)),
        ("lab", (6.0, 0.6), (3.0, 0.7)),
        ("aws", (90.0, 0.5), (30.0, 0.6)),
        ("gcp", (90.0, 0.5), (30.0, 0.6)),
        ("azure", (150.0, 0.6), (30.0, 0.6)),
        ("im", (1000.0, 0.4), (30.0, 0.6)),
        ("nobody", (180.0, 0.8), (30.0, 0.6)),
    ],
)
def test_how_long_one_waits_for_machines_is_what_their_provider_states(
    name: str, there_s: tuple[float, float], given_back_s: tuple[float, float]
) -> None:
    found = capabilities_of(name)
    assert found.provisioning_s == LogNormal(*there_s)
    assert found.giving_back_s == LogNormal(*given_back_s)
