"""When nodes may use the store, and what is done, and told, when they cannot."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.artifacts import CheckpointSeries, FileEntry, UnstableDirectory, Upload, fetch, read_manifest
from trainmaster.artifacts.manifest import check_entries
from trainmaster.artifacts.owner import ForeignArtifactError, Owner
from trainmaster.artifacts.publishing import publish_uploads
from trainmaster.artifacts.sending import ToSend
from trainmaster.cluster.node_files import sending as node_sending
from trainmaster.cluster.node_files.direct_store import DirectStore
from trainmaster.cluster.node_files.merging import Tree, merge_trees, moved
from trainmaster.cluster.node_files.sending import Source, send
from trainmaster.cluster.node_files.store_reach import AGAIN_S, AWAY_AGAIN_S
from trainmaster.cluster.node_files.trees import FILE, FOLDER, LINK, OUTWARD, TreeEntry
from trainmaster.cluster.node_files.worker_client import StoreRefusedError
from trainmaster.control.task.job_context import NodeGoneError, RelayError
from trainmaster.objects import ObjectStore, delegated_credentials
from trainmaster.objects.delegated_credentials import WHOLE_KEYS_VARIABLE, DelegatedCredentials
from trainmaster.spec.errors import PublishError
from trainmaster.transport.base import Target

AWAY = {"AWS_ENDPOINT_URL": "http://10.0.0.9:1", "AWS_ACCESS_KEY_ID": "id"}


def node(number: int) -> Any:
    return SimpleNamespace(id=f"i-{number}", seat=f"worker-{number}", target=Target(f"n{number}", "10.0.0.5"))


class Files:
    """Directories of nodes, by node and path, and our program on each of them."""

    def __init__(self, trees: Mapping[tuple[str, str], Tree], stores: Stores | None = None) -> None:
        self.trees = dict(trees)
        self.stores = stores or Stores()
        self.frozen: list[str] = []
        self.wiped: set[str] = set()
        self.reach = self.stores.reach

    def workers(self) -> Any:
        return contextlib.nullcontext(partial(Worker, self))


class Worker:
    """What the program on one node does."""

    def __init__(self, files: Files, access: Any) -> None:
        self._files, self._access = files, access
        self.send = partial(files.stores.send, access)

    def look(self, directory: str) -> tuple[Tree, bool]:
        tree = self._files.trees.get((self._access.id, directory), [])
        return tree, self._access.id not in self._files.wiped

    def freeze(self, directory: str, frozen: str, paths: Sequence[str]) -> Tree:
        tree, _ = self.look(directory)
        self._files.trees[self._access.id, frozen] = [entry for entry in tree if entry.path in paths]
        self._files.frozen.append(frozen)
        return tree

    def thaw(self, frozen: str) -> Tree:
        return self._files.trees.pop((self._access.id, frozen))


class Stores:
    """Uploads by putting what is asked for there; refuses as told."""

    def __init__(self) -> None:
        self.refusing: set[str] = set()
        self.words, self.trouble = "no way", ""
        self.reached: list[str] = []
        self.sent: list[ToSend] = []
        self.meanwhile: Any = lambda: None

    def reach(self, access: Any, _uri: str, _delegated: object) -> None:
        self.reached.append(access.id)
        if access.id in self.refusing:
            raise StoreRefusedError(access, self.words, self.trouble)

    def send(
        self, access: Any, uri: str, folder: str, _journal: str, files: Sequence[ToSend], _delegated: object
    ) -> list[FileEntry]:
        if access.id in self.refusing:
            raise StoreRefusedError(access, self.words, self.trouble)
        self.sent += files
        self.meanwhile()
        store = ObjectStore(uri)
        for file in files:
            store.put(f"{folder}/{file.path}", bytes(file.size_bytes))
        return [
            FileEntry(f.path, "file", f.size_bytes, "0" * 64, f.mode, f.mtime_ns, "", f"{folder}/{f.path}")
            for f in files
        ]


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**AWAY, WHOLE_KEYS_VARIABLE: "true"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def sendable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of this machine as if it were anywhere."""
    monkeypatch.setattr(delegated_credentials, "store_environment", lambda _: {})


def direct(files: Files, told: list[str], now: Any = lambda: 0.0) -> DirectStore:
    return DirectStore(files, DelegatedCredentials(), (), told.append, now)  # type: ignore[arg-type]


def test_a_store_that_means_another_machine_there_is_not_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:8333")
    monkeypatch.setenv(WHOLE_KEYS_VARIABLE, "true")
    told: list[str] = []
    stores = Stores()
    made = direct(Files({}, stores), told)
    for _ in range(2):
        with pytest.raises(RelayError, match="leads to this machine from here only"):
            made._delegated("s3://b/x", [Source(node(1), "/c")])
    assert len(told) == 1
    assert stores.reached == []
    with pytest.raises(RelayError, match="on this machine only"):
        made._delegated("file:///store", [Source(node(1), "/c")])


def test_a_node_that_cannot_is_asked_again_much_later(away: None) -> None:
    told: list[str] = []
    stores, now = Stores(), [1000.0]
    stores.refusing = {"i-2"}
    made = direct(Files({}, stores), told, lambda: now[0])
    sources = [Source(node(1), "/c"), Source(node(2), "/c")]
    for _ in range(3):
        with pytest.raises(RelayError, match="no way"):
            made._delegated("s3://b/x", sources)
    assert sorted(stores.reached) == ["i-1", "i-2"]
    assert told == ["note: files go to the store through this machine: n2 (10.0.0.5): no way"]
    now[0] += AGAIN_S
    stores.refusing.clear()
    assert made._delegated("s3://b/x", sources)["AWS_ACCESS_KEY_ID"] == "id"
    made._delegated("s3://b/x", sources)
    assert stores.reached.count("i-1") == 1
    assert stores.reached.count("i-2") == 2


def test_a_node_that_got_no_answer_from_the_store_is_asked_again_soon(away: None) -> None:
    stores, now = Stores(), [1000.0]
    stores.refusing, stores.trouble = {"i-2"}, "unreachable"
    made = direct(Files({}, stores), [], lambda: now[0])
    sources = [Source(node(2), "/c")]
    for pause_s in (0.0, AWAY_AGAIN_S - 1):
        now[0] += pause_s
        with pytest.raises(RelayError, match="no way"):
            made._delegated("s3://b/x", sources)
    assert len(stores.reached) == 1
    now[0] += 1
    stores.refusing.clear()
    assert made._delegated("s3://b/x", sources)["AWS_ACCESS_KEY_ID"] == "id"


def test_a_gang_commits_one_checkpoint_and_nothing_twice(sendable: None, tmp_path: Path) -> None:
    files = Files(
        {
            ("i-1", "/c"): [TreeEntry("same", FILE, 3), TreeEntry("sub", FOLDER)],
            ("i-2", "/c"): [
                TreeEntry("same", FILE, 4),
                TreeEntry("sub/x", FILE, 1),
                TreeEntry("to", LINK, target="same"),
            ],
        }
    )
    made = direct(files, [])
    series = CheckpointSeries(f"file://{tmp_path}/store")
    sources = [Source(node(1), "/c"), Source(node(2), "/c")]
    assert made.publish_checkpoint("a", sources, series, {"attempt": 1}) == 1
    manifest = series.manifest(1)
    assert manifest is not None
    assert [(e.path, e.kind, e.size_bytes) for e in manifest.files] == [
        ("same", "file", 3), ("sub/x", "file", 1), ("to", "symlink", 0),
    ]  # fmt: skip
    assert made.publish_checkpoint("a", sources, series, {"attempt": 1}) is None
    files.trees["i-1", "/c"] = []
    assert made.publish_checkpoint("a", sources, series, {"attempt": 1}) == 2
    made.forget("a")  # as another driver's would be
    assert made.publish_checkpoint("a", sources, series, {"attempt": 1}) is None
    files.trees["i-1", "/c"] = [TreeEntry("same", FILE, 3, mtime_ns=7)]
    assert made.publish_checkpoint("a", sources, series, {"attempt": 1}) == 3


def test_a_gang_that_has_begun_with_a_checkpoint_publishes_what_each_has_made_of_it(
    sendable: None, tmp_path: Path
) -> None:
    base = [
        TreeEntry("shard-0", FILE, 1, 1),
        TreeEntry("shard-1", FILE, 1, 1),
        TreeEntry("step-1", FILE, 1, 1),
    ]
    files = Files({("i-1", "/c"): base, ("i-2", "/c"): base})
    made = direct(files, [])
    series = CheckpointSeries(f"file://{tmp_path}/store")
    sources = [Source(node(1), "/c"), Source(node(2), "/c")]
    files.trees["i-1", "/c"] = [base[0], base[1], TreeEntry("step-2", FILE, 1, 2)]
    files.trees["i-2", "/c"] = [base[0], TreeEntry("shard-1", FILE, 1, 2), base[2]]
    assert made.publish_checkpoint("a", sources, series, {"attempt": 2}, base) == 1
    manifest = series.manifest(1)
    assert manifest is not None
    assert [(e.path, e.mtime_ns) for e in manifest.files] == [("shard-0", 1), ("shard-1", 2), ("step-2", 2)]
    made.forget("a")
    assert made.publish_checkpoint("a", sources, series, {"attempt": 2}, base) is None, "nor another driver"


def test_a_node_that_has_lost_everything_has_removed_nothing(sendable: None, tmp_path: Path) -> None:
    """It was wiped under our hands: what the others have is no checkpoint."""
    base = [TreeEntry("shard-0", FILE, 1, 1), TreeEntry("shard-1", FILE, 1, 1)]
    files = Files({("i-1", "/a/c"): [base[0]._replace(mtime_ns=2), base[1]], ("i-2", "/a/c"): []})
    made = direct(files, [])
    series = CheckpointSeries(f"file://{tmp_path}/store")
    sources = [Source(node(1), "/a/c"), Source(node(2), "/a/c")]
    files.wiped = {"i-2"}
    with pytest.raises(NodeGoneError, match="/a is not there any more"):
        made.publish_checkpoint("a", sources, series, {"attempt": 2}, base)
    files.wiped = set()
    assert made.publish_checkpoint("a", sources, series, {"attempt": 2}, base) == 1, "it has removed them"


def test_what_changes_is_not_published_and_leaves_nothing_in_the_end(sendable: None, tmp_path: Path) -> None:
    """Until somebody publishes: another driver may be sending the same files to the same place."""
    files = Files({("i-1", "/c"): [TreeEntry("a", FILE, 3)]})
    stores = files.stores

    def overwrite() -> None:
        files.trees["i-1", "/.c.frozen"] = [TreeEntry("a", FILE, 5)]

    stores.meanwhile = overwrite
    made = direct(files, [])
    series = CheckpointSeries(f"file://{tmp_path}/store")
    with pytest.raises(UnstableDirectory):
        made.publish_checkpoint("a", [Source(node(1), "/c")], series, {"attempt": 1})
    assert series.newest() is None
    stores.meanwhile = lambda: None
    files.trees["i-1", "/c"] = [TreeEntry("a", FILE, 5)]
    assert made.publish_checkpoint("a", [Source(node(1), "/c")], series, {"attempt": 1}) == 1
    manifest = series.manifest(1)
    assert manifest is not None
    there = {info.key for info in ObjectStore(series.uri_of(1)).list()}
    assert there == {"manifest.json", *(entry.object for entry in manifest.files)}


def test_what_another_driver_has_published_meanwhile_stays_though_ours_has_changed(
    sendable: None, tmp_path: Path
) -> None:
    """It sends the same files of the same nodes, so to the same place; this one was asleep."""
    files = Files({("i-1", "/c"): [TreeEntry("a", FILE, 3)]})

    class Both(Stores):
        def send(self, access: Any, uri: str, folder: str, *more: Any) -> list[FileEntry]:
            entries = super().send(access, uri, folder, *more)
            publish_uploads(uri, [Upload(folder, tuple(entries))], kind="checkpoint", extra={"attempt": 1})
            files.trees["i-1", "/.c.frozen"] = [TreeEntry("a", FILE, 5)]
            return entries

    files.stores = Both()
    series = CheckpointSeries(f"file://{tmp_path}/store")
    with pytest.raises(UnstableDirectory):
        direct(files, []).publish_checkpoint("a", [Source(node(1), "/c")], series, {"attempt": 1})
    manifest = series.manifest(1)
    assert manifest is not None
    (entry,) = manifest.files
    assert ObjectStore(series.uri_of(1)).get(entry.object) == bytes(3), "a checkpoint that is there is whole"


def test_a_model_is_published_once_per_attempt(sendable: None, tmp_path: Path) -> None:
    files = Files(
        {
            ("i-1", "/out"): [TreeEntry("members/w", FILE, 1), TreeEntry("model", FILE, 3)],
            ("i-2", "/w"): [TreeEntry("log", FILE, 2)],
        }
    )
    stores = files.stores
    made = direct(files, [])
    uri = f"file://{tmp_path}/model"
    sources = [Source(node(1), "/out"), Source(node(2), "/w", "members/w")]
    assert made.publish_model(sources, uri, {"attempt": 1})
    sent = len(stores.sent)
    assert made.publish_model(sources, uri, {"attempt": 1})
    assert len(stores.sent) == sent
    with pytest.raises(PublishError, match="the model of attempt 1 is there, and not that of 2"):
        made.publish_model(sources, uri, {"attempt": 2})
    assert len(stores.sent) == sent
    second = f"{uri}-attempt-2"
    assert made.publish_model([Source(node(2), "/w", "members/w")], second, {"attempt": 2})
    manifest = read_manifest(second)
    assert manifest is not None
    assert [entry.path for entry in manifest.files] == ["members/w/log"]
    assert stores.sent[-1].place == "/.w.frozen/log"
    lose_files(uri)
    with pytest.raises(PublishError, match="was uploaded and is not there"):
        made.publish_model(sources, uri, {"attempt": 1})
    assert not made.publish_model([Source(node(3), "/w")], f"{uri}-2", {"attempt": 1})


def test_a_model_of_another_home_is_never_taken_for_ours(sendable: None, tmp_path: Path) -> None:
    files = Files({("i-1", "/out"): [TreeEntry("model", FILE, 3)]})
    stores = files.stores
    made, uri, sources = direct(files, []), f"file://{tmp_path}/model", [Source(node(1), "/out")]
    theirs = Owner("digits-0123456789", "a" * 32, 1.5)
    assert made.publish_model(sources, uri, {"attempt": 1}, theirs)
    sent = len(stores.sent)
    for ours in (replace(theirs, home="b" * 32), replace(theirs, created_at=2.5)):
        with pytest.raises(ForeignArtifactError, match=f"home aaaaaaaa, .*home {ours.home[:8]}"):
            made.publish_model(sources, uri, {"attempt": 1}, ours)
    assert len(stores.sent) == sent
    assert made.publish_model(sources, uri, {"attempt": 1}, theirs)
    lose_files(uri)  # its publisher was killed before it looked again
    assert made.publish_model(sources, uri, {"attempt": 1}, theirs)
    assert len(stores.sent) == sent + 1
    fetch(uri, tmp_path / "back", verify=False)


def lose_files(uri: str) -> None:
    store = ObjectStore(uri)
    for folder in store.folders():
        store.delete_all(folder)


def test_a_link_that_leads_outside_is_refused_before_anything_is_sent() -> None:
    files = Files({("i-1", "/w"): [TreeEntry("a", FILE, 1), TreeEntry("b", OUTWARD, target="/etc/passwd")]})
    with pytest.raises(
        PublishError, match=r"n1 .*'b', which leads to '/etc/passwd', would lie, or lead, outside"
    ):
        send(partial(Worker, files), [Source(node(1), "/w", "members/w")], "file:///no", {})  # type: ignore[arg-type]
    assert files.stores.sent == []


def test_the_same_files_go_to_the_same_folder() -> None:
    source = Source(node(1), "/c")
    one = node_sending._folder("s3://b/1", source, [TreeEntry("a", FILE, 1)])
    assert one == node_sending._folder("s3://b/1", source, [TreeEntry("a", FILE, 1)])
    others = {
        node_sending._folder("s3://b/2", source, [TreeEntry("a", FILE, 1)]),
        node_sending._folder("s3://b/1", source, [TreeEntry("a", FILE, 1, mtime_ns=1)]),
        node_sending._folder("s3://b/1", Source(node(2), "/c"), [TreeEntry("a", FILE, 1)]),
        one,
    }
    assert len(others) == 4


def test_a_members_directory_gives_way_to_a_file_of_rank_0() -> None:
    trees = [[TreeEntry("members", FILE, 1)], moved([TreeEntry("x", FILE, 2)], "members/worker-1")]
    assert merge_trees(trees) == [(0, TreeEntry("members", FILE, 1))]


_PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)


@st.composite
def _tree(draw: st.DrawFn) -> Tree:
    """What can lie in one directory: nothing below a file or a link, no folder with something in it."""
    found: list[TreeEntry] = []
    for path in draw(st.lists(_PATHS, max_size=6, unique=True)):
        if all(not f"{path}/".startswith(f"{e.path}/") and not e.path.startswith(f"{path}/") for e in found):
            found.append(draw(st.sampled_from([TreeEntry(path, FILE, 1), TreeEntry(path, FOLDER)])))
    return sorted(found)


@given(st.lists(_tree(), min_size=1, max_size=3), st.booleans())
def test_whatever_members_leave_can_be_committed(trees: list[Tree], is_model: bool) -> None:
    """Nothing lies twice or below a file, and the first one that has something has it as it was."""
    prefixes = [f"members/{n}" if is_model and n else "" for n in range(len(trees))]
    united = merge_trees([moved(tree, prefix) for tree, prefix in zip(trees, prefixes, strict=True)])
    kinds: dict[str, Any] = {FILE: "file", FOLDER: "directory"}
    check_entries([FileEntry(e.path, kinds[e.kind], object="files-1/x") for _, e in united], "here")
    of_first = {entry.path for number, entry in united if number == 0 and entry.kind == FILE}
    assert of_first == {entry.path for entry in trees[0] if entry.kind == FILE}
    if is_model and not any(entry.path.split("/")[0] == "members" for entry in trees[0]):
        assert sum(e.kind == FILE for _, e in united) == sum(e.kind == FILE for tree in trees for e in tree)
