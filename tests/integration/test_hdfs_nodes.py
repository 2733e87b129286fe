"""An HDFS on three nodes with networks of their own; a DataNode is killed meanwhile, then a node is lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainmaster.hdfs.serving import end, is_guarded
from trainmaster.testing.private_hdfs import NoHdfsError, fetched_jars
from trainmaster.testing.waits import until

pytestmark = [pytest.mark.hdfs, pytest.mark.timeout(900)]
MB = 1 << 20
FILES = 12
SERVE = """
import json, sys
from pathlib import Path
from trainmaster.hdfs.serving import Served, serve, served_as_json
place, address, known, hadoop = sys.argv[1:]
served = Served(**json.loads(known)) if known else None
print(json.dumps(served_as_json(serve(Path(place), address, served, copies=2, hadoop=hadoop))))
"""
STAGE = """
import sys
from pathlib import Path
from trainmaster.hdfs.staging import stage
_, url, web, index = sys.argv
print(*stage(url, web, index=int(index), count=3, copies=2, directory=Path("/the/data")))
"""
READ = """
import sys
from trainmaster.hdfs.staging import data_path
from trainmaster.objects.object_store import ObjectStore
store = ObjectStore(f"hdfs://{sys.argv[2]}{data_path(sys.argv[1])}")
print(*(f"{info.key}:{sum(sum(block) for block in store.blocks(info.key))}" for info in store.list()))
"""


class Node:
    """A network namespace with an address, behind a switch that is in another."""

    def __init__(self, number: int, switch: str) -> None:
        self.name = f"{switch}n{number}"
        self.address = f"10.231.7.{number}"
        link = ["ip", "-n", switch, "link"]
        for command in (
            ["ip", "netns", "add", self.name],
            [*link, "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", self.name],
            [*link, "set", f"v{number}", "master", "switch", "up"],
            ["ip", "-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0"],
            ["ip", "-n", self.name, "link", "set", "eth0", "up"],
            ["ip", "-n", self.name, "link", "set", "lo", "up"],
        ):
            subprocess.run(command, check=True, capture_output=True)

    def start(self, script: str, *arguments: object) -> subprocess.Popen[str]:
        """A program of ours there."""
        command = ["ip", "netns", "exec", self.name, sys.executable, "-c", script, *map(str, arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out.strip()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and ip")
    switch = f"hdfs{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", switch], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no network namespaces: {made.stderr}")
    names = [switch]
    try:
        for words in (["add", "switch", "type", "bridge"], ["set", "switch", "up"]):
            subprocess.run(["ip", "-n", switch, "link", *words], check=True, capture_output=True)
        found = []
        for number in (1, 2, 3):
            names.append(f"{switch}n{number}")
            found.append(Node(number, switch))
        yield found
    finally:
        for place in tmp_path.glob("node*"):
            end(place)
            subprocess.run(["umount", place], capture_output=True, check=False)
        for name in reversed(names):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_nodes_stage_together_whoever_dies(nodes: list[Node], tmp_path: Path) -> None:
    cache = Path(os.environ.get("TRAINMASTER_CACHE") or "~/.cache/trainmaster").expanduser()
    try:
        jars = fetched_jars(cache / "hdfs")
    except NoHdfsError as error:
        pytest.skip(str(error))
    if shutil.which("java") is None:
        pytest.skip("no java on PATH")
    source = tmp_path / "set"
    source.mkdir()
    for number in range(FILES):
        (source / f"{number:02}").write_bytes(bytes([number]) * 2 * MB)
    places = [tmp_path / f"node{number}" for number in range(3)]
    for place in places[1:]:  # small disks
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", place], check=True)
    known = said(nodes[0].start(SERVE, places[0], nodes[0].address, "", jars))
    others = [nodes[n].start(SERVE, places[n], nodes[n].address, known, jars) for n in (1, 2)]
    assert [said(each) for each in others] == [known, known]
    served = json.loads(known)
    web = f"{served['address']}:{served['http_port']}"

    staging = [node.start(STAGE, source, web, index) for index, node in enumerate(nodes)]
    killed = datanode(places[1])
    os.kill(killed, signal.SIGKILL)
    reports = [list(map(int, said(each).split())) for each in staging]
    assert sum(copied for _, copied, _ in reports) == FILES
    until(lambda: datanode(places[1]) not in (killed, None), "the DataNode to be started again", 120)

    much = tmp_path / "much"
    much.mkdir()
    with (much / "sparse").open("wb") as file:
        file.truncate(150 * MB)
    refused = nodes[0].start(STAGE, much, web, 0).communicate(timeout=600)[1]
    full = (
        r"no room for 157\.3 MB in 2 copies: .* are free at 10\.231\.7\..* \(in /the/data\)\nFree space there"
    )
    assert re.search(full, refused), refused

    end(places[2])  # with its copies
    assert not is_guarded(places[2])
    again = [list(map(int, said(nodes[0].start(STAGE, source, web, index)).split())) for index in range(3)]
    assert sum(copied for _, copied, _ in again) == 0, "what is there is not copied again"
    read = dict(each.split(":") for each in said(nodes[0].start(READ, source, web)).split())
    assert read == {f"{number:02}": str(number * 2 * MB) for number in range(FILES)}


def datanode(place: Path) -> int | None:
    """The process, as its watchdog tells."""
    state = json.loads((place / "state.json").read_text())
    found: int | None = state["datanode"]["pid"]
    return found
