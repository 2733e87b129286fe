"""What nodes copy from a store into an HDFS, and what of it is not copied again."""

import hashlib
import json
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainmaster.artifacts import fetch
from trainmaster.control.attempt import saving
from trainmaster.control.attempt.staged_data import addresses, note_served
from trainmaster.control.decide.effects import EffectKind
from trainmaster.control.loop.attempt_actions import AttemptActions
from trainmaster.control.loop.run_state import Task
from trainmaster.control.task.layout import Home
from trainmaster.hdfs import staging
from trainmaster.hdfs.manifests import Manifests
from trainmaster.hdfs.serving import RunningHdfs
from trainmaster.hdfs.staging import data_path, stage
from trainmaster.objects import webhdfs
from trainmaster.objects.errors import FullStoreError, UnreachableStoreError
from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec import DataSource, Experiment, Recipe
from trainmaster.spec.errors import UsageError

sys.path.insert(0, str(Path(__file__).parents[1] / "objects"))
from fake_hdfs import FakeHdfs


@pytest.fixture
def hdfs(monkeypatch):
    impatient = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: None)  # others sleep
    monkeypatch.setattr(webhdfs, "time", impatient)
    server = FakeHdfs()
    yield server
    server.close()


@pytest.fixture
def source(tmp_path):
    place = tmp_path / "set"
    (place / "d").mkdir(parents=True)
    for number in range(9):
        (place / f"d/{number}").write_bytes(bytes([number]) * 1000 * number)
    (place / "large").write_bytes(bytes(range(256)) * (80 << 10))
    return place


def staged(hdfs, source, index=0, count=1):
    web = hdfs.url.removeprefix("hdfs://")
    return stage(str(source), web, index=index, count=count, copies=2, directory=Path("/run/data"))


def files(hdfs, source):
    start = f"{data_path(str(source))}/"
    return {
        name.removeprefix(start): data for name, (data, _) in hdfs.files.items() if name.startswith(start)
    }


def contents(source):
    return {str(p.relative_to(source)): p.read_bytes() for p in source.rglob("*") if p.is_file()}


def test_what_a_task_writes_into_hdfs_becomes_part_of_its_model(hdfs, tmp_path):
    source = DataSource(url="s3://b/images", stage="hdfs")
    experiment = Experiment(name="train", command="true", data={"images": source})
    recipe = Recipe(name="digits", directory=tmp_path, experiments={"train": experiment})
    home = Home.from_environment({"TRAINMASTER_HOME": str(tmp_path / "home")})
    actions = AttemptActions(
        home=home, run="digits-7f3a", recipe=recipe, secrets={}, find_models=lambda *_: []
    )
    context = actions.context(Task(experiment="train", number=0, attempt=2))
    note_served(context, RunningHdfs("127.0.0.1", 9000, hdfs.server_port, "x"))
    variables = addresses(context)
    assert variables["TRAINMASTER_OUTPUT_HDFS"] == "hdfs://127.0.0.1:9000/output/train/0"
    path = variables["TRAINMASTER_OUTPUT_HDFS_WEBHDFS"].partition(f":{hdfs.server_port}")[2]
    assert not context.site.is_quick(EffectKind.SAVE, context)
    assert "model_uri" not in saving.save(context).fields, "it wrote nothing"
    hdfs.write(f"{path}/model.ckpt", b"weights")
    hdfs.write(f"{path}/variables/0", b"")
    job = saving.save(context)
    assert job.error == ""
    fetch(job.fields["model_uri"], tmp_path / "model")
    assert contents(tmp_path / "model") == {"hdfs/model.ckpt": b"weights", "hdfs/variables/0": b""}


def test_nodes_copy_all_of_it_once_between_them(hdfs, source):
    reports = [staged(hdfs, source, index, 3) for index in range(3)]
    assert files(hdfs, source) == contents(source)
    assert sum(each.files for each in reports) == sum(each.copied for each in reports) == 10
    assert {each.total_files for each in reports} == {10}
    lines = b"".join(data for name, (data, _) in hdfs.files.items() if "/manifest-" in name).splitlines()
    found = {each["path"]: (each["size_bytes"], each["sha256"]) for each in map(json.loads, lines)}
    assert found == {
        name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in contents(source).items()
    }


def test_what_is_there_is_not_copied_again_whoever_copied_it(hdfs, source):
    for index in range(3):
        staged(hdfs, source, index, 3)
    assert [staged(hdfs, source, index, 2).copied for index in range(2)] == [0, 0]
    cut, gone = (f"{data_path(str(source))}/d/{number}" for number in (3, 4))
    hdfs.write(cut, b"cut off")
    del hdfs.files[gone]
    assert staged(hdfs, source).copied == 2
    assert files(hdfs, source) == contents(source)


def test_what_no_manifest_names_is_copied_again_however_whole_it_looks(hdfs, source, monkeypatch):
    with monkeypatch.context() as killed:
        killed.setattr(Manifests, "add", lambda *_: sys.exit())
        with pytest.raises(SystemExit):
            staged(hdfs, source)
    hdfs.write(f"{data_path(str(source))}/d/5", b"half of it")
    assert staged(hdfs, source).copied == 10
    assert files(hdfs, source) == contents(source)


@pytest.mark.parametrize("killed_at", range(1, 10))
def test_what_was_written_down_is_not_copied_again_whenever_a_node_is_killed(
    hdfs, source, monkeypatch, killed_at
):
    monkeypatch.setattr(staging, "_NOTE_S", 0.0)
    monkeypatch.setattr(staging, "_PER_NOTE", 0)
    with monkeypatch.context() as killed:
        added = []

        def add(self, batch, add=Manifests.add):
            for each in batch:
                if len(added) == killed_at:
                    sys.exit()
                added.append(each)
                add(self, [each])

        killed.setattr(Manifests, "add", add)
        with pytest.raises(SystemExit):
            staged(hdfs, source)
    assert staged(hdfs, source).copied == 10 - killed_at
    assert files(hdfs, source) == contents(source)


def test_what_was_copied_before_the_store_failed_is_not_copied_again(hdfs, source, monkeypatch):
    (source / "d/0").write_bytes(b"one that is empty is not read")
    *_, last = ObjectStore(str(source)).details()
    with monkeypatch.context() as broken:

        def fail(self, key, start, length, etag, get_range=ObjectStore.get_range):
            if key == last.key:
                raise UnreachableStoreError("it is gone", "", str(source))
            return get_range(self, key, start, length, etag)

        broken.setattr(ObjectStore, "get_range", fail)
        with pytest.raises(UnreachableStoreError):
            staged(hdfs, source)
    assert staged(hdfs, source).copied == 1
    assert files(hdfs, source) == contents(source)


def test_what_was_copied_after_the_file_that_failed_is_not_copied_again(hdfs, source, monkeypatch):
    (source / "d/0").write_bytes(b"one that is empty is not read")
    first, *_ = ObjectStore(str(source)).details()
    fetched, all_others = set(), threading.Event()
    with monkeypatch.context() as broken:

        def fail(self, key, start, length, etag, get_range=ObjectStore.get_range):
            if key == first.key:
                assert all_others.wait(60)
                raise UnreachableStoreError("it is gone", "", str(source))
            fetched.add(key)
            if len(fetched) == 9:
                all_others.set()
            return get_range(self, key, start, length, etag)

        broken.setattr(ObjectStore, "get_range", fail)
        with pytest.raises(UnreachableStoreError):
            staged(hdfs, source)
    assert staged(hdfs, source).copied == 1
    assert files(hdfs, source) == contents(source)


def test_a_file_that_was_written_again_in_its_place_is_not_the_one_that_a_manifest_names(hdfs, source):
    staged(hdfs, source)
    hdfs.write(f"{data_path(str(source))}/d/4", bytes(4000))  # as long as it was
    assert staged(hdfs, source).copied == 1
    assert files(hdfs, source) == contents(source)


def test_a_small_file_costs_the_namenode_one_request(hdfs, source):
    for number in range(200):
        (source / f"d/more-{number}").write_bytes(bytes(number))
    staged(hdfs, source)
    few = 10  # of the whole: the listing, the manifest, the large file, a look into the folder
    assert 210 <= hdfs.operations["CREATE"] <= 210 + few
    assert hdfs.operations.total() <= 210 + 2 * few + 10
    hdfs.operations.clear()
    staged(hdfs, source)
    assert hdfs.operations.total() <= 2 * few


def test_what_has_no_copy_left_is_copied_again(hdfs, source):
    staged(hdfs, source)
    path = data_path(str(source))
    hdfs.lost = [f"{path}/d/3", f"{path}/large", "/data/of-others/d/4"]
    assert staged(hdfs, source).copied == 2
    hdfs.lost = [f"/data/of-others/{number}" for number in range(100)]  # and who knows which others
    assert staged(hdfs, source).copied == 10
    assert files(hdfs, source) == contents(source)


def test_an_object_that_was_written_again_is_copied_as_it_is_now(hdfs, source):
    staged(hdfs, source)
    (source / "d/2").write_bytes(b"longer than it was" * 500)
    # The listing is that of the first look, and what it lists is looked at again.
    assert staged(hdfs, source).copied in (0, 1)
    hdfs.files = {name: data for name, data in hdfs.files.items() if not name.endswith("/d/2")}
    assert staged(hdfs, source).copied == 1
    assert files(hdfs, source) == contents(source)


def test_a_datanode_that_is_dead_is_named_to_the_namenode(hdfs, source):
    hdfs.dead = True
    assert staged(hdfs, source).copied == 10
    assert files(hdfs, source) == contents(source)
    assert "127.0.0.1" in hdfs.excluded


def test_a_file_that_hdfs_says_is_written_and_is_empty_is_written_again(hdfs, source):
    hdfs.lose_writes = 3
    assert staged(hdfs, source).copied == 10
    assert files(hdfs, source) == contents(source)


def test_too_little_room_is_told_before_anything_is_copied(hdfs, source):
    hdfs.room_bytes = 1 << 20
    with pytest.raises(
        FullStoreError,
        match=r"no room for 21\.0 MB in 2 copies: 1\.0 MB are free at 127\.0\.0\.1 \(in /run/data\)",
    ) as error:
        staged(hdfs, source)
    assert "hardware.disk" in error.value.hint
    assert files(hdfs, source) == {}


def test_disks_that_fill_up_meanwhile_are_told_of(hdfs, source, monkeypatch):
    monkeypatch.setattr(webhdfs, "_PATIENCE_S", -1.0)
    hdfs.fills_up = True
    with pytest.raises(FullStoreError, match=r"1\.0 kB are free at 127\.0\.0\.1 \(in /run/data\)") as error:
        staged(hdfs, source)
    assert "Free space" in error.value.hint


def test_a_url_without_objects_is_told_of(hdfs, tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(UsageError, match="no objects"):
        staged(hdfs, tmp_path / "none")
