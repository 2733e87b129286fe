"""A volume of a run on this machine, where it cannot be mounted, though nothing seems to be in the way."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from trainmaster.control.attempt.data_sources import (
    pinned_volume,
    provide_volume,
    volume_place,
    withdraw_volumes,
)
from trainmaster.spec.facts import Fact, RunFacts
from trainmaster.volumes.mounting import MountError, providing
from trainmaster.volumes.packed.pushing import push

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("blake3", reason="blake3 is not installed")


def test_every_attempt_finds_what_was_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> NoReturn:
        raise MountError("the kernel refused", "Use `volume get` instead.")

    monkeypatch.setattr(providing, "mount", refused)
    monkeypatch.setenv("TRAINMASTER_CACHE", str(tmp_path / "cache"))
    source, data = tmp_path / "source", tmp_path / "data"
    source.mkdir()
    (source / "a").write_text("a")
    url = f"file://{tmp_path}/volume"
    push(source, url)
    data.mkdir()
    place = data / volume_place("images")
    facts = RunFacts()
    for _ in range(2):
        provide_volume("images", url, place, facts)
        assert (place / "a").read_text() == "a"
        monkeypatch.undo()  # the second time it could be mounted: what is there stays
        monkeypatch.setenv("TRAINMASTER_CACHE", str(tmp_path / "cache"))
    assert place.is_symlink()
    withdraw_volumes(data)
    assert not place.is_symlink()


def test_the_first_look_decides(tmp_path: Path) -> None:
    source, url = tmp_path / "source", f"file://{tmp_path}/volume"
    source.mkdir()
    for text in "12":
        (source / "a").write_text(text)
        push(source, url)
    assert pinned_volume("images", url, RunFacts()) == f"{url}@2"
    facts = RunFacts({(Fact.VOLUME, "images"): f"{url}@1"})
    assert pinned_volume("images", url, facts) == f"{url}@1"
    push(source, f"file://{tmp_path}/digits")
    facts = RunFacts()
    assert pinned_volume("digits", f"file://{tmp_path}/none", facts) is None
    assert pinned_volume("digits", f"file://{tmp_path}/digits", facts) is None, "it was built in before"
