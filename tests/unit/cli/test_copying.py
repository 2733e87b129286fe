"""`cp`: files and directories from and to where a member works."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import tarfile

import pytest

from trainmaster.cli import copying
from trainmaster.spec.errors import ExecutorError, NotFoundError, UsageError


class Member:
    """A client whose runs work in a directory here."""

    def __init__(self, directory):
        self.directory, self.asked = directory, []

    def resolve(self, run):
        return run

    def execute(self, run, member, command, files, *, tell):
        self.asked.append((run, member))
        stdin, stdout, stderr = files
        words = ["sh", "-c", *command]
        return subprocess.call(words, stdin=stdin, stdout=stdout, stderr=stderr, cwd=self.directory)


@pytest.fixture
def there(tmp_path, monkeypatch):
    found = Member(tmp_path / "there")
    found.directory.mkdir()
    monkeypatch.setattr("trainmaster.api.EmbeddedClient", lambda **_: found)
    monkeypatch.chdir(tmp_path)
    return found


def test_a_directory_comes_and_goes_with_links_and_modes(there, tmp_path):
    deep = there.directory / "out put" / "deep"
    deep.mkdir(parents=True)
    (deep / "script.sh").write_text("#!/bin/sh\n")
    (deep / "script.sh").chmod(0o755)
    (deep / "link").symlink_to("script.sh")
    copying.cp("run/worker-1:out put", "new")
    assert there.asked == [("run", "worker-1")]
    found = tmp_path / "new" / "deep"
    assert os.access(found / "script.sh", os.X_OK)
    assert str((found / "link").readlink()) == "script.sh"
    copying.cp("run:out put/deep/script.sh", ".")
    assert (tmp_path / "script.sh").read_text() == "#!/bin/sh\n"
    copying.cp("new", "run:made/anew")
    assert (there.directory / "made" / "anew" / "deep" / "link").is_symlink()
    copying.cp("new", "run:made")
    assert (there.directory / "made" / "new" / "deep" / "script.sh").exists()
    copying.cp("script.sh", "run:made/into/")
    copying.cp("script.sh", "run:made/renamed")
    assert sorted(entry.name for entry in (there.directory / "made").iterdir()) == [
        "anew", "into", "new", "renamed",
    ]  # fmt: skip
    assert (there.directory / "made" / "into" / "script.sh").exists()


@pytest.mark.parametrize(("words", "code"), [("tar (GNU tar) 1.34", 1), ("busybox", 1), ("GNU", 2)])
def test_a_file_that_grows_meanwhile_comes_as_it_was(there, tmp_path, monkeypatch, words, code):
    (tmp_path / "bin").mkdir()
    tar = tmp_path / "bin" / "tar"
    own = shlex.quote(shutil.which("tar"))
    tar.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{words}" && exit\n{own} "$@"; exit {code}\n')
    tar.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (there.directory / "log").write_text("as it was")
    if (words[:3], code) != ("tar", 1):
        with pytest.raises(ExecutorError, match=f"exit code {code}"):
            copying.cp("run:log", ".")
        return
    copying.cp("run:log", ".")
    assert (tmp_path / "log").read_text() == "as it was"


def test_what_is_there_twice_is_replaced_file_by_file(there, tmp_path):
    (there.directory / "d").mkdir()
    (there.directory / "d" / "a").write_text("new")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_text("old")
    (tmp_path / "d" / "b").write_text("mine")
    copying.cp("run:d", ".")
    assert [(tmp_path / "d" / name).read_text() for name in "ab"] == ["new", "mine"]


def test_a_large_file_passes_through(there, tmp_path):
    (tmp_path / "large").write_bytes(os.urandom(5 << 20))
    copying.cp("large", "run:copy")
    copying.cp("run:copy", "back")
    assert (tmp_path / "back").read_bytes() == (tmp_path / "large").read_bytes()
    assert not list(there.directory.glob(".copied-*"))
    assert not list(tmp_path.glob(".copied-*"))


@pytest.mark.parametrize(
    ("source", "target", "kind", "says"),
    [
        ("run:none", "x", NotFoundError, "run has no none there"),
        ("none", "run:x", NotFoundError, "none is not there"),
        ("run:a", "run:b", UsageError, "one side"),
        ("./a", "b", UsageError, "one side"),
        ("run:a", "no/such/place", UsageError, "no directory"),
        ("here", "run:/proc/none", ExecutorError, "exit code"),
    ],
)
def test_what_cannot_be_copied_is_said(there, tmp_path, source, target, kind, says):
    (tmp_path / "here").write_bytes(bytes(1 << 20))
    (there.directory / "a").write_text("a")
    with pytest.raises(kind, match=says):
        copying.cp(source, target)


def test_nothing_is_unpacked_outside(there, tmp_path, monkeypatch):
    """A machine that was taken over may send any archive."""
    monkeypatch.setattr(
        copying, "_PACK", "mkdir x; ln -s %(path)s x/l; tar -cf - x; tar -cf - --transform s,^,x/l/, a"
    )
    (there.directory / "a").write_text("evil")
    with pytest.raises(UsageError, match="failed here"):
        copying.cp(f"run:{tmp_path}", "got")
    assert not (tmp_path / "a").exists()


def sends(monkeypatch, tmp_path, *entries):
    """The member sends this archive, whatever is asked for: names, and what they link to or hold."""
    with tarfile.open(tmp_path / "sent.tar", "w") as archive:
        for name, kind, says in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = kind, 0o755
            if kind == tarfile.REGTYPE:
                entry.size = len(says)
                archive.addfile(entry, io.BytesIO(says.encode()))
            else:
                entry.linkname = says
                archive.addfile(entry)
    monkeypatch.setattr(copying, "_PACK", f"true %(path)s; cat {shlex.quote(str(tmp_path / 'sent.tar'))}")


FILE, FOLDER, LINK, SAME = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.mark.parametrize(
    "entries",
    [
        [("out", FOLDER, ""), ("out/plots", LINK, "../.ssh")],
        [("out", FOLDER, ""), ("out/a", FOLDER, ""), ("out/a/l", LINK, "../../.ssh")],
        [("out", LINK, ".ssh")],
        [("out", FOLDER, ""), ("out/y", FOLDER, ""), ("out/x", LINK, "."), ("out/l", LINK, "x/y/../../.ssh")],
        [("out", FOLDER, ""), ("out/a", FOLDER, ""), ("out/a/l", LINK, "../x"), ("out/l", SAME, "out/a/l")],
        [("out", FOLDER, ""), ("out/a", FOLDER, ""), ("out/l", LINK, "a"), ("out/l/f", FILE, "evil")],
        [("out", FOLDER, ""), ("out/../.ssh", FOLDER, "")],
        [("out", FOLDER, ""), ("more", FILE, "evil")],
        [(".bashrc", FILE, "evil")],
        [(".ssh", FOLDER, ""), (".ssh/authorized_keys", FILE, "evil")],
        [],
    ],
)
def test_what_leaves_the_target_is_refused(there, tmp_path, monkeypatch, entries):
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    sends(monkeypatch, tmp_path, *entries)
    for target in ("home", "home/anew"):
        with pytest.raises(UsageError, match=r"failed here|nothing"):
            copying.cp("run:out", target)
        assert [entry.name for entry in home.rglob("*")] == [".ssh"]


def test_links_within_what_is_copied_stay_links_also_the_second_time(there, tmp_path, monkeypatch):
    inside = [
        ("out/a/b/l", LINK, "../../f"),
        ("out/l", LINK, "a/b"),
        ("out/f", FILE, "new"),
        ("out/g", SAME, "out/f"),
    ]
    folders = [("out", FOLDER, ""), ("out/a", FOLDER, ""), ("out/a/b", FOLDER, "")]
    sends(monkeypatch, tmp_path, *folders, *inside)
    for _ in range(2):
        copying.cp("run:out/", ".")
        assert (tmp_path / "out" / "l" / "l").read_text() == (tmp_path / "out" / "g").read_text() == "new"
    assert (tmp_path / "out" / "a" / "b" / "l").is_symlink()


def test_a_link_at_the_target_is_replaced_and_not_written_through(there, tmp_path):
    for place in (there.directory / "out" / "plots", tmp_path / "ssh", tmp_path / "out"):
        place.mkdir(parents=True)
    (there.directory / "out" / "plots" / "keys").write_text("evil")
    (there.directory / "out" / "settings").write_text("evil")
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "out" / "plots").symlink_to(tmp_path / "ssh")
    (tmp_path / "out" / "settings").symlink_to(tmp_path / "mine")
    copying.cp("run:out", ".")
    assert not list((tmp_path / "ssh").iterdir())
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "out" / "plots" / "keys").read_text() == "evil"
    assert not (tmp_path / "out" / "settings").is_symlink()


@pytest.mark.parametrize("path", ["", ".", "a/..", "/"])
def test_what_has_no_name_of_its_own_is_not_brought(there, path):
    with pytest.raises(UsageError, match="no name"):
        copying.cp(f"run:{path}", "new")
    assert not there.asked
