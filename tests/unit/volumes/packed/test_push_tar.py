import gzip
import io
import os
import random
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from packed_trees import contents

from trainmaster.artifacts import UnstableDirectory
from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import PublishError, UsageError
from trainmaster.volumes.packed import tar_members
from trainmaster.volumes.packed.archive_file import WebFile
from trainmaster.volumes.packed.getting import get
from trainmaster.volumes.packed.opening import open_volume
from trainmaster.volumes.packed.pushing import push

pytest_plugins = ["volumes_packed"]

LIMIT = 100_000


def pushed(source, tmp_path):
    url = f"file://{tmp_path}/v"
    push(source, url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT)
    volume = open_volume(url, tmp_path / "cache")
    get(volume, tmp_path / "out")
    return volume


def archive(place, members, mode="w"):
    """A tar of (name, content or a dict of the member's attributes)."""
    with tarfile.open(place, mode) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            else:
                for key, value in content.items():
                    setattr(member, key, value)
                tar.addfile(member)
    return place


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("", tarfile.PAX_FORMAT),
        ("", tarfile.GNU_FORMAT),
        ("gz", tarfile.GNU_FORMAT),
        ("xz", tarfile.PAX_FORMAT),
    ],
)
def test_a_tar_is_what_was_in_it(tree, tmp_path, kind, form):
    (tree / "up").unlink()  # an absolute link
    place = tmp_path / "x.tar"
    with tarfile.open(place, f"w:{kind}", format=form, encoding="utf-8", errors="surrogateescape") as tar:
        tar.add(tree, ".")
    volume = pushed(place, tmp_path)
    assert volume.head.order == "archive"
    was, found = contents(tree), contents(tmp_path / "out")
    assert was.keys() == found.keys()
    for path, value in was.items():
        # Old formats keep whole seconds.
        assert found[path][:2] == value[:2]
        if len(value) == 3:
            assert abs(found[path][2] - value[2]) < 1e9


def test_the_later_of_two_members_counts(tmp_path):
    members = [("a", b"first"), ("b", b"b"), ("./a", b"second")]
    volume = pushed(archive(tmp_path / "x.tar", members), tmp_path)
    assert (tmp_path / "out/a").read_bytes() == b"second"
    assert [volume.table.path(row) for row in range(volume.table.file_count)] == ["b", "a"]


def test_hard_links_are_files(tmp_path):
    members = [("d/a", b"content"), ("b", {"type": tarfile.LNKTYPE, "linkname": "d/a"})]
    pushed(archive(tmp_path / "x.tar", members), tmp_path)
    assert (tmp_path / "out/b").read_bytes() == b"content"
    with pytest.raises(PublishError, match="hard link"):
        pushed(archive(tmp_path / "y.tar.gz", members, "w:gz"), tmp_path)


EVIL = [
    [("../x", b"1")],
    [("/etc/x", b"1")],
    [("a/../../x", b"1")],
    [("a", {"type": tarfile.SYMTYPE, "linkname": "/etc"})],
    [("a", {"type": tarfile.SYMTYPE, "linkname": ".."})],
    [("a", {"type": tarfile.SYMTYPE, "linkname": "b"}), ("a/x", b"1")],
    [("a", b"1"), ("a/x", b"1")],
    [("a", {"type": tarfile.LNKTYPE, "linkname": "../../etc/passwd"})],
    [("a", {"type": tarfile.LNKTYPE, "linkname": "nothing"})],
    [("a//b", b"1")],
]


@pytest.mark.parametrize("members", EVIL, ids=str)
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_evil_members(tmp_path, members, mode):
    place = archive(tmp_path / "x.tar", members, mode)
    with pytest.raises(PublishError):
        push(place, f"file://{tmp_path}/v", cache=tmp_path / "cache")
    assert list(ObjectStore(f"file://{tmp_path}/v").list("heads")) == []


def test_what_is_no_file_is_left_out(tmp_path):
    members = [("a", b"1"), ("fifo", {"type": tarfile.FIFOTYPE}), ("null", {"type": tarfile.CHRTYPE})]
    report = push(archive(tmp_path / "x.tar", members), f"file://{tmp_path}/v", cache=tmp_path / "cache")
    assert len(report.notes) == 2
    assert report.head.file_count == 1


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
@pytest.mark.parametrize("where", [0.3, 0.7, 0.99, 0.99999])
def test_a_changed_byte_of_a_packed_tar_is_refused(tmp_path, kind, where):
    # Random bytes: gzip stores them as they are, and only its checksum tells that one is another.
    members = [
        ("big", random.Random(0).randbytes(2 * LIMIT)),
        ("small", random.Random(1).randbytes(LIMIT // 2)),
    ]
    place = archive(tmp_path / f"y.tar.{kind}", members, f"w:{kind}")
    data = bytearray(place.read_bytes())
    data[int((len(data) - 1) * where)] ^= 1
    place.write_bytes(data)
    with pytest.raises(PublishError, match="damaged"):
        pushed(place, tmp_path)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize(
    ("left", "changed"), [(3072, None), (3172, None), (None, 3082)], ids=["between", "in a header", "changed"]
)
def test_what_lies_behind_a_damaged_header_is_not_left_out(tmp_path, mode, left, changed):
    data = bytearray(archive(tmp_path / "z.tar", [(f"f{n}", bytes(100)) for n in range(6)]).read_bytes())
    data = data[:left]
    if changed is not None:
        data[changed] ^= 1
    place = tmp_path / "x.tar"
    place.write_bytes(gzip.compress(data) if mode == "w:gz" else data)
    with pytest.raises(PublishError, match="damaged"):
        pushed(place, tmp_path)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_a_tar_that_was_cut_off(tmp_path, mode):
    rng = random.Random(0)
    place = archive(tmp_path / "x.tar", [(str(number), rng.randbytes(50_000)) for number in range(8)], mode)
    place.write_bytes(place.read_bytes()[:250_000])
    with pytest.raises(PublishError, match="damaged"):
        push(place, f"file://{tmp_path}/v", cache=tmp_path / "cache", chunk_limit_bytes=LIMIT)
    assert list(ObjectStore(f"file://{tmp_path}/v").list("heads")) == []


def test_what_is_no_tar(tmp_path):
    (tmp_path / "x").write_bytes(b"this is no tar" * 100)
    with pytest.raises(PublishError, match="no tar"):
        push(tmp_path / "x", f"file://{tmp_path}/v", cache=tmp_path / "cache")


def test_a_tar_that_changes(tmp_path, monkeypatch):
    place = archive(tmp_path / "x.tar", [("a", b"1" * 1000)])

    original = tar_members.load_pieces

    def load(pieces, target):
        original(pieces, target)
        with place.open("r+b") as file:
            file.seek(600)
            file.write(b"X")
        os.utime(place)

    monkeypatch.setattr(tar_members, "load_pieces", load)
    with pytest.raises(UnstableDirectory):
        push(place, f"file://{tmp_path}/v", cache=tmp_path / "cache")


class Server(ThreadingHTTPServer):
    """Serves one body; breaks connections as told."""

    daemon_threads = True
    breaks = 0
    refuse = 0
    ranges = True
    etag = '"1"'
    names_it = "ETag"

    def __init__(self, body):
        super().__init__(("127.0.0.1", 0), Handler)
        self.body = body
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server_port}/x.tar"

    def handle_error(self, request, client_address):
        pass

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        server = self.server
        if server.refuse:
            server.refuse -= 1
            self.send_error(503)
            return
        start = 0
        wanted = self.headers.get("Range")
        if wanted and server.ranges and self.headers.get("If-Range", server.etag) == server.etag:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(server.body) - start))
        self.send_header(server.names_it, server.etag)
        self.end_headers()
        body = server.body[start:]
        if server.breaks:
            server.breaks -= 1
            self.wfile.write(body[: len(body) // 2])
            server.on_break()
            self.connection.close()
            return
        self.wfile.write(body)


@pytest.fixture
def web(tmp_path, monkeypatch):
    rng = random.Random(0)
    place = archive(tmp_path / "w.tar", [(f"d/{number}", rng.randbytes(40_000)) for number in range(9)])
    monkeypatch.setattr("trainmaster.volumes.packed.archive_file.time.sleep", lambda _: None)
    with Server(place.read_bytes()) as server:
        server.on_break = lambda: None
        yield server


def test_a_tar_on_the_web(web, tmp_path):
    pushed(web.url, tmp_path)
    assert len(list((tmp_path / "out/d").iterdir())) == 9


def test_connections_that_break(web, tmp_path):
    web.breaks = 3
    pushed(web.url, tmp_path)
    assert len(list((tmp_path / "out/d").iterdir())) == 9


def test_a_connection_that_cannot_go_on(web, tmp_path):
    web.breaks, web.ranges = 1, False
    with pytest.raises(PublishError, match="cannot go on there"):
        pushed(web.url, tmp_path)


@pytest.mark.parametrize("named", ["ETag", "Last-Modified"])
def test_a_file_that_is_another_after_the_break(web, tmp_path, named):
    web.breaks, web.names_it = 1, named
    web.on_break = lambda: setattr(web, "etag", '"2"')
    with pytest.raises(PublishError, match="another file now"):
        pushed(web.url, tmp_path)


def test_a_server_that_never_recovers(web, tmp_path):
    web.breaks = 100
    web.on_break = lambda: setattr(web, "refuse", 100)
    with pytest.raises(PublishError, match="the connection broke 6 times"):
        pushed(web.url, tmp_path)


def test_urls_that_lead_nowhere(web, tmp_path):
    web.body = b""
    with pytest.raises(PublishError, match="damaged"):
        pushed(web.url, tmp_path)
    Handler.do_GET, original = lambda self: self.send_error(404), Handler.do_GET
    try:
        with pytest.raises(UsageError, match="404"):
            WebFile(web.url)
    finally:
        Handler.do_GET = original
    with pytest.raises(PublishError, match="cannot be reached"):
        WebFile("http://127.0.0.1:1/x.tar")
