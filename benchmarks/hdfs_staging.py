"""Staging into HDFS against ``hdfs dfs -put``: an S3 server's objects, from several nodes at the same time.

The HDFS and the S3 server are this machine's, started for this; a node is a process. Ours gets the objects
from S3 and writes them; `-put` writes files that lie on the disk already, and `get + put` fetches them first,
as a user would have to. Each way takes turns; the ratios are what counts, in seconds and in processor time,
of which that of the daemons is told apart. Run it with `python benchmarks/hdfs_staging.py`, for small files
with `--files 2000 --kb 10`.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from common import machine, options

from trainmaster.hdfs.hadoop import find_hadoop
from trainmaster.hdfs.manifests import StoreObject, shard
from trainmaster.hdfs.serving import RunningHdfs, end, serve
from trainmaster.hdfs.staging import forget
from trainmaster.hdfs.watchdog import STATE
from trainmaster.objects.object_store import ObjectStore
from trainmaster.testing.private_hdfs import fetched_jars
from trainmaster.testing.private_s3 import PrivateS3

OURS = "import sys; from pathlib import Path; from trainmaster.hdfs.staging import stage; " + (
    "stage(*sys.argv[1:3], index=int(sys.argv[3]), count=int(sys.argv[4]), copies=1, directory=Path('/'))"
)
KB = 1 << 10


class Spent(NamedTuple):
    """What a way has taken: seconds, and processor time of all but the store, of that the daemons' part."""

    s: float
    cpu_s: float
    daemons_cpu_s: float


class Way(NamedTuple):
    """One way to have the objects in HDFS; what prepares it does not count."""

    prepare: Callable[[], None]
    go: Callable[[], None]


def at_once(commands: list[list[str]]) -> None:
    """Until all have ended, well."""
    running = [
        subprocess.Popen(each, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for each in commands
    ]
    codes = [each.wait() for each in running]
    assert not any(codes)


def main() -> None:
    """Print medians and ratios as JSON."""
    found = options(__doc__ or "", nodes=2, files=32, kb=8192, rounds=3)
    cache = Path(os.environ.get("TRAINMASTER_CACHE") or "~/.cache/trainmaster").expanduser()
    jars = str(fetched_jars(cache / "hdfs"))
    work = Path(tempfile.mkdtemp(prefix="tm-hdfs-bench-"))
    try:
        with PrivateS3() as server:
            os.environ.update(server.environment())
            served = serve(work / "hdfs", "127.0.0.1", None, copies=1, hadoop=jars)
            url = f"s3://{server.new_bucket()}/set"
            store = ObjectStore(url)
            names = [f"{number:06}" for number in range(found.files)]
            for name in names:
                store.put(name, os.urandom(found.kb * KB))
            ways = ways_of(found.nodes, found.kb, names, url, served, work, jars)
            spent: dict[str, list[Spent]] = {name: [] for name in ways}
            for _ in range(found.rounds):
                for name, way in ways.items():
                    spent[name].append(measured(way, work / "hdfs"))
                    print(name, spent[name][-1], file=sys.stderr, flush=True)
        said: dict[str, object] = {"machine": machine(), "bytes": found.files * found.kb * KB}
        for field in Spent._fields:
            medians = {
                name: statistics.median(getattr(each, field) for each in rounds)
                for name, rounds in spent.items()
            }
            ratios = {f"{name}/ours": round(each / medians["ours"], 2) for name, each in medians.items()}
            said[field] = {name: round(each, 2) for name, each in medians.items()} | ratios
        print(json.dumps(said))
    finally:
        end(work / "hdfs")
        shutil.rmtree(work, ignore_errors=True)


def measured(way: Way, place: Path) -> Spent:
    """Take one way."""
    way.prepare()
    own_s, daemons_s, began = cpu_of_children_s(), cpu_of_daemons_s(place), time.perf_counter()
    way.go()
    took_s = time.perf_counter() - began
    daemons_s = cpu_of_daemons_s(place) - daemons_s
    return Spent(took_s, cpu_of_children_s() - own_s + daemons_s, daemons_s)


def cpu_of_children_s() -> float:
    """Processor time of commands that have ended, and of this process itself, which fetches."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
    return sum(each.ru_utime + each.ru_stime for each in found)


def cpu_of_daemons_s(place: Path) -> float:
    """Processor time of the NameNode and the DataNode so far."""
    daemons = json.loads((place / STATE).read_bytes()).values()
    fields = [Path(f"/proc/{it['pid']}/stat").read_text().rpartition(")")[2].split() for it in daemons]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def ways_of(
    nodes: int, kb: int, names: list[str], url: str, served: RunningHdfs, work: Path, jars: str
) -> dict[str, Way]:
    """What takes turns, by name."""
    hadoop = find_hadoop(jars, "", os.environ)
    conf = [str(work / "hdfs/namenode/conf")]
    shares = [
        list(shard([StoreObject(each, kb * KB, "") for each in names], index, nodes))
        for index in range(nodes)
    ]
    store = ObjectStore(url)

    shell = hadoop.command("org.apache.hadoop.fs.FsShell", conf, 256)

    def ours() -> None:
        node = [sys.executable, "-c", OURS, url, served.web]
        at_once([[*node, str(index), str(nodes)] for index in range(nodes)])

    def clear() -> None:
        at_once([[*shell, "-rm", "-r", "-f", "-skipTrash", "/put"]])
        at_once([[*shell, "-mkdir", "-p", "/put"]])

    def put() -> None:
        files = [[str(work / "files" / each.key) for each in share] for share in shares]
        at_once([[*shell, "-put", *share, "/put"] for share in files])

    def fetch() -> None:
        (work / "files").mkdir(exist_ok=True)
        for name in names:
            with (work / "files" / name).open("wb") as out:
                out.writelines(store.blocks(name))

    def fetch_and_put() -> None:
        fetch()
        put()

    fetch()
    return {
        "ours": Way(lambda: forget(url, served.web), ours),
        "put": Way(clear, put),
        "get + put": Way(clear, fetch_and_put),
    }


if __name__ == "__main__":
    main()
