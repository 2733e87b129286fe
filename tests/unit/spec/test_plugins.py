from __future__ import annotations

import importlib.metadata
import sys
from types import SimpleNamespace

import pytest

from trainmaster.spec.errors import MissingPartError, TrainmasterError, UsageError
from trainmaster.spec.plugins import PluginRegistry

HERE = __name__
REGISTRY = PluginRegistry("thing", {"own": f"{HERE}:Own", "unused": "no.such.module:Thing"}, also=("none",))


class Own:
    pass


class Theirs:
    def __init__(self, number: int) -> None:
        self.number = number


class Refuses:
    def __init__(self) -> None:
        raise TrainmasterError("no credentials", "Run `moon login`.")


class Fails:
    def __init__(self) -> None:
        raise AssertionError


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The groups that were asked for; some plug-ins are installed in each."""
    groups: list[str] = []

    def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
        groups.append(group)
        plugins = {"own": "Theirs", "moon": "Theirs", "refuses": "Refuses", "fails": "Fails"}
        points = [
            importlib.metadata.EntryPoint(name, f"{HERE}:{value}", group) for name, value in plugins.items()
        ]
        lost = importlib.metadata.EntryPoint("lost", "no.such.module:Thing", group)
        vars(lost)["dist"] = SimpleNamespace(name="moon-tools")
        return [*points, lost]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    return groups


def test_built_in_first(asked: list[str]) -> None:
    """No plug-in takes the place of what ships, and none is looked for; modules are loaded when wanted."""
    assert REGISTRY.load("own") is Own
    assert isinstance(REGISTRY.make("own"), Own)
    REGISTRY.check("unused")
    assert asked == []


def test_plug_ins_are_found_in_the_group_of_their_kind(asked: list[str]) -> None:
    assert REGISTRY.load("moon") is Theirs
    assert set(asked) == {"trainmaster.things"}
    assert REGISTRY.make("moon", 3).number == 3


def test_nothing_is_loaded_for_a_check() -> None:
    REGISTRY.check("lost")
    assert "no.such.module" not in sys.modules


def test_what_cannot_be_loaded_says_what_to_install_or_remove() -> None:
    with pytest.raises(
        MissingPartError, match=r"the thing 'lost' \(no\.such\.module:Thing\).*No module"
    ) as caught:
        REGISTRY.load("lost")
    assert caught.value.hint == "Install what it needs, or remove it (pip uninstall moon-tools)."
    with pytest.raises(MissingPartError, match=r"'fails'.*AssertionError") as caught:
        REGISTRY.make("fails")
    assert caught.value.hint == "Install what it needs, or remove it."


def test_what_a_plug_in_says_to_users_stays_as_it_is() -> None:
    with pytest.raises(TrainmasterError, match="no credentials") as caught:
        REGISTRY.make("refuses")
    assert not isinstance(caught.value, MissingPartError)


@pytest.mark.parametrize("ask", [REGISTRY.load, REGISTRY.make, REGISTRY.check])
def test_nobody_knows_it(ask) -> None:
    with pytest.raises(UsageError, match="there is no thing 'mooon'") as caught:
        ask("mooon")
    assert (
        caught.value.hint == "Did you mean 'moon'? Known are fails, lost, moon, none, own, refuses, unused."
    )
