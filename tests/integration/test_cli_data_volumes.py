"""`data:` from volumes, URLs and built-in sets: brought here once, before members start, and given back."""

from __future__ import annotations

import hashlib
import http.server
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def images(tm) -> Path:
    """A folder of data beside the code."""
    place = tm.root / "images"
    (place / "cats").mkdir(parents=True)
    (place / "cats" / "tom.txt").write_text("tom\n")
    (place / "dog with space.txt").write_text("rex\n")
    return place


class Server:
    """Serves one file over http, and counts how often it is asked for."""

    def __init__(self, content: bytes, *, cut: bool = False) -> None:
        self.asked, self.content = 0, content
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                if not self.path.startswith("/good"):
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(content) + (10 if cut else 0)))
                self.end_headers()
                self.wfile.write(content)

            def do_HEAD(self) -> None:
                self.send_response(200 if self.path.startswith("/good") else 404)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def packed(**files: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name.replace("__", "/"))
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


@pytest.fixture
def archive() -> Iterator[Server]:
    server = Server(packed(a__one="1\n", two="2\n"))
    yield server
    server.close()


def mounted_below(place: Path) -> list[str]:
    return [line for line in Path("/proc/mounts").read_text().splitlines() if str(place) in line]


def test_a_volume_by_its_short_name(tm, images):
    tm.call("volume", "push", images, "pets")
    recipe = tm.task(
        'cd "$TRAINMASTER_DATA_PETS"; cat cats/tom.txt "dog with space.txt" "$OLDPWD/in/cats/tom.txt"',
        data={"pets": {"volume": "pets", "at": "in"}},
    )
    run = tm.run(recipe)["run"]
    assert tm.logs(run) == "tom\nrex\ntom\n"
    assert not mounted_below(tm.root), "nothing stays mounted"


def test_all_tasks_of_a_run_see_the_same_version(tm, images):
    tm.call("volume", "push", images, "pets")
    recipe = tm.recipe(
        {
            "experiments": {
                "one": {
                    "data": {"pets": {"volume": "pets"}},
                    "command": [
                        "cat $TRAINMASTER_DATA_PETS/cats/tom.txt",
                        f"echo changed > {images}/cats/tom.txt",
                        f"trainmaster volume push {images} pets",
                    ],
                },
                "two": {
                    "after": ["one"],
                    "data": {"pets": {"volume": "pets"}},
                    "command": "cat $TRAINMASTER_DATA_PETS/cats/tom.txt",
                },
            }
        }
    )
    run = tm.run(recipe)["run"]
    assert tm.logs(run, "--experiment", "two") == "tom\n"
    again = tm.run(tm.task("cat $TRAINMASTER_DATA_PETS/cats/tom.txt", data={"pets": {"volume": "pets"}}))
    assert tm.logs(again["run"]) == "changed\n"
    old = tm.run(tm.task("cat $TRAINMASTER_DATA_PETS/cats/tom.txt", data={"pets": {"volume": "pets@1"}}))
    assert tm.logs(old["run"]) == "tom\n"


def test_tasks_that_begin_at_once_see_the_same_version_while_others_come(tm, images):
    tm.call("volume", "push", images, "pets")
    command = [
        "cat $TRAINMASTER_DATA_PETS/cats/tom.txt",
        f"cp -r {images} mine-{{{{x}}}} && echo changed by {{{{x}}}} > mine-{{{{x}}}}/cats/tom.txt",
        "trainmaster volume push mine-{{x}} pets",
    ]
    more = {"data": {"pets": {"volume": "pets"}}, "parameters": {"x": [0, 1, 2]}, "workers": 2}
    run = tm.run(tm.recipe({"experiments": {"main": {"command": command, **more}}}))["run"]
    assert tm.logs(run).count(" | tom\n") == 3, tm.logs(run)


def test_a_volume_that_is_not_there(tm):
    recipe = tm.task("touch $NOTES/ran", data={"pets": {"volume": "petz"}})
    refusal = tm.refused(recipe)
    assert "experiments.main.data.pets.volume: there is no volume petz" in refusal
    assert "volume push DIR petz" in refusal


def test_a_version_that_is_not_there(tm, images):
    tm.call("volume", "push", images, "pets")
    refusal = tm.refused(tm.task("true", data={"pets": {"volume": "pets@9"}}))
    assert "pets@9" in refusal
    assert "volume push DIR pets`" in refusal


def test_a_built_in_set(tm):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    recipe = tm.task("wc -l < $TRAINMASTER_DATA_DIGITS/digits.csv", data={"digits": {"volume": "digits"}})
    assert tm.logs(tm.run(recipe)["run"]).strip() == "1797"


def test_an_archive_from_the_web_is_fetched_once(tm, archive):
    recipe = tm.task(
        "cat $TRAINMASTER_DATA_X/a/one $TRAINMASTER_DATA_X/two",
        data={"x": {"url": f"{archive.url}/good.tar.gz"}},
    )
    for _ in range(2):
        assert tm.logs(tm.run(recipe)["run"]) == "1\n2\n"
    assert archive.asked == 1


def test_a_url_that_leads_nowhere(tm, archive):
    refusal = tm.refused(tm.task("true", data={"x": {"url": f"{archive.url}/bad.tar"}}))
    assert "404" in refusal


def test_a_connection_that_is_cut_leaves_nothing_half(tm):
    server = Server(packed(two="2\n"), cut=True)
    try:
        recipe = tm.task("touch $NOTES/ran", data={"x": {"url": f"{server.url}/good.tar.gz"}})
        tm.call("run", recipe, code=1)
    finally:
        server.close()
    assert not (tm.notes / "ran").exists()
    cache = Path(tm.env["TRAINMASTER_CACHE"]) / "data"
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_an_archive_that_would_lie_outside(tm):
    server = Server(packed(**{"..__..__evil": "x"}))
    try:
        result = tm.call("run", tm.task("true", data={"x": {"url": f"{server.url}/good.tgz"}}), code=1)
    finally:
        server.close()
    assert "outside" in result.err


@pytest.fixture
def bomb() -> Iterator[Server]:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(30 << 20))
    server = Server(out.getvalue())
    yield server
    server.close()


def test_a_file_is_what_the_recipe_says(tm, archive):
    digest = hashlib.sha256(archive.content).hexdigest()
    url = f"{archive.url}/good.tar.gz"
    good = tm.task("cat $TRAINMASTER_DATA_X/two", data={"x": {"url": url, "sha256": digest.upper()}})
    result = tm.call("run", good, "--json")
    assert "sha256" not in result.err
    bad = tm.task("touch $NOTES/ran", data={"x": {"url": url, "sha256": "0" * 64}})
    result = tm.call("run", bad, code=1)
    assert digest in result.err
    assert "0" * 64 in result.err
    assert not (tm.notes / "ran").exists()


def test_what_comes_in_clear_is_told(tm, archive):
    recipe = tm.task("true", data={"x": {"url": f"{archive.url}/good.tar.gz"}})
    for verb in ("check", "run"):
        result = tm.call(verb, recipe)
        assert "data.x.url" in result.err
        assert "sha256" in result.err


def test_sha256_is_for_one_file(tm):
    for source in ({"url": "s3://b/p", "sha256": "0" * 64}, {"dir": ".", "sha256": "0" * 64}):
        assert "data.x.sha256" in tm.refused(tm.task("true", data={"x": source}))
    assert "64 hexadecimal" in tm.refused(tm.task("true", data={"x": {"url": "http://h/x", "sha256": "12"}}))


def test_an_archive_that_becomes_too_large(tm, bomb):
    data = {"x": {"url": f"{bomb.url}/good.zip", "size_limit": "1MB"}}
    result = tm.call("run", tm.task("touch $NOTES/ran", data=data), code=1)
    assert "size_limit" in result.err
    assert "1,000,000 bytes" in result.err
    assert not (tm.notes / "ran").exists()
    cache = Path(tm.env["TRAINMASTER_CACHE"]) / "data"
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_objects_below_a_url(tm, images):
    recipe = tm.task('cat "$TRAINMASTER_DATA_X/cats/tom.txt"', data={"x": {"url": f"file://{images}"}})
    assert tm.logs(tm.run(recipe)["run"]) == "tom\n"


def test_a_volume_that_a_run_needs_is_not_removed_before_that_is_over(tm, images):
    tm.call("volume", "push", images, "pets")
    main = {"command": "sleep 600", "data": {"pets": {"volume": "pets"}}}
    tm.call("run", tm.recipe({"name": "needs", "experiments": {"main": main}}), "--detach")
    for named in ("pets@1", "pets"):
        refused = tm.call("volume", "rm", named, "--yes", code=2).err
        assert f"{named} stays: needs-" in refused
        assert "which is not over, has it as data\n`trainmaster cancel needs-" in refused
    tm.call("cancel", "latest")
    tm.call("volume", "rm", "pets", "--yes")
