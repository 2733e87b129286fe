"""Sets that are fetched by their names: from a mirror, verified, once for all runs of a machine."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from trainmaster.control.attempt import data_sources
from trainmaster.control.attempt.data_sources import (
    BUILT_IN,
    MIRROR,
    BuiltIn,
    provide_volume,
    volume_place,
    volume_url,
)
from trainmaster.spec.errors import UsageError
from trainmaster.spec.facts import RunFacts

#: The format of MNIST: two images of 2 x 2.
IDX = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2]) + bytes(range(8))


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A server of files, and what was asked of it."""
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(self.path)

    folder = tmp_path / "mirror"
    for name in ("mnist", "fashion-mnist"):
        (folder / name).mkdir(parents=True)
        for file in BUILT_IN[name].bring.files:
            (folder / name / file).write_bytes(gzip.compress(IDX, mtime=0))
    (folder / "cifar10").mkdir()
    with tarfile.open(folder / "cifar10" / "cifar-10-binary.tar.gz", "w:gz") as tar:
        record = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        record.size = 3073
        tar.addfile(record, io.BytesIO(bytes(3073)))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(MIRROR, f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("TRAINMASTER_CACHE", str(tmp_path / "cache"))
    yield folder, asked
    server.shutdown()
    server.server_close()


def as_published(monkeypatch, folder):
    """The sets with the hashes of what the mirror has, as it has no room for the real files."""
    for name in ("cifar10", "mnist", "fashion-mnist"):
        files = BUILT_IN[name].bring.files
        here = {file: hashlib.sha256((folder / name / file).read_bytes()).hexdigest() for file in files}
        known = data_sources._Published(name, "http://127.0.0.1:1", here)
        monkeypatch.setitem(BUILT_IN, name, BuiltIn(data_sources._NOTHING, known))


def test_a_set_is_fetched_once_for_all_runs(mirror, monkeypatch, tmp_path):
    folder, asked = mirror
    as_published(monkeypatch, folder)
    for run in ("a", "b"):
        for name in ("cifar10", "mnist", "fashion-mnist"):
            BUILT_IN[name].bring(tmp_path / run / name)
        for name in ("mnist", "fashion-mnist"):
            images = tmp_path / run / name / "train-images-idx3-ubyte.gz"
            assert gzip.decompress(images.read_bytes()) == IDX
        batch = tmp_path / run / "cifar10" / "cifar-10-batches-bin" / "data_batch_1.bin"
        assert batch.stat().st_size == 3073
    assert len(asked) == len(set(asked)) == 9


def test_what_is_not_what_was_published_is_refused(mirror, tmp_path):
    with pytest.raises(UsageError, match="is not what is meant"):
        BUILT_IN["mnist"].bring(tmp_path / "a" / "mnist")
    assert not (tmp_path / "a" / "mnist").exists()


def test_a_run_finds_it_where_its_recipe_says(mirror, monkeypatch, tmp_path):
    folder, _ = mirror
    as_published(monkeypatch, folder)
    for name in ("built-in:mnist", "mnist"):  # no volume is called so
        place = tmp_path / "data" / volume_place(name)
        place.parent.mkdir(exist_ok=True)
        provide_volume(name, volume_url("mnist", f"file://{tmp_path}/store"), place, RunFacts())
        assert len(list(place.iterdir())) == 4
