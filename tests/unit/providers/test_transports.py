"""How machines of a provider are reached."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from trainmaster.providers import capabilities
from trainmaster.providers.base import ProviderPlace
from trainmaster.providers.capabilities import Capabilities, get_transport
from trainmaster.spec import plugins
from trainmaster.spec.errors import UsageError
from trainmaster.transport.local import Local


def ropes(place: ProviderPlace) -> Local:
    """What an entry point names."""
    assert place.root.name == "home"
    return Local()


def test_a_plug_in_leads_to_the_machines_of_a_provider(tmp_path, monkeypatch):
    point = EntryPoint("ropes", f"{__name__}:ropes", "trainmaster.transports")
    monkeypatch.setattr(plugins.PluginRegistry, "plug_ins", lambda _: {"ropes": point})
    monkeypatch.setattr(capabilities, "capabilities_of", lambda _: Capabilities(reach="ropes"))
    assert isinstance(get_transport("acme", ProviderPlace(tmp_path / "home", "")), Local)


def test_one_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(capabilities, "capabilities_of", lambda _: Capabilities(reach="ropes"))
    with pytest.raises(UsageError, match="there is no transport 'ropes'") as caught:
        get_transport("acme", ProviderPlace(tmp_path, ""))
    assert "ssh" in caught.value.hint
