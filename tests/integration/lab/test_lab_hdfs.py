"""Data of a run are staged from an object store into an HDFS on its hosts, whatever dies; nothing stays."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")

from renter import Renter

from trainmaster.hdfs.staging import data_path
from trainmaster.objects.object_store import ObjectStore
from trainmaster.testing.counting_proxy import CountingProxy
from trainmaster.testing.private_hdfs import NoHdfsError, fetched_jars

pytestmark = [pytest.mark.ray, pytest.mark.s3, pytest.mark.hdfs]
OBJECTS = {f"{number:02}.bin": bytes([number]) * (1 << 19) for number in range(12)} | {
    "Wörter mit Leerzeichen 数据.txt": b"words",
    "empty": b"",
}
SCALE = ["--cpu-scale", "1", "--memory-scale", "0.25", "--network-scale", "1", "--stop-grace", "15"]
HADOOP = "/opt/its/hadoop"
#: What runs of a Java; the rest of a JDK is for making programs.
JAVA = ["bin/java", "lib", "conf"]
NOT_JAVA = ["--exclude=lib/src.zip", "--exclude=lib/ct.sym", "--exclude=lib/server/classes_nocoops.jsa"]
#: Half of the processor time of a daemon that lives for a minute is the second compiler's.
WRAPPER = f'#!/bin/sh\nexec {HADOOP}/java/bin/java -XX:TieredStopAtLevel=1 "$@"\n'
#: Reads all there is, and once more when it is told to; one member also by the protocol of HDFS.
READS = """
import hashlib, json, os, subprocess, sys, time
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote
from urllib.request import Request, urlopen

place = os.environ["TRAINMASTER_DATA_IMAGES"]
host, _, folder = os.environ["TRAINMASTER_DATA_IMAGES_WEBHDFS"].removeprefix("webhdfs://").partition("/")
hadoop = sys.argv[1]

def get(path, operation):
    for _ in range(120):
        try:
            with urlopen(f"http://{host}/webhdfs/v1/{quote(path)}?op={operation}", timeout=10) as answer:
                return answer.read()
        except OSError as error:  # a daemon that was killed a moment ago
            last = error
            time.sleep(1)
    raise last

def read(word):
    files = json.loads(get(folder, "LISTSTATUS"))["FileStatuses"]["FileStatus"]
    names = sorted(each["pathSuffix"] for each in files)
    digest = hashlib.sha256(b"".join(name.encode() + get(f"{folder}/{name}", "OPEN") for name in names))
    print(word, digest.hexdigest(), {each["replication"] for each in files}, flush=True)

read("first")
if os.environ["TRAINMASTER_INDEX"] == "0":
    Path("core-site.xml").write_text("<configuration/>")
    java = [f"{hadoop}/jre/bin/java", "-Xmx128m", "-XX:-UsePerfData", "-cp", f".:{hadoop}/*"]
    cat = ["org.apache.hadoop.fs.FsShell", "-cat", f"{place}/0*.bin"]
    said = subprocess.run([*java, *cat], capture_output=True)
    assert said.returncode == 0, said.stderr
    print("native", hashlib.sha256(said.stdout).hexdigest(), flush=True)
    output = os.environ["TRAINMASTER_OUTPUT_HDFS_WEBHDFS"].removeprefix(f"webhdfs://{host}/")
    namenode = HTTPConnection(host, timeout=60)
    namenode.request("PUT", f"/webhdfs/v1/{output}/step/model.bin?op=CREATE&overwrite=true")
    urlopen(Request(namenode.getresponse().headers["Location"], b"weights", method="PUT"), timeout=60).close()
while not Path("/var/tmp/enough").exists():
    time.sleep(0.2)
read("last")
"""
RECIPE = """
name: steps
experiments:
  train:
    distributed: {strategy: allreduce, workers: 2}
    framework: plain
    data:
      images: {url: "%s", stage: hdfs, hadoop: %s}
    command: python3 reads.py %s
"""
#: Prints what has been written down of files that are whole.
MANIFESTS = """
import json, sys
from urllib.request import urlopen

def get(path, operation):
    with urlopen(f"{sys.argv[1]}{path}?op={operation}", timeout=60) as answer:
        return answer.read().decode()

for each in json.loads(get("", "LISTSTATUS"))["FileStatuses"]["FileStatus"]:
    if each["pathSuffix"].startswith("manifest-"):
        print(get("/" + each["pathSuffix"], "OPEN"), end="")
"""
LEFT = "sudo find / -xdev \\( -name 'Jetty_*' -o -name 'hsperfdata_*' -o -path '*/inputs*/hdfs*' \\) -print"


@pytest.fixture(scope="module")
def hadoop() -> tuple[Path, Path]:
    """Java and the jars of this machine."""
    if (java := shutil.which("java")) is None:
        pytest.skip("no java on PATH")
    home = Path(java).resolve().parent.parent
    if not (home / "lib/modules").is_file():
        pytest.skip(f"{home} is not a Java with modules")
    cache = Path(os.environ.get("TRAINMASTER_CACHE") or "~/.cache/trainmaster").expanduser()
    try:
        return home, fetched_jars(cache / "hdfs")
    except NoHdfsError as error:
        pytest.skip(str(error))


@pytest.fixture
def owner(
    request: pytest.FixtureRequest, hadoop: tuple[Path, Path], make_lab_user: Callable[[], Any]
) -> Iterator[Any]:
    """Somebody with so many hosts that have Java and Hadoop."""
    java, jars = hadoop
    user = make_lab_user()
    user.call("up", *SCALE, "--hosts", str(request.param))
    packed = ["tar", "-chf", "-", *NOT_JAVA, r"--transform=s,^\(bin\|lib\|conf\),java/\1,"]
    for host in user.json("status")["hosts"]:
        ssh = user.ssh(host["id"])
        unpack = f"sudo sh -c 'mkdir -p {HADOOP}/jre/bin && tar -xf - -C {HADOOP}'"
        with subprocess.Popen([*packed, "-C", java, *JAVA, "-C", jars, "."], stdout=subprocess.PIPE) as pack:
            subprocess.run([*ssh._command, ssh._login, unpack], stdin=pack.stdout, check=True, timeout=300)
        assert pack.returncode == 0
        ssh(f"echo {shlex.quote(WRAPPER)} | sudo tee {HADOOP}/jre/bin/java")
        ssh(f"sudo chmod 755 {HADOOP}/jre/bin/java")
    yield user
    user.clean_up()  # its hosts have gigabytes


@pytest.fixture
def store(owner: Any, s3: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[CountingProxy, str]]:
    """A way to objects that the hosts reach where this machine has its end of their network; their URL."""
    network = ipaddress.ip_network(owner.json("status")["network"])
    with CountingProxy(s3.url, str(network[2])) as line:
        for name, value in s3.environment(line.url).items():
            monkeypatch.setenv(name, value)
            monkeypatch.setitem(owner.env, name, value)
        url = f"s3://{s3.new_bucket()}/images"
        images = ObjectStore(url)
        for name, data in OBJECTS.items():
            images.put(name, data)
        yield line, url


def process(host: Any, name: str) -> str:
    """Its number; empty if there is none."""
    return str(host.run(f"pgrep -f '{name}'", patience_s=30).stdout.strip())


def whole_files(host: Any, served: dict[str, Any], path: str) -> list[tuple[str, int]]:
    """Each file that a manifest names, with its identity; a host is asked to look."""
    url = f"http://{served['address']}:{served['http_port']}/webhdfs/v1/trainmaster{path}"
    said = host.run(f"python3 -c {shlex.quote(MANIFESTS)} {url}", 120, patience_s=30)
    if said.returncode != 0:  # not yet
        return []
    rows = map(json.loads, said.stdout.splitlines())
    return [(row["path"], int(row["version"].partition("-")[0], 16)) for row in rows]


@pytest.mark.crossings  # daemons: `test_volumes_hdfs.py`; staging: `tests/unit/hdfs`
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("owner", [2], indirect=True)
def test_members_read_what_hosts_have_staged_whoever_dies(
    owner: Any, store: tuple[CountingProxy, str], tmp_path: Path
) -> None:
    line, url = store
    work = tmp_path / "work"
    work.mkdir()
    renter = Renter(owner, work)
    (work / "reads.py").write_text(READS)
    hosts = [owner.ssh(host["id"], stay=True) for host in owner.json("status")["hosts"]]

    try:
        line.bytes_per_s = 1000.0  # that is, one or two requests
        renting = renter.run(renter.recipe(RECIPE % (url, HADOOP, HADOOP)), provider="hosts")
        run = renting.run
        record = owner.home / "runs" / run / "inputs" / "hdfs.json"
        renting.until(record.exists, "the NameNode")
        ((_, served),) = json.loads(record.read_text()).items()
        head, other = sorted(hosts, key=lambda host: served["address"] not in host("hostname -I").split())
        path = data_path(url)
        renting.until(lambda: len(whole_files(head, served, path)) > 1, "some of the data to be written down")
        renting.kill()
        datanode = process(other, "[.]DataNode$")
        other(f"sudo kill -9 {datanode}")
        line.bytes_per_s = None
        before = whole_files(head, served, path)
        renting = renter.start("resume", run, "--json")

        def said(word: str) -> int:
            return str(renter.call("logs", run, code=None).stdout).count(word)

        renting.until(lambda: said("first ") == 2 and said("native ") == 1, "both members to have read")
        now = whole_files(head, served, path)
        assert set(before) <= set(now), "what is there is not copied again"
        assert sorted(name for name, _ in now) == sorted(OBJECTS)
        assert process(other, "[.]DataNode$") not in ("", datanode), "started again"

        watchdog = process(other, "[t]rainmaster.hdfs.watchdog")
        other(f"sudo kill -9 {watchdog}")  # with its DataNode, for good
        namenode = process(head, "[.]NameNode$")
        head(f"sudo kill -9 {namenode}")
        renting.until(
            lambda: process(head, "[.]NameNode$") not in ("", namenode), "the NameNode to be started again"
        )
        assert process(other, "[.]DataNode$") == ""
        for host in hosts:
            host("touch /var/tmp/enough")
        assert renting.end()["reason"] == "SUCCEEDED"
        every = hashlib.sha256(b"".join(name.encode() + data for name, data in sorted(OBJECTS.items())))
        for word in ("first", "last"):
            assert said(f"{word} {every.hexdigest()} {{2}}") == 2
        tens = hashlib.sha256(b"".join(d for name, d in sorted(OBJECTS.items()) if name.startswith("0")))
        assert said(f"native {tens.hexdigest()}") == 1
        assert renter.attempts(run)[-1] == "SUCCEEDED"
        renter.call("models", "get", run, str(tmp_path / "model"))
        kept = [file.read_bytes() for file in (tmp_path / "model").rglob("hdfs/step/model.bin")]
        assert kept == [b"weights"], "what a script writes into the HDFS itself is not lost"
        for host in hosts:  # they go on without us, and nothing of it stays
            host("for _ in $(seq 600); do pgrep -f '[h]adoop.hdfs' || exit 0; sleep 0.1; done; exit 1")
            assert host(LEFT) == ""
    finally:
        renter.kill_all()


@pytest.mark.timeout(1200)
@pytest.mark.crossings
@pytest.mark.parametrize("owner", [4], indirect=True)
def test_machines_are_lost_while_data_are_staged_and_while_members_read(
    owner: Any, store: tuple[CountingProxy, str], tmp_path: Path
) -> None:
    """First that of a DataNode, then that of the NameNode; others take their places."""
    line, url = store
    work = tmp_path / "work"
    work.mkdir()
    renter = Renter(owner, work)
    (work / "reads.py").write_text(READS)
    hosts = {host["id"]: owner.ssh(host["id"], stay=True) for host in owner.json("status")["hosts"]}
    path = data_path(url)
    try:
        line.bytes_per_s = 1000.0  # of requests: one or two
        renting = renter.run(renter.recipe(RECIPE % (url, HADOOP, HADOOP)), provider="hosts")
        record = owner.home / "runs" / renting.run / "inputs" / "hdfs.json"
        renting.until(record.exists, "the NameNode")
        ((head, served),) = json.loads(record.read_text()).items()
        renting.until(
            lambda: len(whole_files(hosts[head], served, path)) > 1, "some of it to be written down"
        )
        (other,) = (
            name for name, host in hosts.items() if name != head and process(host, "[.]DataNode$") != ""
        )
        owner.call("terminate", other)
        before = whole_files(hosts[head], served, path)
        line.bytes_per_s = None
        every = hashlib.sha256(b"".join(name.encode() + data for name, data in sorted(OBJECTS.items())))

        def have_read() -> int:
            said = str(renter.call("logs", renting.run, code=None).stdout)
            return said.count(f"first {every.hexdigest()} {{2}}")

        renting.until(lambda: have_read() == 2, "both members to have read")
        assert set(before) <= set(whole_files(hosts[head], served, path)), "what is there is not copied again"
        assert json.loads(record.read_text()) == {head: served}

        owner.call("terminate", head)
        renting.until(lambda: len(json.loads(record.read_text())) > 1, "another NameNode", 600)
        left = [host for name, host in hosts.items() if name not in (head, other)]
        for host in left:
            host("touch /var/tmp/enough")
        assert renting.end(timeout_s=600)["reason"] == "SUCCEEDED"
        assert have_read() in (2, 4)
        *lost, last = renter.attempts(renting.run)
        assert (set(lost), last) == ({"NODE_LOST"}, "SUCCEEDED")
        for host in left:
            host("for _ in $(seq 600); do pgrep -f '[h]adoop.hdfs' || exit 0; sleep 0.1; done; exit 1")
            assert host(LEFT) == ""
    finally:
        renter.kill_all()
