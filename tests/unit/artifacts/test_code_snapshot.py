# ruff: noqa: PTH114, PTH118
# Names are any bytes and files are many: os functions on plain text are exact, and four times as fast.
import os
import shutil
import stat
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from trainmaster.artifacts import materialise, snapshot, take_snapshot
from trainmaster.artifacts.code_sources import as_git
from trainmaster.artifacts.code_tree import LIMIT_BYTES, not_sent_note
from trainmaster.spec.errors import UsageError


@pytest.fixture
def base(tmp_path):
    (tmp_path / "code").mkdir()
    return tmp_path / "code"


@pytest.fixture
def root(tmp_path):
    return tmp_path / "snapshots"


def fill(base: Path, *paths: str, **contents: str) -> None:
    for path in paths:
        (base / path).parent.mkdir(parents=True, exist_ok=True)
        (base / path).write_text(path)
    for path, text in contents.items():
        (base / path).write_text(text)


def files(root: Path) -> set[str]:
    return {
        os.path.relpath(os.path.join(folder, name), root)
        for folder, folders, names in os.walk(root)
        for name in names + [name for name in folders if os.path.islink(os.path.join(folder, name))]
    }


class TestDirectory:
    def test_it_is_addressed_by_its_content(self, base, root, tmp_path):
        fill(base, "train.py", "lib/model.py")
        (base / "empty").mkdir()
        (base / "train.py").chmod(0o755)
        first = take_snapshot(".", base, root)
        assert first.path == root / first.digest
        assert first.total_bytes == len("train.pylib/model.py")
        assert files(first.path) == {"train.py", "lib/model.py"}
        assert (first.path / "empty").is_dir()
        moved = tmp_path / "elsewhere"
        shutil.copytree(base, moved)
        os.utime(moved / "train.py", (0, 0))
        (moved / "lib/model.py").chmod(0o664)
        assert take_snapshot("elsewhere", tmp_path, root) == first
        (moved / "lib/model.py").chmod(0o775)
        assert take_snapshot("elsewhere", tmp_path, root).digest != first.digest
        (moved / "lib/model.py").chmod(0o664)
        (moved / "lib/model.py").write_text("other")
        assert take_snapshot("elsewhere", tmp_path, root).digest != first.digest
        assert len(list(root.iterdir())) == 3

    def test_gitignore_as_git_reads_it(self, base, root):
        (base / ".gitignore").write_text("# comment\n*.log\n/data/\nout*\n!out-kept\nlib/**/tmp\n\\#x\n")
        fill(base, "a.log", "sub/b.log", "data/x", "sub/data/y", "out1", "out-kept", "lib/q/r/tmp/z", "#x")
        fill(base, "sub/deep/kept.log", "sub/deep/c.txt", "back\\slash", "nl\nname")
        (base / "sub/deep/.gitignore").write_text("!kept.log\nc.*\n")
        subprocess.run(["git", "init", "-q", str(base)], check=True)
        listed = subprocess.run(
            ["git", "-C", str(base), "ls-files", "-z", "--others", "--exclude-standard"],
            check=True,
            capture_output=True,
        ).stdout
        taken = take_snapshot(".", base, root)
        assert files(taken.path) == set(os.fsdecode(listed).rstrip("\0").split("\0"))
        assert "sub/deep/kept.log" in files(taken.path)

    def test_gitignore_above_the_code_holds_too(self, base, root, tmp_path):
        (tmp_path / ".git").mkdir()
        (tmp_path / ".gitignore").write_text("*.npy\n/code/secret\n/other\n")
        fill(base, "train.py", "x.npy", "secret", "other")
        assert files(take_snapshot(".", base, root).path) == {"train.py", "other"}
        (tmp_path / ".gitignore").write_text("code/\n*.npy")
        assert "x.npy" in files(take_snapshot(".", base, root).path), "named as code although ignored"

    def test_what_gitignore_leaves_out_is_told_with_its_size(self, base, root):
        (base / ".gitignore").write_text("*.bin\n/out/\n__pycache__/\n.env\n*.log\n/venv/\nbuild/\n*.pt\n")
        fill(
            base, "train.py", "__pycache__/a.pyc", ".env", "a.log", "venv/pyvenv.cfg", "venv/lib/x", "build/x"
        )
        fill(base, "out/a.txt", "out/__pycache__/a.pyc", "out/deep/b.txt", "lib/small.pt")
        (base / "train.bin").write_bytes(b"x" * 1_100_000)
        told = take_snapshot(".", base, root).not_sent
        expected = [("train.bin", 1_100_000, 1), ("out/", 23, 2), ("lib/small.pt", 12, 1)]
        assert [(each.path, each.size_bytes, each.files) for each in told] == expected
        assert not_sent_note(told) == (
            "not sent, as .gitignore says: 4 files, 1.1 MB: train.bin (1.1 MB), out/ (23 bytes), "
            "lib/small.pt (12 bytes) (`code: {include: [train.bin]}` sends it)"
        )
        fill(base, "more.pt")
        assert "lib/small.pt (12 bytes), ... (`" in not_sent_note(take_snapshot(".", base, root).not_sent)
        assert not_sent_note(()) == ""

    def test_patterns_include_what_gitignore_leaves_out(self, base, root):
        (base / ".gitignore").write_text("/data/\n*.bin\n__pycache__/\n")
        fill(base, "train.py", "model.bin", "data/x/input.txt", "data/x/train.bin", "data/y/z/deep.txt")
        fill(base, "data/other/q", "__pycache__/a.txt")
        without = take_snapshot(".", base, root)
        assert files(without.path) == {".gitignore", "train.py"}
        taken = take_snapshot(".", base, root, include=["data/**/*.txt", "*.txt"])
        assert files(taken.path) == files(without.path) | {"data/x/input.txt", "data/y/z/deep.txt"}
        assert not (taken.path / "data/other").exists()
        assert taken.digest != without.digest
        assert {each.path: each.files for each in taken.not_sent} == {"data/": 2, "model.bin": 1}
        folder = take_snapshot(".", base, root, include=["data/x/", "!data/x/train.bin"])
        assert files(folder.path) == files(without.path) | {"data/x/input.txt"}
        # What was sent is taken as it is where it arrives: the server reads the same .gitignore.
        assert take_snapshot(".", taken.path, root, include=["data/**/*.txt"]).digest == taken.digest
        with pytest.raises(UsageError, match=r"code\.include: nope\.txt: there is no such file"):
            take_snapshot(".", base, root, include=["nope.txt"])

    def test_what_can_be_made_again_is_left_out(self, base, root, tmp_path):
        fill(
            base,
            "train.py",
            ".git/config",
            "sub/.git",
            "__pycache__/x.pyc",
            ".mypy_cache/x",
            "venv/pyvenv.cfg",
        )
        fill(base, "venv/bin/python", "conda/conda-meta/history", "conda/bin/x", "home/db", "mine/pyvenv.txt")
        taken = take_snapshot(".", base, base / "store", exclude=[base / "home", tmp_path / "nothing"])
        assert files(taken.path) == {"train.py", "mine/pyvenv.txt"}
        assert take_snapshot(".", base, base / "store", exclude=[base / "home"]) == taken
        assert not (taken.path / "venv").exists()

    def test_what_its_own_command_prints_to_is_no_code(self, base, root):
        fill(base, "train.py", "earlier.txt")
        call = "import sys; from pathlib import Path; from trainmaster.artifacts import take_snapshot; "
        call += "print('a line', flush=True); take_snapshot('.', Path(sys.argv[1]), Path(sys.argv[2]))"
        with (base / "now.txt").open("w") as out:
            subprocess.run([sys.executable, "-c", call, base, root], stdout=out, check=True)
        (taken,) = root.iterdir()
        assert files(taken) == {"train.py", "earlier.txt"}

    def test_links_inside_stay_and_others_are_noted(self, base, root, tmp_path):
        fill(base, "lib/a.py")
        (tmp_path / "outside").write_text("secret")
        (base / "b.py").symlink_to("lib/a.py")
        (base / "latest").symlink_to("lib")
        (base / "data").symlink_to(tmp_path)
        (base / "out").symlink_to("../outside")
        os.mkfifo(base / "pipe")
        taken = take_snapshot(".", base, root)
        assert files(taken.path) == {"lib/a.py", "b.py", "latest"}
        assert [note.partition(";")[0] for note in taken.notes] == [
            "code: left out pipe: it is neither a file nor a directory",
            f"code: left out data: a symbolic link that leads outside, to {tmp_path}",
            "code: left out out: a symbolic link that leads outside, to ../outside",
        ]

    def test_too_much_is_refused_unread_and_what_makes_it_so_is_named(self, base, root):
        fill(base, "train.py", "src/deep/raw/small")
        for path, size in [
            ("src/deep/raw/images.bin", 60_000_000),
            ("ckpt/a.pt", 30_000_000),
            ("ckpt/b.pt", 29_000_000),
            ("huge.bin", 2_000_000_000_000),
            ("little", 1000),
        ]:
            (base / path).parent.mkdir(parents=True, exist_ok=True)
            with (base / path).open("wb") as file:
                file.truncate(size)
        with pytest.raises(UsageError) as caught:  # reading two terabytes of holes would never end
            take_snapshot(".", base, root)
        assert str(caught.value) == (
            "code: . has 2000.1 GB, more than the limit of 100 MB. The largest: "
            "huge.bin (2000.0 GB), src/deep/raw/images.bin (60 MB), ckpt/ (59 MB).\n"
            "List in .gitignore what the program does not need, and give data sets as `data:`."
        )
        assert not root.exists()
        (base / ".gitignore").write_text("*.bin\n*.pt\n")
        assert take_snapshot(".", base, root).total_bytes < LIMIT_BYTES

    def test_bytes_that_are_no_text(self, base, root, tmp_path):
        name = os.fsdecode(b"\xff\xfe caf\xc3\xa9\n")
        (base / name).write_text("x")
        taken = take_snapshot(".", base, root)
        materialise(taken.path, tmp_path / "copy")
        assert (tmp_path / "copy" / name).read_text() == "x"

    def test_what_is_edited_meanwhile_is_read_again(self, base, root, monkeypatch):
        fill(base, "train.py", "b.py")
        edits = iter(["first edit", "second edit"])
        original = snapshot._store

        def edited(tree, hashes, scratch):
            if text := next(edits, ""):
                (base / "train.py").write_text(text)
            original(tree, hashes, scratch)

        monkeypatch.setattr(snapshot, "_store", edited)
        assert (take_snapshot(".", base, root).path / "train.py").read_text() == "second edit"
        edits = iter(map(str, range(100)))
        (base / "b.py").write_text("new")
        with pytest.raises(UsageError, match="keep changing"):
            take_snapshot(".", base, root)
        assert all(len(entry.name) == 64 for entry in root.iterdir())

    @pytest.mark.parametrize("source", ["nothing", "train.py", "nothing.whl"])
    def test_what_is_not_there_is_named(self, base, root, source):
        fill(base, "train.py")
        with pytest.raises(UsageError, match=source):
            take_snapshot(source, base, root)

    def test_many_at_once(self, base, root):
        fill(base, *(f"f{number}" for number in range(20)))
        taken = []
        threads = [
            threading.Thread(target=lambda: taken.append(take_snapshot(".", base, root))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) == 8
        assert len(set(taken)) == 1
        assert [entry.name for entry in root.iterdir()] == [taken[0].digest]

    def test_what_is_frozen_already_is_only_read_and_once(self, base, root, monkeypatch):
        fill(base, *(f"f{number}.py" for number in range(10)))
        first = take_snapshot(".", base, root)
        read, written = [], []
        real = snapshot._read
        monkeypatch.setattr(snapshot, "_read", lambda file: read.append(file.path) or real(file))
        monkeypatch.setattr(snapshot, "_store", lambda *_: written.append("all"))
        assert take_snapshot(".", base, root) == first
        assert sorted(read) == sorted(f"f{number}.py" for number in range(10))
        assert written == []


class TestMaterialise:
    def test_a_copy_is_the_members_own(self, base, root, tmp_path):
        fill(base, "train.py", "lib/a.py", big="x" * 3_000_000)
        (base / "train.py").chmod(0o755)
        (base / "link").symlink_to("lib/a.py")
        taken = take_snapshot(".", base, root)
        copy = tmp_path / "attempt/member/code"
        materialise(taken.path, copy)
        assert files(copy) == {"train.py", "lib/a.py", "big", "link"}
        assert stat.S_IMODE((copy / "train.py").stat().st_mode) & 0o700 == 0o700
        assert stat.S_IMODE((copy / "lib/a.py").stat().st_mode) & 0o700 == 0o600
        assert (copy / "big").read_text() == "x" * 3_000_000
        (copy / "lib/a.py").write_text("mine")
        assert (taken.path / "lib/a.py").read_text() == "lib/a.py"
        materialise(taken.path, copy)
        assert (copy / "lib/a.py").read_text() == "mine", "a copy that is there is left alone"

    def test_leftovers_of_a_killed_copy_are_used_again(self, base, root, tmp_path):
        fill(base, "train.py")
        taken = take_snapshot(".", base, root)
        left = tmp_path / "member/.code.in-the-making-0"
        fill(left, "half/written")
        materialise(taken.path, tmp_path / "member/code")
        assert files(tmp_path / "member") == {"code/train.py"}
        assert [entry.name for entry in (tmp_path / "member").iterdir()] == ["code"]

    def test_many_at_once(self, base, root, tmp_path):
        fill(base, *(f"f{number}" for number in range(20)))
        taken = take_snapshot(".", base, root)
        errors = []

        def copy():
            try:
                materialise(taken.path, tmp_path / "member/code")
            except Exception as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=copy) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(files(tmp_path / "member/code")) == 20
        assert [entry.name for entry in (tmp_path / "member").iterdir()] == ["code"]

    def test_a_snapshot_that_is_gone(self, root, tmp_path):
        with pytest.raises(UsageError, match="is gone"):
            materialise(root / ("0" * 64), tmp_path / "code")


class TestWheel:
    def wheel(self, base, entries) -> str:
        with zipfile.ZipFile(base / "it-1-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in entries:
                archive.writestr(name, data)
        return "it-1-py3-none-any.whl"

    def test_it_is_unpacked(self, base, root):
        info = zipfile.ZipInfo("bin/run")
        info.external_attr = 0o100755 << 16
        source = self.wheel(base, [("main.py", "print()"), (info, "#!/bin/sh"), ("pkg/__init__.py", "")])
        taken = take_snapshot(source, base, root)
        assert files(taken.path) == {"main.py", "bin/run", "pkg/__init__.py"}
        assert (taken.path / "bin/run").stat().st_mode & 0o100
        assert [entry.name for entry in root.iterdir()] == [taken.digest]

    @pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "a\\..\\evil", "a//b"])
    def test_names_that_leave_are_refused(self, base, root, tmp_path, name):
        with pytest.raises(UsageError, match="no name for a file"):
            take_snapshot(self.wheel(base, [("ok", ""), (name, "x")]), base, root)
        assert list(root.iterdir()) == []
        assert not (tmp_path / "evil").exists()

    def test_links_are_refused(self, base, root):
        info = zipfile.ZipInfo("link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        with pytest.raises(UsageError, match="no name for a file"):
            take_snapshot(self.wheel(base, [(info, "/etc")]), base, root)

    def test_a_bomb_is_defused(self, base, root):
        with pytest.raises(UsageError, match="more than 100 MB"):
            take_snapshot(self.wheel(base, [("zeros", b"\0" * 101_000_000)]), base, root)
        assert list(root.iterdir()) == []

    @pytest.mark.filterwarnings("ignore:Duplicate name")
    def test_names_that_come_twice_are_refused(self, base, root):
        with pytest.raises(UsageError, match="twice"):
            take_snapshot(self.wheel(base, [("a", "1"), ("a", "2")]), base, root)
        with pytest.raises(UsageError, match="twice"):
            take_snapshot(self.wheel(base, [("a", "1"), ("a/b", "2")]), base, root)

    def test_what_is_no_wheel(self, base, root):
        (base / "x.whl").write_text("no zip")
        with pytest.raises(UsageError, match=r"x\.whl is no wheel"):
            take_snapshot("x.whl", base, root)


class TestGit:
    @pytest.fixture
    def git(self, tmp_path):
        repository = tmp_path / "my project"
        repository.mkdir()

        def run(*arguments):
            identity = ["-c", "user.name=x", "-c", "user.email=x@y"]
            command = ["git", "-C", str(repository), *identity, *arguments]
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

        run("init", "-q", "-b", "main")
        fill(repository, **{"train.py": "one", ".gitignore": "*.pt\n", "kept.pt": "tracked"})
        run("add", "-f", ".")
        run("commit", "-qm", "one")
        run("tag", "v1")
        first = run("rev-parse", "HEAD")
        fill(repository, **{"train.py": "two"})
        run("commit", "-qam", "two")
        run("branch", "feature/x")
        run("branch", "deadbeef")
        fill(repository, **{"train.py": "three"})
        run("commit", "-qam", "three")
        return f"file://{repository}", first

    @pytest.mark.parametrize(
        ("ref", "text"),
        [("", "three"), ("@main", "three"), ("@v1", "one"), ("@feature/x", "two"), ("@deadbeef", "two")],
    )
    def test_refs(self, git, base, root, ref, text):
        taken = take_snapshot(git[0] + ref, base, root)
        assert (taken.path / "train.py").read_text() == text
        assert files(taken.path) == {"train.py", ".gitignore", "kept.pt"}
        assert [entry.name for entry in root.iterdir()] == [taken.digest]

    def test_commits(self, git, base, root):
        url, commit = git
        taken = take_snapshot(f"git+{url}@{commit}", base, root)
        assert (taken.path / "train.py").read_text() == "one"
        assert take_snapshot(f"{url}@{commit[:10]}", base, root) == taken

    @pytest.mark.parametrize("ref", ["nothing", "0123456789"])
    def test_a_ref_that_is_not_there(self, git, base, root, ref):
        with pytest.raises(UsageError, match=f"(?s)my project@{ref} cannot be had: .*{ref}.*Check the URL"):
            take_snapshot(f"{git[0]}@{ref}", base, root)

    def test_a_repository_that_is_not_there(self, base, root, tmp_path):
        with pytest.raises(UsageError, match=r"cannot be had: .*does not"):
            take_snapshot(f"file://{tmp_path}/nothing", base, root)

    @pytest.mark.parametrize(
        "source",
        [
            "https://host/x@--upload-pack=evil",
            "https://host/x@-b",
            "https://host/x@a b",
            "https://host/x@a..b",
            "https://host/x@",
            "ssh://-oProxyCommand=evil/x",
            "ssh://me@-oProxyCommand=evil/x",
            "git@host:-x",
            "ext::sh -c evil://x",
            "ftp://host/x",
            "git+-x",
        ],
    )
    def test_what_could_be_an_option_is_refused(self, base, root, source):
        with pytest.raises(UsageError):
            take_snapshot(source, base, root)

    def test_passwords_are_not_shown(self):
        source = as_git("https://me:token@host/x.git@v1")
        assert source.url == "https://me:token@host/x.git"
        assert source.shown == "https://***@host/x.git@v1"

    @pytest.mark.parametrize("source", [".", "code", "../x", "a:b", "/x@y", "C:x", "user@host"])
    def test_names_are_no_urls(self, source):
        assert as_git(source) is None
