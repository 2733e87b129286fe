"""Which checkpoint of another run a recipe means."""

from __future__ import annotations

import pytest

from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.spec.sections import RunReference

FOUND = {"prepare": set(), "train": {0, 2}, "tune": {1}}


@pytest.mark.parametrize(
    ("text", "namesake", "found", "meant"),
    [
        ("r-1", "train", {"train": {0}}, "r-1/train/0"),
        ("r-1", "fine", {"prepare": set(), "train": {4}}, "r-1/train/4"),
        ("r-1", "tune", FOUND, "r-1/tune/1"),
        ("r-1/tune", "train", FOUND, "r-1/tune/1"),
        ("r-1/train/2@7", "train", FOUND, "r-1/train/2@7"),
        ("r-1@3", "tune", FOUND, "r-1/tune/1@3"),
    ],
)
def test_what_is_left_out_is_found_where_there_is_one(text, namesake, found, meant):
    assert str(RunReference.parse(text).settled(namesake, found)) == meant


@pytest.mark.parametrize(
    ("text", "namesake", "found", "kind", "message"),
    [
        ("r-1", "x", {"train": set()}, NotFoundError, "r-1 left no checkpoint"),
        ("r-1", "x", FOUND, UsageError, "several experiments of r-1 left checkpoints: train, tune"),
        ("r-1", "train", FOUND, UsageError, "several tasks of r-1/train left checkpoints: 0, 2"),
        ("r-1/prepare", "x", FOUND, NotFoundError, "r-1/prepare left no checkpoint"),
        ("r-1/train/1", "x", FOUND, NotFoundError, "r-1/train/1 left no checkpoint"),
        ("r-1/tran", "x", FOUND, NotFoundError, "r-1 has no experiment tran"),
    ],
)
def test_what_is_not_there_or_not_clear_is_named(text, namesake, found, kind, message):
    with pytest.raises(kind, match=message):
        RunReference.parse(text).settled(namesake, found)
