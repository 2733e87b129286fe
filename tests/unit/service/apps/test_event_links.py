"""TensorBoard is shown event files of a run, and nothing that a script has put in their place."""

from __future__ import annotations

import pytest

from trainmaster.service.apps.tensorboard import _link


@pytest.fixture
def places(tmp_path):
    for name in ("output", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.tfevents").write_text(name)
    return tmp_path


def test_a_file_grows_there_too(places):
    target = places / "mirror/events.tfevents"
    assert [_link(places / "output/events.tfevents", target) for _ in range(2)] == [1, 0]
    (places / "output/events.tfevents").write_text("more")
    assert target.read_text() == "more"


def test_a_directory_that_was_swapped_for_a_link_shows_nothing(places):
    (places / "output").rename(places / "moved")
    (places / "output").symlink_to(places / "theirs")
    assert _link(places / "output/events.tfevents", places / "mirror/events.tfevents") == 0
    assert _link(places / "gone", places / "mirror/gone") == 0
    assert list(places.glob("mirror/*")) == []
