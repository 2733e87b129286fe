"""Where things lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmaster.control.task.layout import Home, attempt_id
from trainmaster.spec.errors import UsageError


def test_everything_lies_under_the_home_by_default(tmp_path: Path):
    home = Home.from_environment({"TRAINMASTER_HOME": str(tmp_path / "new" / "home")})
    assert home.root.is_dir()
    assert home.store_url == f"file://{home.root}/store"
    assert home.database_url == f"sqlite:///{home.root}/trainmaster.db"
    assert home.model_uri("r", "train", 3) == f"file://{home.root}/store/models/r/train/3"
    assert home.checkpoints_uri("r", "train", 3) == f"file://{home.root}/store/checkpoints/r/train/3"


def test_each_part_may_lie_elsewhere(tmp_path: Path):
    home = Home.from_environment(
        {
            "TRAINMASTER_HOME": str(tmp_path),
            "TRAINMASTER_CACHE": "/cache",
            "TRAINMASTER_STORE": "s3://bucket/",
            "TRAINMASTER_DATABASE": "postgresql://host/db",
        }
    )
    assert (home.cache, home.database_url) == (Path("/cache"), "postgresql://host/db")
    assert home.model_uri("r", "e", 0) == "s3://bucket/models/r/e/0"


def test_the_places_of_attempts_are_distinct(tmp_path: Path):
    home = Home.from_environment({"TRAINMASTER_HOME": str(tmp_path)})
    places = [
        home.attempt(run, experiment, task, attempt)
        for run in "rs"
        for experiment in "ef"
        for task in range(2)
        for attempt in (1, 2)
    ]
    parts = [
        part
        for place in places
        for part in (
            place.checkpoint,
            place.output("worker-0", first=True),
            place.output("worker-1", first=False),
            place.log("worker-0"),
            place.metrics("worker-0"),
        )
    ]
    assert len(set(parts)) == len(parts)
    assert all(part.is_relative_to(tmp_path) for part in parts)
    assert attempt_id("r", "e", 0, 1) == "r/e/0/1"


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"TRAINMASTER_HOME: cannot make the directory .*/file/home"):
        Home.from_environment({"TRAINMASTER_HOME": str(tmp_path / "file" / "home")})


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(UsageError, match="is not writable"):
        Home.from_environment({"TRAINMASTER_HOME": str(tmp_path)})


@pytest.mark.parametrize("damage", [b"", b"\n", b"\0" * 33, b"\xff\xfe", b"../x", b"a b"])
def test_a_home_whose_name_is_damaged_is_no_new_one(tmp_path: Path, damage: bytes):
    """It would not know its machines any more."""
    home = Home.from_environment({"TRAINMASTER_HOME": str(tmp_path)})
    assert home.identity() == home.identity()
    (tmp_path / "identity").write_bytes(damage)
    with pytest.raises(UsageError, match=r"identity is damaged(.|\n)*`home_id` in its table `run`"):
        home.identity()


def test_a_home_that_is_away_gets_no_second_name(tmp_path: Path):
    """Its disk may come back, with the name that its machines bear."""
    home = Home.from_environment({"TRAINMASTER_HOME": str(tmp_path / "home")})
    (tmp_path / "home").rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        home.identity()
    assert not (tmp_path / "home").exists()
