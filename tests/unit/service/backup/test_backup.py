"""A home in one file, and back: what is refused, and what is changed on the way."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import zlib
from pathlib import Path

import pytest
import sqlalchemy as sa

from trainmaster.control.task.layout import Home
from trainmaster.db import Database, copies
from trainmaster.db import tables as t
from trainmaster.db.run_rows import AcceptedRun
from trainmaster.service.backup.restoring import restore
from trainmaster.service.backup.writing import _BackupArchive, back_up
from trainmaster.spec.errors import UsageError

NOW = 1_700_000_000.0


def home_at(root: Path) -> dict[str, str]:
    return {"TRAINMASTER_HOME": str(root), "TRAINMASTER_CACHE": str(root.parent / "cache")}


@pytest.fixture
def home(tmp_path):
    """One with a run, files of all modes, links, and an audit that names its place."""
    found = Home.from_environment(home_at(tmp_path / "old"))
    for name, mode in {"server.key": 0o600, "snapshots/ab/train.py": 0o555, "runs/j/w.log": 0o644}.items():
        path = found.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        path.chmod(mode)
    (found.root / "runs/j/empty").mkdir(mode=0o750)
    (found.root / "runs/j/out").symlink_to("/nowhere/at/all")
    (found.root / "snapshots/ab").chmod(0o555)
    os.mkfifo(found.root / "runs/j/pipe")
    database = Database(found.database_url)
    database.create_run(
        AcceptedRun(
            id="j", name="j", recipe="{}", recipe_path=f"/data{found.root}/r.yaml", provider="local",
            code_path=f"{found.root}/snapshots/ab", store_url=found.store_url, experiments=[("main", 2)],
            home=str(found.root), home_id=found.identity(),
        ),
        NOW,
    )  # fmt: skip
    database.write(
        lambda connection, _: connection.execute(
            t.audit.insert().values(at=NOW, name="ann", address="", action=str(found.root), status=200)
        )
    )
    yield found
    database.close()
    (found.root / "snapshots/ab").chmod(0o755)


@pytest.fixture
def saved(home, tmp_path):
    database = Database(home.database_url)
    back_up(home, database, tmp_path / "b.tar.gz", {})
    database.close()
    return tmp_path / "b.tar.gz"


def to(tmp_path: Path, file: Path, *, goes_on: bool = False, **more: str) -> Path:
    restore(file, goes_on=goes_on, environ={**home_at(tmp_path / "new"), **more})
    return tmp_path / "new"


def rewritten(file: Path, change) -> Path:
    """The same archive with other entries."""
    entries = {}
    with tarfile.open(file) as archive:
        for member in archive:
            entries[member.name] = archive.extractfile(member).read()
    change(entries)
    other = file.with_name("other.tar.gz")
    with tarfile.open(other, "w:gz") as archive:
        for name, data in entries.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return other


def in_manifest(**more):
    def change(entries):
        manifest = json.loads(entries["manifest.json"])
        for name, value in more.items():
            manifest[name] = {**manifest[name], **value} if isinstance(value, dict) else value
        entries["manifest.json"] = json.dumps(manifest).encode()

    return change


def test_files_modes_and_links_are_as_before(saved, tmp_path):
    assert saved.stat().st_mode & 0o777 == 0o600
    root = to(tmp_path, saved)
    assert (root / "runs/j/w.log").read_text() == "runs/j/w.log"
    modes = {"": 0o700, "server.key": 0o600, "snapshots/ab": 0o555, "runs/j/empty": 0o750}
    assert {name: (root / name).stat().st_mode & 0o777 for name in modes} == modes
    assert (root / "snapshots/ab/train.py").stat().st_mode & 0o777 == 0o555
    assert (root / "runs/j/out").readlink() == Path("/nowhere/at/all")
    assert not (root / "runs/j/pipe").exists()
    assert [path.name for path in tmp_path.iterdir() if "in-the-making" in path.name] == []
    (root / "snapshots/ab").chmod(0o755)


def test_rows_mean_the_new_place_but_the_audit_is_left_as_it_was(saved, home, tmp_path):
    root = to(tmp_path, saved)
    database = Database(f"sqlite:///{root}/trainmaster.db")
    run = database.run_row("j")
    assert (run["home"], run["home_id"]) == (str(root), home.identity())
    assert (run["code_path"], run["store_url"]) == (f"{root}/snapshots/ab", f"file://{root}/store")
    assert run["recipe_path"] == f"/data{home.root}/r.yaml", "another path that ends like it"
    assert database.read(sa.select(t.audit.c.action))[0]["action"] == str(home.root)
    database.close()


@pytest.mark.parametrize(("goes_on", "state"), [(False, "DONE"), (True, "WAITING")])
def test_what_was_under_way_is_ended_unless_it_is_to_go_on(saved, tmp_path, goes_on, state):
    database = Database(f"sqlite:///{to(tmp_path, saved, goes_on=goes_on)}/trainmaster.db")
    run = database.run_row("j")
    assert run["state"] == state
    if not goes_on:
        assert (run["reason"], run["lease_owner"]) == ("CANCELLED", None)
        assert "trainmaster resume" in run["message"]
        assert run["ended_at"] <= saved.stat().st_mtime, "nothing was done since the backup"
        assert {row["state"] for row in database.read(sa.select(t.experiment.c.state))} == {"DONE"}
    database.close()


def test_another_database_is_filled_once(saved, tmp_path, postgres):
    url = postgres.new_url()
    to(tmp_path, saved, TRAINMASTER_DATABASE=url)
    assert not (tmp_path / "new/trainmaster.db").exists()
    database = Database(url)
    assert database.run_row("j")["home"] == str(tmp_path / "new")
    with database.engine.connect() as connection:
        assert not sa.inspect(connection).has_table("restored_from")
    database.create_run(
        AcceptedRun("k", "k", "{}", "", "local", "", "", [("main", 1)], home="", home_id=""), NOW
    )  # numbers of rows go on behind those that came
    database.close()
    with pytest.raises(UsageError, match="is not empty"):
        restore(saved, goes_on=False, environ={**home_at(tmp_path / "third"), "TRAINMASTER_DATABASE": url})
    assert not (tmp_path / "third").exists()


def test_a_shared_database_is_saved_into_the_same_form(home, saved, tmp_path, postgres):
    url, file = postgres.new_url(), tmp_path / "c.tar.gz"
    to(tmp_path, saved, TRAINMASTER_DATABASE=url)
    moved = Home.from_environment({**home_at(tmp_path / "new"), "TRAINMASTER_DATABASE": url})
    database = Database(url)
    back_up(moved, database, file, {})
    database.close()
    restore(file, goes_on=False, environ=home_at(tmp_path / "third"))
    database = Database(f"sqlite:///{tmp_path}/third/trainmaster.db")
    assert database.run_row("j")["home"] == str(tmp_path / "third")
    assert database.read(sa.select(t.audit.c.action))[0]["action"] == str(home.root)
    database.close()


def refused(tmp_path, file, words):
    with pytest.raises(UsageError, match=words) as error:
        to(tmp_path, file)
    assert error.value.hint
    assert not (tmp_path / "new").exists()


def contents(packed):
    try:
        return gzip.decompress(packed)
    except (OSError, EOFError, zlib.error):
        return None


@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_a_changed_byte_is_refused(saved, tmp_path, where):
    data = saved.read_bytes()
    for at in range(int(len(data) * where), len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x55
        # one byte of 40 changes nothing: zeros are copied from elsewhere among zeros
        if contents(changed) != contents(data):
            break
    saved.write_bytes(changed)
    refused(tmp_path, saved, "damaged")


def test_one_that_is_cut_off_or_none_is_refused(saved, tmp_path):
    saved.write_bytes(saved.read_bytes()[:-100])
    refused(tmp_path, saved, "damaged")
    saved.write_bytes(b"hello")
    refused(tmp_path, saved, "damaged")
    saved.unlink()
    refused(tmp_path, saved, "there is no file")


ELSEWHERE = {"size": 1, "sha256": "", "mode": 0o600}
DISAGREE = {
    "changed": lambda entries: entries.update({"home/server.key": b"another!!!"}),
    "gone": lambda entries: entries.pop("home/server.key"),
    "more": lambda entries: entries.update({"home/x": b""}),
    "outside": lambda entries: entries.update({"../../tm-outside": b""}),
    "absolute": lambda entries: entries.update({"/tmp/tm-outside": b""}),
    "said": in_manifest(files={"home/../tm-outside": ELSEWHERE}),
    "link outside": in_manifest(links={"../tm-outside": "/tmp"}),
    "link behind a link": in_manifest(links={"runs/l": "/tmp", "runs/l/tm-outside": "/tmp"}),
    "directory outside": in_manifest(directories={"../tm-outside": 0o700}),
}


@pytest.mark.parametrize("change", DISAGREE.values(), ids=DISAGREE)
def test_what_does_not_agree_with_the_manifest_is_refused(saved, tmp_path, change):
    refused(tmp_path, rewritten(saved, change), "damaged")
    assert not Path("/tmp/tm-outside").exists()


def test_a_newer_one_is_refused_in_words(saved, tmp_path):
    older = rewritten(saved, in_manifest(schema="0010"))
    refused(tmp_path, older, r"by a build before 0\.2\.0 \(schema 0010\)")
    newer = rewritten(saved, in_manifest(schema="9999", version="7.0"))
    refused(tmp_path, newer, r"written by Trainmaster 7.0 \(schema 9999\)")


def test_a_home_that_is_not_empty_is_left_alone(saved, home, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new/mine").write_text("mine")
    with pytest.raises(UsageError, match="is not empty: nothing was restored"):
        to(tmp_path, saved)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["mine"]


def test_a_file_is_never_replaced_nor_written_into_the_home(saved, home):
    database = Database(home.database_url)
    with pytest.raises(UsageError, match="is there already"):
        back_up(home, database, saved, {})
    with pytest.raises(UsageError, match="lies in the home"):
        back_up(home, database, home.root / "b.tar.gz", {})
    found = back_up(home, database, saved.with_name("c.tar.gz"), {"TRAINMASTER_KEY_FILE": "/keys/k"})
    assert found["elsewhere"] == ["/keys/k"]
    database.close()


def test_a_file_that_grows_shrinks_or_goes_while_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "log"
    path.write_text("a" * 100)
    sizes = iter([150, 40])  # as if it was cut meanwhile, then written to
    real = os.fstat

    def fstat(descriptor):
        status = list(real(descriptor))
        status[6] = next(sizes)
        return os.stat_result(status)

    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        archive = _BackupArchive(tar)
        monkeypatch.setattr("trainmaster.service.backup.writing.os.fstat", fstat)
        archive.add("log", path)
        monkeypatch.undo()
        archive.add("gone", tmp_path / "gone")
    assert archive.files.keys() == {"log"}
    assert archive.files["log"]["size"] == 40
    with tarfile.open(tmp_path / "t.tar") as tar:
        assert tar.extractfile(tar.getmembers()[-1]).read() == b"a" * 40


def test_a_checkpoint_that_is_pruned_meanwhile_is_left_out_and_the_newer_one_is_there(
    home, tmp_path, monkeypatch
):
    series = home.root / "store/checkpoints/j"

    def publish(number):
        (series / number).mkdir(parents=True)
        (series / number / "x").write_text(number)
        (series / number / "manifest.json").write_text("{}")

    def add(archive, name, path):
        real(archive, name, path)
        if name.startswith("home/") and not (series / "000002").exists():
            publish("000002")
            (series / "000001/manifest.json").unlink()
            (series / "000001/x").unlink()

    publish("000001")
    real = _BackupArchive.add
    monkeypatch.setattr(_BackupArchive, "add", add)
    database = Database(home.database_url)
    back_up(home, database, tmp_path / "b.tar.gz", {})
    database.close()
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        found = {name.rpartition("/j/")[2] for name in tar.getnames() if "/checkpoints/" in name}
    assert found == {"000002/x", "000002/manifest.json"}


def test_paths_with_odd_characters_are_found_in_all_their_forms(tmp_path):
    before, now = Path('/h/50% "ä"'), Path("/n")
    forms = copies._forms(before, now)
    assert forms['/h/50% "ä"'] == forms['/h/50%25 "ä"'] == "/n"
    assert forms['/h/50% \\"\\u00e4\\"'] == "/n"
