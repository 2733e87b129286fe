"""Data of a run go from the object store to its machines, and not through the one that drives it."""

from __future__ import annotations

import http.server
import ipaddress
import json
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("blake3", reason="blake3 is not installed")

from renter import SCALE, Renter

from trainmaster.testing.counting_proxy import CountingProxy
from trainmaster.volumes.mounting import available
from trainmaster.volumes.packed.pushing import push

pytestmark = [
    pytest.mark.ray,
    pytest.mark.s3,
    pytest.mark.timeout(900),
    pytest.mark.skipif(available() is not None, reason=f"no mounts here: {available()}"),
]
MB = 1 << 20
SOME = """
import os
from pathlib import Path

(Path(os.environ["TRAINMASTER_OUTPUT_DIR"]) / "weights").write_bytes(b"w" * (4 << 20))
"""
#: Reads all there is; the first attempt for ever.
READS = """
import os, time
from pathlib import Path

images, model = (Path(os.environ[f"TRAINMASTER_DATA_{name}"]) for name in ("IMAGES", "MODEL"))
while True:
    assert (model / "weights").read_bytes() == b"w" * (4 << 20)
    found = sum(len(path.read_bytes()) for path in images.iterdir())
    assert found == 16 << 20, found
    attempt = os.environ["TRAINMASTER_ATTEMPT"]
    print(f"attempt {attempt} has read all", flush=True)
    if attempt != "1":
        break
    time.sleep(1)
    for path in images.iterdir():  # also what the kernel remembers
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
"""
RECIPE = """
name: steps
experiments:
  make:
    framework: plain
    command: python3 some.py
  train:
    after: [make]
    distributed: {strategy: allreduce, workers: 2}
    framework: plain
    grace: 5s
    data:
      images: {volume: images}
      model: {from: make}
    command: python3 reads.py
"""
#: For what ends it.
WAITS = """
name: steps
experiments:
  train:
    distributed: {strategy: allreduce, workers: 2}
    framework: plain
    data:
      images: {volume: images}
    command: test -s $TRAINMASTER_DATA_IMAGES/3.bin && echo has mounted && sleep 600
"""


@pytest.fixture(scope="module")
def owner(make_lab_user: Callable[[], Any]) -> Any:
    """Somebody with two hosts."""
    user = make_lab_user()
    user.call("up", *SCALE, "--hosts", "2")
    return user


@pytest.fixture
def renter(owner: Any, tmp_path: Path) -> Iterator[Renter]:
    work = tmp_path / "work"
    work.mkdir()
    renter = Renter(owner, work)
    yield renter
    if renter.kill_all():
        for host in owner.json("status")["hosts"]:
            owner.ssh(host["id"])("rm -f /var/tmp/trainmaster-claims.u*/*.json")


@pytest.fixture
def store(owner: Any, renter: Renter, s3: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[CountingProxy]:
    """A store that the hosts reach where this machine has its end of their network."""
    network = ipaddress.ip_network(owner.json("status")["network"])
    with CountingProxy(s3.url, str(network[2])) as line:
        found = s3.environment(line.url)
        found["TRAINMASTER_STORE"] = f"s3://{s3.new_bucket()}/store"
        renter.env |= found
        for name, value in found.items():
            monkeypatch.setenv(name, value)
        yield line


@pytest.mark.crossings  # of nodes without a lab in `test_data_on_nodes.py`
def test_data_do_not_go_through_the_driver(
    renter: Renter, owner: Any, store: CountingProxy, tmp_path: Path
) -> None:
    source = tmp_path / "images"
    source.mkdir()
    for number in range(16):
        (source / f"{number}.bin").write_bytes(bytes([number]) * MB)
    push(source, f"{renter.env['TRAINMASTER_STORE']}/volumes/images")
    here = store.url.removeprefix("http://").partition(":")[0]
    store.got_bytes.clear()
    (renter.work / "some.py").write_text(SOME)
    (renter.work / "reads.py").write_text(READS)
    hosts = [owner.ssh(host["id"]) for host in owner.json("status")["hosts"]]

    renting = renter.run(renter.recipe(RECIPE), provider="hosts")
    run = renting.run
    renting.until(
        lambda: (
            renter.call("logs", f"{run}", "--experiment", "train", code=None).stdout.count("has read all") > 3
        ),
        "the data",
    )
    servers = [host("pgrep -f 'mounting.server [s]erve'").split() for host in hosts]
    assert [len(each) for each in servers] == [1, 1]
    hosts[1](f"kill -9 {servers[1][0]}")
    found = renting.end()
    assert found["reason"] == "SUCCEEDED"
    text = renting.text
    assert "through this machine" not in text
    assert re.search("data.images was no longer there on", renter.call("status", run, "--json").stdout + text)
    assert "NODE_LOST" in renter.attempts(run, experiment=1), "free: the recipe gives no retries"

    nodes = {host: size for host, size in store.got_bytes.items() if host != here}
    assert len(nodes) == 2, store.got_bytes
    assert all(size > 20 * MB for size in nodes.values()), "each has all of it"
    assert store.got_bytes[here] < 2 * MB, store.got_bytes
    for host in hosts:  # they go on without us, and nothing of it stays
        assert " trainmaster:" not in host("cat /proc/self/mountinfo")
        host("for _ in $(seq 100); do pgrep -f 'mounting.[s]erver' || exit 0; sleep 0.1; done; exit 1")


def test_what_a_run_left_on_hosts_ends_with_its_cluster(
    renter: Renter, owner: Any, store: CountingProxy, tmp_path: Path
) -> None:
    """Its driver was killed when the run was over, before it had given the hosts back."""
    source = tmp_path / "images"
    source.mkdir()
    for number in range(16):
        (source / f"{number}.bin").write_bytes(bytes([number]) * MB)
    push(source, f"{renter.env['TRAINMASTER_STORE']}/volumes/images")
    hosts = [owner.ssh(host["id"]) for host in owner.json("status")["hosts"]]
    renting = renter.run(renter.recipe(WAITS), provider="hosts")
    run = renting.run
    attempt = owner.home / "runs" / run / "tasks" / "train" / "0" / "1"
    logs = [attempt / "worker-0.log", attempt / "worker-1.log"]
    renting.until(lambda: all(log.exists() and "has mounted" in log.read_text() for log in logs), "the data")
    assert all(" trainmaster:" in host("cat /proc/self/mountinfo") for host in hosts)
    renting.kill()
    with sqlite3.connect(renter.lab.home / "trainmaster.db") as connection:
        connection.execute("UPDATE run SET state = 'DONE', reason = 'CANCELLED' WHERE id = ?", [run])
    (left,) = json.loads(renter.call("clusters", "--json").stdout)["clusters"]
    assert left["state"] == "left"
    done = renter.call("clusters", "end", left["id"])
    assert "keeps what" not in done.stderr
    for host in hosts:
        assert " trainmaster:" not in host("cat /proc/self/mountinfo")
        assert run not in host("ls /var/tmp/trainmaster-*/runs; true")
        host(
            "for _ in $(seq 100); do "
            "ps -eo args | grep -E '[r]aylet|[s]leep 600|[e]xecutors.supervisor|mounting.[s]erver' "
            "|| exit 0; sleep 0.1; done; exit 1"
        )


class Slow(http.server.BaseHTTPRequestHandler):
    """A file that comes slowly, for as long as somebody wants that."""

    is_slow = threading.Event()
    pause = threading.Event()
    fetching: ClassVar[set[str]] = set()
    got: ClassVar[list[str]] = []
    block = b"x" * (64 << 10)
    blocks = 100

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(self.blocks * len(self.block)))
        self.end_headers()
        for number in range(self.blocks):
            self.wfile.write(self.block)
            if number == self.blocks // 10:  # it is more than a question
                self.fetching.add(self.client_address[0])
            if self.is_slow.is_set():
                self.pause.wait(0.5)
        self.got.append(self.client_address[0])

    def log_message(self, *_: object) -> None:
        pass


LOOKS = """
name: steps
experiments:
  train:
    distributed: {{strategy: allreduce, workers: 2}}
    framework: plain
    hardware: {{instance: m4.xlarge}}
    data: {{set: {{url: "{url}"}}}}
    command: wc -c < $TRAINMASTER_DATA_SET/set.bin
"""


@pytest.mark.crossings  # while it uploads: `test_lab_direct_store.py`
def test_a_machine_that_is_lost_while_it_fetches_is_replaced(renter: Renter, owner: Any) -> None:
    network = ipaddress.ip_network(owner.json("status")["network"])
    server = http.server.ThreadingHTTPServer((str(network[2]), 0), Slow)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    Slow.is_slow.set()
    try:
        url = f"http://{network[2]}:{server.server_port}/set.bin"
        renting = renter.run(renter.recipe(LOOKS.format(url=url)))
        renting.until(lambda: len(Slow.fetching) == 2, "both fetch")
        machines = renter.machines(renting.run)
        owner.call("terminate", machines["worker-1"])
        renting.until_said(rf"\({machines['worker-1']}\) is lost")
        Slow.is_slow.clear()
        found = renting.end()
    finally:
        Slow.is_slow.clear()
        server.shutdown()
        server.server_close()
    assert found["reason"] == "SUCCEEDED"
    assert renter.attempts(found["run"])[-1] == "SUCCEEDED"
    assert renter.call("logs", found["run"]).stdout.count(str(Slow.blocks * len(Slow.block))) == 2
    assert "through this machine" not in renting.text
    assert len(Slow.got) == 2, "each once: a server that went on is not asked again"
