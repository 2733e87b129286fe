"""Files of a model from a server: through it, not from where its store would send a browser."""

from __future__ import annotations

import hashlib

import pytest

from trainmaster.api.remote.downloads import download
from trainmaster.spec.errors import PublishError

WEIGHTS = b"weights"


class Server:
    """In place of a connection: a server whose store is on S3."""

    def __init__(self, links=(), **more):
        self.links = [{"path": path, "target": target} for path, target in links]
        self.more = more

    def get(self, path):
        assert path == "/models/r-1/main/0"
        digest = hashlib.sha256(WEIGHTS).hexdigest()
        file = {"path": "a/b", "sha256": digest, "size_bytes": len(WEIGHTS)}
        return {"files": [file | self.more], "links": self.links}

    def pieces(self, path, query):
        assert path == "/models/r-1/main/0/files/a/b"
        if query == {"redirect": "false"}:  # else it answers 302, without a body
            yield WEIGHTS


def test_a_file_on_a_store_with_links_comes_through_the_server(tmp_path):
    found = download(Server(), "r-1", "main", 0, tmp_path / "model")
    assert (found.files, found.total_bytes) == (1, len(WEIGHTS))
    assert (tmp_path / "model" / "a" / "b").read_bytes() == WEIGHTS


def test_modes_and_links_are_kept(tmp_path):
    server = Server([("newest", "a/b"), ("a/c", "../newest"), ("deep/none", "x")], mode=0o755)
    assert download(server, "r-1", "main", 0, tmp_path / "model").files == 1
    assert (tmp_path / "model" / "a" / "b").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "model" / "a" / "c").read_bytes() == WEIGHTS
    assert (tmp_path / "model" / "deep" / "none").is_symlink()


@pytest.mark.parametrize("link", [("x", "../../etc"), ("x", "/etc"), ("../x", "a"), ("a", "..")])
def test_nothing_leads_out_of_a_model(tmp_path, link):
    with pytest.raises(PublishError, match="leads out"):
        download(Server([link]), "r-1", "main", 0, tmp_path / "model")
    assert not (tmp_path / "model").exists()
