"""Code from git: of public hosts only, and as it is there: no hooks, filters, submodules or links outside."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from trainmaster.control.layout import Home
from trainmaster.service.uploads import git_code
from trainmaster.service.uploads.code_uploads import CodeUploads
from trainmaster.service.uploads.git_code import GitCode
from trainmaster.service.users.caller import TooOftenError
from trainmaster.spec.errors import UsageError

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")


@pytest.fixture
def uploads(tmp_path):
    return CodeUploads(Home(tmp_path / "home", tmp_path, f"file://{tmp_path}/store", ""), "red")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    place = tmp_path / "repository"
    place.mkdir()
    me = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a"}
    me |= {"GIT_COMMITTER_EMAIL": "a@b", "GIT_CONFIG_GLOBAL": os.devnull, "PATH": os.environ["PATH"]}

    def git(*arguments):
        done = subprocess.run(
            ["git", *arguments], cwd=place, env=me, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "--quiet", "--initial-branch=main")
    (place / "train.py").write_text("print(1)\n")
    (place / "kept.txt").write_text("kept\n")
    (place / "link").symlink_to("train.py")
    (place / ".gitattributes").write_text("kept.txt export-ignore\n*.py filter=evil\n")
    git("config", "filter.evil.smudge", f"touch {tmp_path}/evil")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    git("branch", "feature/x")
    return place, git


def test_files_come_as_they_are(uploads, repository, tmp_path):
    place, git = repository
    first = git("rev-parse", "HEAD")
    digest, commit = GitCode(uploads, scheme="file").add(f"file://{place}", "feature/x")
    code = uploads.find(digest)
    assert commit == first
    assert {path.name for path in code.iterdir()} == {"train.py", "kept.txt", "link", ".gitattributes"}
    assert ((code / "link").is_symlink(), (code / "link").read_text()) == (False, "print(1)\n")
    assert not (tmp_path / "evil").exists()
    assert GitCode(uploads, scheme="file").add(f"file://{place}") == (digest, first)
    with pytest.raises(UsageError, match="git: fatal"):
        GitCode(uploads, scheme="file").add(f"file://{place}", "nothing")


def test_a_link_that_leads_outside_is_refused(uploads, repository):
    place, git = repository
    (place / "outside").symlink_to("/etc/passwd")
    git("add", ".")
    git("commit", "--quiet", "-m", "second")
    with pytest.raises(UsageError, match="outside"):
        GitCode(uploads, scheme="file").add(f"file://{place}")


def test_what_is_too_large_is_stopped(uploads, repository, monkeypatch):
    place, git = repository
    (place / "noise").write_bytes(os.urandom(1 << 20))
    git("add", ".")
    git("commit", "--quiet", "-m", "large")
    monkeypatch.setattr(git_code, "MAX_BYTES", 100 << 10)
    with pytest.raises(UsageError, match="git: "):
        GitCode(uploads, scheme="file").add(f"file://{place}")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/x.git",
        "file:///etc",
        "/etc",
        "ssh://git@example.org/x",
        "git@example.org:x",
        "ext::sh -c touch% /tmp/x",
        "--upload-pack=touch /tmp/x",
        "https://user:word@example.org/x",
        "https://token@example.org/x",
        "https://example.org/x?y",
        "https://[::1]/x",
        "https://exa mple.org/x",
        "https://example.org:x/y",
        "https:///x",
        "https://-option/x",
    ],
)
def test_only_names_of_hosts_by_https(uploads, url):
    with pytest.raises(UsageError):
        GitCode(uploads, lambda *_: ["8.8.8.8"]).add(url)


@pytest.mark.parametrize("revision", ["", "-x", "--upload-pack=x", "a..b", "a b", "a\nb", "x@{1}", "+a:b"])
def test_revisions_are_no_options_and_no_refspecs(uploads, revision):
    with pytest.raises(UsageError, match="revision"):
        GitCode(uploads, lambda *_: ["8.8.8.8"]).add("https://example.org/x", revision)


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["10.1.2.3"],
        ["169.254.169.254"],
        ["100.64.0.1"],
        ["0.0.0.0"],
        ["224.0.0.1"],
        ["::1"],
        ["fd00::1"],
        ["fe80::1%eth0"],
        ["::ffff:192.168.0.1"],
        ["2002:7f00:1::1"],
        ["8.8.8.8", "192.168.0.1"],
        [],
    ],
    ids=str,
)
def test_private_addresses_are_not_connected_to(uploads, addresses):
    with pytest.raises(UsageError, match="public internet"):
        GitCode(uploads, lambda *_: addresses).add("https://example.org/x")


def test_git_connects_to_the_address_that_was_checked(uploads):
    address = GitCode(uploads, lambda *_: ["8.8.8.8"])._address_of("https://example.org/x")
    assert address == {"http.curloptResolve": "example.org:443:8.8.8.8"}
    address = GitCode(uploads, lambda *_: ["2001:4860:4860::8888"])._address_of("https://example.org:8443/x")
    assert address == {"http.curloptResolve": "example.org:8443:[2001:4860:4860::8888]"}


def test_few_at_once(uploads, monkeypatch):
    with git_code._one_of_few(), git_code._one_of_few(), pytest.raises(TooOftenError):
        GitCode(uploads, lambda *_: ["8.8.8.8"]).add("https://example.org/x")
