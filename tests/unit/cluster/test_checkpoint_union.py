"""What the directories of several nodes are together, if all of them began as the same checkpoint."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.artifacts import FileEntry
from trainmaster.cluster.node_files.merging import Tree, looks, merge_trees, tree_of
from trainmaster.cluster.node_files.trees import FILE, FOLDER, LINK, TreeEntry

_PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)


def entry(path: str, kind: str, version: int) -> TreeEntry:
    if kind == FILE:
        return TreeEntry(path, FILE, 1, version)
    return (
        TreeEntry(path, kind, mode=0o755) if kind == FOLDER else TreeEntry(path, LINK, target=f"x{version}")
    )


def can_stand(path: str, tree: Tree) -> bool:
    return all(not f"{path}/".startswith(f"{e.path}/") and not e.path.startswith(f"{path}/") for e in tree)


def folders(tree: Tree) -> set[str]:
    """All directories of one, empty or not."""
    found = {e.path for e in tree if e.kind == FOLDER}
    for e in tree:
        parts = e.path.split("/")
        found |= {"/".join(parts[:n]) for n in range(1, len(parts))}
    return found


@st.composite
def bases(draw: st.DrawFn) -> Tree:
    """What can lie in one directory."""
    found: Tree = []
    for path in draw(st.lists(_PATHS, max_size=6, unique=True)):
        if can_stand(path, found):
            found.append(entry(path, draw(st.sampled_from([FILE, FILE, LINK, FOLDER])), 0))
    return sorted(found)


@st.composite
def changed(draw: st.DrawFn, base: Tree) -> Tree:
    """What a member may make of it: what it removes leaves a folder, or takes that along."""
    found: Tree = []
    for each in base:
        what = draw(st.sampled_from(["keep", "keep", "keep", "change", "remove", "empty"]))
        if what in ("keep", "change"):
            found.append(each if what == "keep" else entry(each.path, each.kind, draw(st.integers(1, 2))))
        elif what == "empty" and "/" in each.path:
            found.append(entry(each.path.rpartition("/")[0], FOLDER, 0))
    for path in draw(st.lists(_PATHS, max_size=2)):
        if all(e.path != path for e in found):
            found.append(entry(path, draw(st.sampled_from([FILE, LINK, FOLDER])), draw(st.integers(1, 2))))
    kept: Tree = []
    for each in draw(st.permutations(found)):
        if can_stand(each.path, kept):
            kept.append(each)
    return sorted(kept)


@st.composite
def gangs(draw: st.DrawFn, most: int = 3) -> tuple[Tree, list[Tree]]:
    base = draw(bases())
    return base, [draw(changed(base)) for _ in range(draw(st.integers(1, most)))]


def plain(union: list[tuple[int, TreeEntry]]) -> Tree:
    return [e for _, e in union]


def content(tree: Tree) -> Tree:
    """Without folders: files and links."""
    return [e for e in tree if e.kind != FOLDER]


def words(tree: Tree, base: Tree) -> set[str]:
    """Paths that a member has changed or made."""
    was, had = looks(base), folders(base)
    return {
        e.path
        for e in tree
        if (e.path not in had if e.kind == FOLDER else looks([e])[e.path] != was.get(e.path))
    }


def is_related(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


@given(gangs(most=1))
def test_one_directory_is_itself(gang: tuple[Tree, list[Tree]]) -> None:
    base, trees = gang
    assert plain(merge_trees(trees, base)) == trees[0]


@given(st.data(), bases(), st.integers(1, 4))
def test_what_nobody_has_changed_or_removed_is_left(data: st.DataObject, base: Tree, count: int) -> None:
    removed = [data.draw(st.sets(st.sampled_from(base))) if base else set() for _ in range(count)]
    trees = [[e for e in base if e not in gone] for gone in removed]
    union = plain(merge_trees(trees, base))
    assert content(union) == [e for e in content(base) if not any(e in gone for gone in removed)]
    assert folders(union) == set.intersection(*map(folders, trees))


@given(gangs())
def test_what_anybody_has_changed_is_in_it(gang: tuple[Tree, list[Tree]]) -> None:
    """Unless the one before has changed that, or something that it cannot stand beside."""
    base, trees = gang
    union = merge_trees(trees, base)
    told = [words(tree, base) for tree in trees]
    for number, tree in enumerate(trees):
        before = set().union(*told[:number])
        for each in tree:
            if each.path in told[number] and not any(is_related(each.path, path) for path in before):
                others = set().union(*told[number + 1 :])
                is_filled = any(path.startswith(f"{each.path}/") for path in others)
                assert (number, each) in union or (each.kind == FOLDER and is_filled)


@given(gangs())
def test_what_lies_in_it_has_a_reason(gang: tuple[Tree, list[Tree]]) -> None:
    """Somebody's word, or all have it as it was."""
    base, trees = gang
    for number, each in merge_trees(trees, base):
        if each.kind == FOLDER and not any(each in tree for tree in trees):
            assert all(each.path in folders(tree) for tree in trees)
        else:
            assert each in trees[number]
        if each.path not in words(trees[number], base):
            assert all(each.path in folders(t) if each.kind == FOLDER else each in t for t in trees)


@given(gangs(), st.integers(1, 3))
def test_it_is_the_same_when_it_was_restored_to_all(gang: tuple[Tree, list[Tree]], count: int) -> None:
    base, trees = gang
    union = plain(merge_trees(trees, base))
    assert plain(merge_trees([union] * count, union)) == union
    assert plain(merge_trees([union], base)) == union


@given(gangs())
def test_the_order_matters_only_for_what_several_have_changed(gang: tuple[Tree, list[Tree]]) -> None:
    base, trees = gang
    told = [words(tree, base) for tree in trees]

    def is_disputed(path: str) -> bool:
        return sum(any(is_related(path, other) for other in each) for each in told) > 1

    def undisputed(order: tuple[int, ...]) -> Tree:
        union = plain(merge_trees([trees[n] for n in order], base))
        return [e for e in union if not is_disputed(e.path)]

    first, *others = permutations(range(len(trees)))
    for order in others:
        assert undisputed(order) == undisputed(first)


@pytest.mark.parametrize(
    ("first", "second", "union"),
    [
        ("old old", "old old", "old old"),
        ("old old", "old new", "old new"),
        ("new old", "old new", "new new"),
        ("new old", "own new", "new new"),
        ("- old", "old new", "- new"),
        ("- new", "old old", "- new"),
        ("- -", "new old", "new -"),
    ],
)
def test_shards_under_the_same_names_and_what_was_rotated_away(first: str, second: str, union: str) -> None:
    times = {"old": 1, "new": 2, "own": 3}
    names = ("step-0", "step-1")

    def tree(text: str) -> Tree:
        said = zip(names, text.split(), strict=True)
        return [TreeEntry(name, FILE, 4, times[each]) for name, each in said if each != "-"]

    assert plain(merge_trees([tree(first), tree(second)], tree("old old"))) == tree(union)


def test_a_file_takes_the_place_of_a_folder_and_a_folder_that_of_a_file() -> None:
    base = [TreeEntry("a/x", FILE, 1, 1), TreeEntry("b", FILE, 1, 1), TreeEntry("c", FOLDER)]
    mine = [TreeEntry("a", FILE, 1, 2), TreeEntry("b/y", FILE, 1, 2), TreeEntry("c/z", FILE, 1, 2)]
    assert plain(merge_trees([base, mine], base)) == mine
    assert plain(merge_trees([mine, base], base)) == mine


def test_a_folder_that_two_have_emptied_together_is_empty() -> None:
    base = [TreeEntry("a/x", FILE, 1, 1), TreeEntry("a/y", FILE, 1, 1)]
    assert plain(merge_trees([base[:1], base[1:]], base)) == [TreeEntry("a", FOLDER, mode=0o755)]
    assert plain(merge_trees([[], base], base)) == []


def test_times_before_1970_and_modes_are_no_change() -> None:
    base = tree_of([FileEntry("a", size_bytes=1, sha256="0" * 64, mtime_ns=0, object="files-1/a")])
    one, two = TreeEntry("a", FILE, 1, -5, 0o600), TreeEntry("a", FILE, 1, 7)
    assert merge_trees([[one], [two]], base) == [(1, two)]
