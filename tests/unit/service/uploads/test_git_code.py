"""Code from git: of public hosts only, and as it is there: no hooks, filters, submodules or links outside."""

from __future__ import annotations

import http.server
import os
import shutil
import ssl
import subprocess
import threading

import pytest

from trainmaster.control.task.layout import Home
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
        ["fe80::1%eth0"],
        ["168.63.129.16"],
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


class GitHost:
    """A host of repositories by https, as `git http-backend` serves them.

    Attributes:
        asked: paths that were asked for.
        answer: instead of git's: a status and headers.
    """

    def __init__(self, root, certificate):
        self.asked, self.answer = [], None
        host = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.serve(b"")

            def do_POST(self):
                self.serve(self.rfile.read(int(self.headers["content-length"])))

            def serve(self, body):
                path, _, query = self.path.partition("?")
                host.asked.append((self.headers["host"], path))
                if host.answer is not None:
                    self.send_response(host.answer[0])
                    for name, value in host.answer[1].items():
                        self.send_header(name, value)
                    self.end_headers()
                    return
                env = {
                    "PATH": os.environ["PATH"],
                    "GIT_PROJECT_ROOT": str(root),
                    "GIT_HTTP_EXPORT_ALL": "1",
                    "GIT_CONFIG_COUNT": "1",
                    "GIT_CONFIG_KEY_0": "safe.directory",
                    "GIT_CONFIG_VALUE_0": "*",
                    "GIT_PROTOCOL": self.headers.get("git-protocol", ""),
                    "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
                    "PATH_INFO": path,
                    "QUERY_STRING": query,
                    "REQUEST_METHOD": self.command,
                    "CONTENT_TYPE": self.headers.get("content-type", ""),
                    "CONTENT_LENGTH": str(len(body)),
                    "REMOTE_ADDR": "127.0.0.1",
                }
                done = subprocess.run(
                    ["git", "http-backend"], input=body, env=env, capture_output=True, check=True
                )
                head, _, content = done.stdout.partition(b"\r\n\r\n")
                headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
                self.send_response(int(headers.pop("Status", "200").split()[0]))
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self.server.socket = context.wrap_socket(
            self.server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.url = f"https://git.example.org:{self.server.server_port}/repository"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def https_host(repository, tmp_path, monkeypatch):
    pytest.importorskip("cryptography", reason="the extra `server` is not installed")
    from trainmaster.service.self_signed import self_signed

    certificate, _ = self_signed(tmp_path, "git.example.org")
    monkeypatch.setenv("GIT_SSL_CAINFO", str(certificate))
    # Nothing on this machine has an address of the public internet.
    monkeypatch.setattr(git_code, "is_public", lambda address: str(address) == "127.0.0.1")
    found = GitHost(tmp_path, certificate)
    yield found
    found.close()


def test_code_comes_by_https_from_the_address_that_was_checked(uploads, repository, https_host):
    _, git = repository
    code = GitCode(uploads, resolve=lambda *_: ["127.0.0.1"])  # nobody else knows the name
    digest, commit = code.add(https_host.url, "feature/x")
    assert commit == git("rev-parse", "feature/x")
    assert {path.name for path in uploads.find(digest).iterdir()} >= {"train.py", "kept.txt"}
    assert {host.partition(":")[0] for host, _ in https_host.asked} == {"git.example.org"}
    assert code.add(https_host.url, commit) == (digest, commit)
    with pytest.raises(UsageError, match="git: fatal"):
        code.add(https_host.url.replace("/repository", "/other"))


def test_an_https_host_that_nobody_vouches_for_or_that_sends_elsewhere_is_refused(
    uploads, https_host, monkeypatch
):
    code = GitCode(uploads, resolve=lambda *_: ["127.0.0.1"])
    https_host.answer = (302, {"location": "http://169.254.169.254/", "content-length": "0"})
    with pytest.raises(UsageError, match="git: fatal"):
        code.add(https_host.url)
    https_host.answer = None
    monkeypatch.delenv("GIT_SSL_CAINFO")
    with pytest.raises(UsageError, match="certificate"):
        code.add(https_host.url)


def test_what_the_other_end_has_git_say_fills_no_memory(uploads, repository, tmp_path, monkeypatch):
    place, _ = repository
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text(
        '#!/bin/sh\ncase "$*" in *version*) echo git version 2.40;;\n'
        '*fetch*) exec yes "remote: more" >&2;; esac\n'
    )
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(git_code, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(git_code, "_TIMEOUT_S", 5.0)
    with pytest.raises(UsageError, match=r"^git: (.*remote: more|remot?)") as refused:
        GitCode(uploads, scheme="file").add(f"file://{place}")
    assert len(str(refused.value)) < 500
