"""Where things lie on nodes, and what several nodes hold together."""

from __future__ import annotations

import contextlib
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.cluster.node_files.fetching import fetch
from trainmaster.cluster.node_files.files import NodePaths
from trainmaster.cluster.node_files.merging import merge_trees
from trainmaster.cluster.node_files.trees import FILE, FOLDER, LINK, TreeEntry
from trainmaster.control.task.layout import Home
from trainmaster.transport.base import CommandError

HOME = Home(Path("/h"), Path("/h/cache"), "", "")
PATHS = NodePaths(HOME, "run-1", "/var/tmp/tm")


def test_the_runs_own_directory_keeps_its_shape():
    place = HOME.attempt("run-1", "train", 3, 2)
    assert PATHS.there(place.checkpoint) == "/var/tmp/tm/runs/run-1/tasks/train/3/2/checkpoint"
    assert PATHS.here(PATHS.there(place.checkpoint)) == place.checkpoint
    assert PATHS.there(HOME.code_directory("run-1")) == "/var/tmp/tm/runs/run-1/code"
    assert PATHS.there(HOME.cache / "environments" / "1a2b") == "/var/tmp/tm/environments/1a2b"


def test_everything_else_is_data():
    other = PATHS.there(HOME.run_directory("run-10") / "data")
    first, second = PATHS.there(Path("/data/a/images")), PATHS.there(Path("/data/b/images"))
    assert len({other, first, second}) == 3
    for path in (other, first, second):
        assert PurePosixPath(path).is_relative_to("/var/tmp/tm/data")
    assert first.endswith("/images")
    with pytest.raises(ValueError, match="not in the subpath"):
        PATHS.here(first)


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)


@given(st.lists(NAMES, max_size=4))
def test_no_path_leaves_the_root(parts):
    there = PATHS.there(Path("/", *parts))
    assert there.startswith("/var/tmp/tm/data/")
    assert len(PurePosixPath(there).parts) == 7


NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
ENTRIES = st.builds(TreeEntry, NAMES, st.sampled_from([FILE, FOLDER]), st.integers(0, 9))


@given(st.lists(st.lists(ENTRIES, max_size=5), max_size=3))
def test_a_union_can_be_made_and_the_first_wins(trees):
    united = merge_trees(trees)
    paths = {entry.path: (number, entry) for number, entry in united}
    assert len(paths) == len(united)
    for path in paths:  # nothing lies below a file, and no directory is called empty that is not
        assert not any(other.startswith(f"{path}/") for other in paths)
    for number, tree in enumerate(trees):
        for entry in tree:
            if entry.path in paths and entry.kind == FILE:
                assert paths[entry.path][0] <= number
    if trees and all(entry.kind == FILE for entry in trees[0]):
        taken = [entry for number, entry in united if number == 0]
        firsts = merge_trees(trees[:1])
        assert taken == [entry for _, entry in firsts]


def holding(tree):
    worker = SimpleNamespace(look=lambda directory: (tree, True))
    return SimpleNamespace(workers=lambda: contextlib.nullcontext(lambda access: worker))


def test_a_node_is_not_believed_that_its_links_stay_inside(tmp_path):
    """Each by itself does: only by way of the other one does the last lead outside."""
    tree = [TreeEntry("deep/er/l", LINK, target="../.."), TreeEntry("e", LINK, target="deep/er/l/../victim")]
    files = holding(tree)
    with pytest.raises(CommandError, match="outside"):
        fetch(files, [(None, "/there")], tmp_path / "here")
    assert list(tmp_path.iterdir()) == []


def test_more_than_the_disk_has_room_for_is_not_fetched(tmp_path):
    files = holding([TreeEntry("a", FILE, 1 << 60)])
    with pytest.raises(CommandError, match="are free here"):
        fetch(files, [(None, "/there")], tmp_path / "here")
