"""Files of a model from a server: through it, not from where its store would send a browser."""

from __future__ import annotations

import hashlib

from trainmaster.api.remote.downloads import download

WEIGHTS = b"weights"


class Server:
    """In place of a connection: a server whose store is on S3."""

    def get(self, path):
        assert path == "/models/r-1/main/0"
        digest = hashlib.sha256(WEIGHTS).hexdigest()
        return {"files": [{"path": "a/b", "sha256": digest, "size_bytes": len(WEIGHTS)}]}

    def pieces(self, path, query):
        assert path == "/models/r-1/main/0/files/a/b"
        if query == {"redirect": "false"}:  # else it answers 302, without a body
            yield WEIGHTS


def test_a_file_on_a_store_with_links_comes_through_the_server(tmp_path):
    found = download(Server(), "r-1", "main", 0, tmp_path / "model")
    assert (found.files, found.total_bytes) == (1, len(WEIGHTS))
    assert (tmp_path / "model" / "a" / "b").read_bytes() == WEIGHTS
