# ruff: noqa: PTH101, PTH102, PTH103, PTH112, PTH114, PTH115, PTH116, PTH118, PTH120, PTH211
# Names are any bytes and files are many: os functions on plain text are exact, and four times as fast.
import json
import os
import secrets
import socket
import stat
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster import artifacts
from trainmaster.artifacts import AlreadyPublished, Manifest, UnstableDirectory, collecting, publishing
from trainmaster.artifacts.tree import parts_listing
from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import NotFoundError, PublishError, UsageError

pytest_plugins = ["object_store_fixtures"]


def write(root: Path, files: dict[str, bytes]) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def read(root: Path) -> dict[str, object]:
    """Everything below a directory: bytes of files, targets of links, None for directories."""
    found: dict[str, object] = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            place = os.path.join(folder, name)
            path = os.path.relpath(place, root)
            if os.path.islink(place):
                found[path] = os.readlink(place)
            elif os.path.isdir(place):
                found[path] = None
            else:
                found[path] = (Path(place).read_bytes(), bool(os.stat(place).st_mode & 0o100))
    return found


component = st.binary(min_size=1, max_size=255).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
contents = st.one_of(
    st.none(), st.tuples(st.binary(max_size=2000), st.booleans()), st.sampled_from(["x", "./y/z", "."])
)
trees = st.dictionaries(st.lists(component, min_size=1, max_size=4).map(b"/".join), contents, max_size=8)


@settings(max_examples=60, deadline=None)
@given(trees, st.sampled_from(["file", "memory"]))
def test_what_comes_back_is_what_was_published(tree, scheme):
    with tempfile.TemporaryDirectory() as place:
        source = os.path.join(place, "source").encode()
        os.mkdir(source)
        for path, content in tree.items():
            full = source + b"/" + path
            try:
                os.makedirs(os.path.dirname(full), exist_ok=True)
                if content is None:
                    os.mkdir(full)
                elif isinstance(content, str):
                    os.symlink(content, full)
                else:
                    Path(os.fsdecode(full)).write_bytes(content[0])
                    os.chmod(full, 0o755 if content[1] else 0o644)
            except OSError:
                continue  # collides with one before it, or is too long for this file system
        before = read(Path(os.fsdecode(source)))
        uri = f"{place}/store/m" if scheme == "file" else f"memory://{secrets.token_hex(8)}/m"
        manifest = artifacts.publish({"": Path(os.fsdecode(source))}, uri, kind="model")
        if all(content is None for content in before.values()):
            assert manifest is None
            assert artifacts.read_manifest(uri) is None
            return
        assert artifacts.fetch(uri, Path(place, "back")) == manifest
        assert Manifest.from_json(manifest.to_json(), "") == manifest
        assert read(Path(place, "back")) == before


def test_times_and_modes_are_kept(store_url, tmp_path):
    source = write(tmp_path / "source", {"step-1": b"1", "step-2": b"2", "secret": b"3"})
    os.utime(source / "step-1", ns=(2 * 10**18, 2 * 10**18 + 7))
    (source / "secret").chmod(0o600)
    (source / "step-1").chmod(0o4755)
    artifacts.publish({"": source}, f"{store_url}/m", kind="checkpoint", extra={"step": [1, None]})
    manifest = artifacts.fetch(f"{store_url}/m", tmp_path / "back")
    assert manifest.extra == {"step": [1, None]}
    assert manifest.total_bytes == 3
    assert (tmp_path / "back/step-1").stat().st_mtime_ns == 2 * 10**18 + 7
    assert stat.S_IMODE((tmp_path / "back/secret").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "back/step-1").stat().st_mode) == 0o755, "set-user-id does not travel"


def test_large_files_in_parallel(store_url, tmp_path):
    files = {f"part-{number}": secrets.token_bytes((5 << 20) * number + number) for number in range(5)}
    source = write(tmp_path / "source", files)
    artifacts.publish({"": source}, f"{store_url}/m", kind="model")
    artifacts.fetch(f"{store_url}/m", tmp_path / "back")
    assert {path: content[0] for path, content in read(tmp_path / "back").items()} == files


def test_nothing_gives_no_artifact(store_url, tmp_path):
    (tmp_path / "empty/folder").mkdir(parents=True)
    parts = {"": tmp_path / "empty", "members/worker-1": tmp_path / "never-made"}
    assert artifacts.publish(parts, f"{store_url}/m", kind="model") is None
    assert artifacts.read_manifest(f"{store_url}/m") is None


def test_parts_lie_below_their_prefixes_and_the_first_wins(store_url, tmp_path):
    first = write(tmp_path / "first", {"model.pt": b"chief", "folder/x": b"", "file": b"1"})
    second = write(tmp_path / "second", {"model.pt": b"worker", "folder": b"in the way", "file/below": b"2"})
    third = write(tmp_path / "third", {"log": b"3"})
    store = ObjectStore(f"{store_url}/m")
    uploads = [
        publishing._upload(collecting.scan_parts(parts, True), store, True)
        for parts in ({"": first}, {"": second, "members/worker-1": third})
    ]
    manifest = publishing.publish_uploads(store.url, uploads, kind="checkpoint")
    assert [entry.path for entry in manifest.files] == [
        "file",
        "folder/x",
        "members/worker-1/log",
        "model.pt",
    ]
    artifacts.fetch(f"{store_url}/m", tmp_path / "back")
    assert (tmp_path / "back/model.pt").read_bytes() == b"chief"
    together = {"": first, "members/worker-1": third}
    assert artifacts.publish(together, f"{store_url}/m", kind="checkpoint") == manifest
    with pytest.raises(PublishError, match="is no prefix"):
        artifacts.publish({"../x": first}, f"{store_url}/n", kind="model")


def test_extra_that_is_no_json_leaves_nothing(store_url, tmp_path):
    source = write(tmp_path / "source", {"a": b"1"})
    with pytest.raises(TypeError):
        artifacts.publish({"": source}, f"{store_url}/m", kind="model", extra={"x": {1, 2}})
    assert list(ObjectStore(f"{store_url}/m").list()) == []


def test_repeating_is_harmless(store_url, tmp_path):
    source = write(tmp_path / "source", {"a": b"1", "b/c": b"2"})
    manifest = artifacts.publish({"": source}, f"{store_url}/m", kind="model")
    (source / "a").touch()
    assert artifacts.publish({"": source}, f"{store_url}/m", kind="model") == manifest
    assert len(ObjectStore(f"{store_url}/m").folders()) == 1
    (source / "a").write_bytes(b"3")
    with pytest.raises(AlreadyPublished, match="another model is there"):
        artifacts.publish({"": source}, f"{store_url}/m", kind="model")
    assert artifacts.read_manifest(f"{store_url}/m") == manifest
    assert len(ObjectStore(f"{store_url}/m").folders()) == 1


def test_leftovers_of_a_killed_publisher_go_with_the_next(store_url, tmp_path):
    source = write(tmp_path / "source", {"a": b"1"})
    store = ObjectStore(f"{store_url}/m")
    store.put("files-00000000/a", b"half")
    assert artifacts.read_manifest(store.url) is None
    with pytest.raises(NotFoundError):
        artifacts.fetch(f"{store_url}/m", tmp_path / "back")
    artifacts.publish({"": source}, f"{store_url}/m", kind="model")
    assert len(store.folders()) == 1
    store.put("files-00000000/a", b"half")
    artifacts.publish({"": source}, f"{store_url}/m", kind="model")
    assert len(store.folders()) == 1


def test_many_publishers_of_one_place(store_url, tmp_path):
    results = []
    parts = [write(tmp_path / f"source-{n}", {"a": b"%d" % (n % 2), "b": b"x" * 1000}) for n in range(8)]

    def publish(part):
        try:
            results.append(artifacts.publish({"": part}, f"{store_url}/m", kind="model"))
        except AlreadyPublished as error:
            results.append(error.manifest)

    threads = [threading.Thread(target=publish, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winner = artifacts.fetch(f"{store_url}/m", tmp_path / "back")
    assert results == [winner] * 8
    assert len(ObjectStore(f"{store_url}/m").folders()) == 1


def test_deleted_artifacts_are_gone(store_url, tmp_path):
    source = write(tmp_path / "source", {"a": b"1"})
    for uri in map(ObjectStore(store_url).url_of, ("x", "y/z", "100%")):
        artifacts.publish({"": source}, uri, kind="model")
        assert artifacts.read_manifest(uri).kind == "model"
        artifacts.delete(uri)
        artifacts.delete(uri)
        assert artifacts.read_manifest(uri) is None
    assert list(ObjectStore(store_url).list()) == []


class TestUnstable:
    @pytest.fixture
    def source(self, tmp_path):
        return write(tmp_path / "source", {"a": b"1" * 100, "b": b"2" * 100})

    @pytest.fixture
    def meddle(self, monkeypatch):
        """Does something in the middle of copying."""

        def arrange(action):
            original = collecting.Content.blocks

            def blocks(content):
                yield from original(content)
                if content.node.path == "a":
                    action()

            monkeypatch.setattr(collecting.Content, "blocks", blocks)

        return arrange

    @pytest.mark.parametrize(
        "action",
        [
            lambda source: (source / "b").unlink(),
            lambda source: (source / "b").write_bytes(b"3" * 200),
            lambda source: (source / "b").write_bytes(b"3"),
            lambda source: (source / "a").write_bytes(b"3" * 100),
            lambda source: (source / "new").write_bytes(b""),
            lambda source: (source / "b").replace(source / "c"),
            lambda source: ((source / "b").unlink(), os.mkfifo(source / "b")),
        ],
        ids=["vanishes", "grows", "shrinks", "is rewritten", "is added", "is renamed", "becomes a pipe"],
    )
    def test_what_changes_is_not_published(self, store_url, source, meddle, action):
        meddle(lambda: action(source))
        with pytest.raises(UnstableDirectory, match="while"):
            artifacts.publish({"": source}, f"{store_url}/m", kind="checkpoint")
        assert list(ObjectStore(store_url).list()) == []

    def test_without_stability_what_is_there_is_taken(self, store_url, source, monkeypatch, tmp_path):
        original = collecting.Content.blocks

        def blocks(content):
            if content.node.path == "b":
                (source / "b").unlink()
            yield from original(content)
            (source / "a").write_bytes(b"1" * 999)

        monkeypatch.setattr(collecting.Content, "blocks", blocks)
        artifacts.publish({"": source}, f"{store_url}/m", kind="model", require_stable=False)
        artifacts.fetch(f"{store_url}/m", tmp_path / "back")
        back = read(tmp_path / "back")
        assert set(back) == {"a"}
        assert set(back["a"][0]) == set(b"1")

    def test_a_file_that_grows_as_fast_as_it_is_read_ends(self, store_url, source, monkeypatch, tmp_path):
        original = os.fstat

        def growing(descriptor):
            with (source / "a").open("ab") as file:
                file.write(b"4" * 50)
            status = original(descriptor)
            with (source / "a").open("ab") as file:
                file.write(b"5" * 50)
            return status

        monkeypatch.setattr(collecting.os, "fstat", growing)
        parts = {"": source}
        manifest = artifacts.publish(parts, f"{store_url}/m", kind="model", require_stable=False)
        assert manifest.files[0].size_bytes < 1000

    def test_a_write_in_the_tick_of_the_listing_shows(self, source):
        # Same size, same inode, and so early that the kernel's clock may not have moved.
        (source / "a").write_bytes(b"1" * 100)
        trees = collecting.scan_parts({"": source}, require_stable=True)
        (source / "a").write_bytes(b"2" * 100)
        with pytest.raises(UnstableDirectory):
            collecting.check_unchanged(trees)

    def test_listings(self, source, tmp_path):
        first = parts_listing({"": source})
        assert set(first.stamps) == {"a", "b"}
        assert first == parts_listing({"": source})
        assert first.fingerprint() == parts_listing({"": source}).fingerprint()
        (source / "a").write_bytes(b"1" * 101)
        assert first != parts_listing({"": source})
        assert first.fingerprint() != parts_listing({"": source}).fingerprint()
        assert parts_listing({"": tmp_path / "nothing"}).stamps == {}
        assert set(parts_listing({"": source, "m": source}).stamps) == {"a", "b", "m//a", "m//b"}


class TestOddThings:
    def test_links_inside_stay_links(self, store_url, tmp_path):
        source = write(tmp_path / "source", {"step-2/model.pt": b"1"})
        (source / "latest").symlink_to("step-2")
        (source / "absolute").symlink_to(source / "step-2")
        (source / "step-2/round").symlink_to("../../source/step-2/model.pt")
        (source / "dangling").symlink_to("gone")
        artifacts.publish({"m/w": source}, f"{store_url}/m", kind="model")
        artifacts.fetch(f"{store_url}/m", tmp_path / "back")
        back = tmp_path / "back/m/w"
        assert os.readlink(back / "latest") == "step-2"
        assert os.readlink(back / "absolute") == "step-2"
        assert os.readlink(back / "dangling") == "gone"
        assert (back / "step-2/round").resolve() == (back / "step-2/model.pt").resolve()

    @pytest.mark.parametrize("target", ["/etc/passwd", "../other", "x/../../other", "up/.."])
    def test_links_outside_are_refused_before_anything_is_sent(self, store_url, tmp_path, target):
        source = write(tmp_path / "source", {"a": b"1", "x/y": b""})
        (source / "x/../up").symlink_to("x/..")
        (source / "link").symlink_to(target)
        with pytest.raises(PublishError, match=r"link.* leads outside, to"):
            artifacts.publish({"": source}, f"{store_url}/m", kind="model")
        assert list(ObjectStore(store_url).list()) == []

    def test_sockets_and_pipes_are_noted(self, store_url, tmp_path):
        source = write(tmp_path / "source", {"a": b"1"})
        os.mkfifo(source / "pipe")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(source / "sock"))
            manifest = artifacts.publish({"": source}, f"{store_url}/m", kind="model")
        assert sorted(manifest.notes) == ["left out: 'pipe' is a pipe", "left out: 'sock' is a socket"]

    def test_hard_links_become_files_of_their_own(self, store_url, tmp_path):
        source = write(tmp_path / "source", {"a": b"1"})
        os.link(source / "a", source / "b")
        artifacts.publish({"": source}, f"{store_url}/m", kind="model")
        artifacts.fetch(f"{store_url}/m", tmp_path / "back")
        assert (tmp_path / "back/b").stat().st_nlink == 1

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_what_cannot_be_read_is_named(self, store_url, tmp_path):
        source = write(tmp_path / "source", {"a": b"1"})
        (source / "a").chmod(0)
        with pytest.raises(PublishError, match=r"Cannot read .*/a: Permission denied"):
            artifacts.publish({"": source}, f"{store_url}/m", kind="model")

    def test_a_file_is_no_directory(self, store_url, tmp_path):
        source = write(tmp_path / "source", {"a": b"1"})
        with pytest.raises(PublishError, match="Not a directory"):
            artifacts.publish({"": source / "a"}, f"{store_url}/m", kind="model")


class TestFetching:
    @pytest.fixture
    def uri(self, store_url, tmp_path):
        source = write(tmp_path / "source", {"a/b": b"content", "c": b"more"})
        artifacts.publish({"": source}, f"{store_url}/m", kind="model")
        return f"{store_url}/m"

    def key_of(self, uri, path):
        return next(entry.object for entry in artifacts.read_manifest(uri).files if entry.path == path)

    def test_a_full_directory_is_refused(self, uri, tmp_path):
        write(tmp_path / "back", {"mine": b""})
        with pytest.raises(UsageError, match="is not empty"):
            artifacts.fetch(uri, tmp_path / "back")
        with pytest.raises(UsageError, match="is no directory"):
            artifacts.fetch(uri, tmp_path / "back/mine")
        assert read(tmp_path / "back") == {"mine": (b"", False)}
        artifacts.fetch(uri, tmp_path / "back", overwrite=True)
        assert set(read(tmp_path / "back")) == {"a", "a/b", "c"}
        assert {entry.name for entry in tmp_path.iterdir()} <= {"back", "source", "store"}

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_an_empty_one_is_filled(self, uri, tmp_path, overwrite):
        (tmp_path / "back").mkdir()
        artifacts.fetch(uri, tmp_path / "back", overwrite=overwrite)
        assert set(read(tmp_path / "back")) == {"a", "a/b", "c"}

    def test_overwriting_a_link_leaves_what_it_points_to(self, uri, tmp_path):
        write(tmp_path / "other", {"mine": b""})
        (tmp_path / "back").symlink_to("other")
        artifacts.fetch(uri, tmp_path / "back", overwrite=True)
        assert set(read(tmp_path / "back")) == {"a", "a/b", "c"}
        assert set(read(tmp_path / "other")) == {"mine"}

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (b"c0ntent", r"'a/b' is damaged: its SHA-256 should be ed7002b439e9ac.* and is [0-9a-f]{64}"),
            (b"cont", r"'a/b' is damaged: it should have 7 bytes and has 4"),
            (b"contents", r"'a/b' is damaged: it should have 7 bytes and has more"),
            (None, r"'a/b' is missing"),
        ],
    )
    def test_damage_is_named_and_nothing_is_left(self, uri, tmp_path, damage, message):
        store = ObjectStore(uri)
        store.delete([self.key_of(uri, "a/b")])
        if damage is not None:
            store.put(self.key_of(uri, "a/b"), damage)
        write(tmp_path / "back", {"mine": b""})
        with pytest.raises(PublishError, match=message):
            artifacts.fetch(uri, tmp_path / "back", overwrite=True)
        assert set(read(tmp_path / "back")) == {"mine"}
        assert {entry.name for entry in tmp_path.iterdir()} <= {"back", "source", "store"}

    def test_unverified_means_sizes_only(self, uri, tmp_path):
        ObjectStore(uri).put(self.key_of(uri, "a/b"), b"c0ntent")
        artifacts.fetch(uri, tmp_path / "back", verify=False)
        assert (tmp_path / "back/a/b").read_bytes() == b"c0ntent"

    @pytest.mark.parametrize(
        "change",
        [
            lambda document: document.update(files=[dict(document["files"][0], path="/tmp/evil")]),
            lambda document: document.update(files=[dict(document["files"][0], path="../evil")]),
            lambda document: document.update(files=[dict(document["files"][0], path="a/../../evil")]),
            lambda document: document.update(files=[dict(document["files"][0], path="")]),
            lambda document: document.update(files=[dict(document["files"][0], path="a\0b")]),
            lambda document: document.update(files=[dict(document["files"][0], path="\ud800")]),
            lambda document: document.update(files=document["files"] * 2),
            lambda document: document["files"].append({"path": "l", "kind": "symlink", "target": "/etc"}),
            lambda document: document["files"].append({"path": "l", "kind": "symlink", "target": "../x"}),
            lambda document: document["files"].extend(
                [
                    {"path": "l", "kind": "symlink", "target": "a"},
                    dict(document["files"][0], path="l/evil"),
                ]
            ),
            lambda document: document["files"].extend(
                [
                    {"path": "l", "kind": "symlink", "target": "d/up/.."},
                    {"path": "d/up", "kind": "symlink", "target": ".."},
                ]
            ),
            lambda document: document["files"].append(dict(document["files"][0], path="c/below-a-file")),
            lambda document: document["files"].append({"path": "x", "kind": "device"}),
            lambda document: document["files"].append({"path": "x", "kind": "directory", "mode": 0o4755}),
            lambda document: document["files"][0].update(object="../../other/secret"),
            lambda document: document["files"][0].update(object="/etc/passwd"),
            lambda document: document["files"][0].update(size_bytes=-1),
            lambda document: document["files"][0].update(size_bytes=True),
            lambda document: document["files"][0].update(mtime_ns=1 << 70),
            lambda document: document["files"][0].update(sha256="../x"),
            lambda document: document.update(files=None),
            lambda document: document.update(extra=[]),
            lambda document: document.update(created_at="yesterday"),
            lambda document: document.update(version=2),
            lambda document: document.pop("kind"),
            lambda document: document.clear(),
        ],
    )
    def test_a_manifest_from_an_attacker_writes_nothing(self, uri, tmp_path, change):
        store = ObjectStore(uri)
        document = json.loads(store.get("manifest.json"))
        change(document)
        store.put("manifest.json", json.dumps(document).encode())
        before = {entry.name for entry in tmp_path.iterdir()}
        with pytest.raises(PublishError):
            artifacts.fetch(uri, tmp_path / "back")
        assert {entry.name for entry in tmp_path.iterdir()} == before

    @pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000])
    def test_what_is_no_manifest_is_said_to_be_damaged(self, uri, data):
        ObjectStore(uri).put("manifest.json", data)
        with pytest.raises(PublishError, match="is damaged"):
            artifacts.read_manifest(uri)
