"""A script that turns a directory into a link while it is read gets nothing of elsewhere published."""

from __future__ import annotations

import pytest

from trainmaster.artifacts import UnstableDirectory, publish, tree
from trainmaster.artifacts.collecting import Content


@pytest.fixture
def places(tmp_path):
    """A directory that a script may write, and one that it cannot read."""
    output, private = tmp_path / "output", tmp_path / "private"
    for directory in (output / "sub", private):
        directory.mkdir(parents=True)
        (directory / "weights").write_text(directory.name)
    return output, private


def swap(output, private):
    (output / "sub").rename(output.parent / f"moved-{private.name}")
    (output / "sub").symlink_to(private)


def test_before_a_file_is_read(places):
    (node,) = tree.scan(places[0]).nodes
    swap(*places)
    with pytest.raises(UnstableDirectory, match="no longer a file"):
        list(Content(node, require_stable=True).blocks())


def test_before_a_directory_is_looked_into(places, monkeypatch):
    see = tree._see

    def see_and_swap(found, entry, path, top, pending):
        see(found, entry, path, top, pending)
        if path == "sub" and not (places[0] / "sub").is_symlink():
            swap(*places)

    monkeypatch.setattr(tree, "_see", see_and_swap)
    assert tree.scan(places[0]).nodes == []


def test_by_a_way_through_a_link_all_is_published(places, tmp_path):
    (tmp_path / "way").symlink_to(places[0])
    manifest = publish({"": tmp_path / "way"}, str(tmp_path / "store/model"), kind="model", extra={})
    assert [entry.path for entry in manifest.files] == ["sub/weights"]
