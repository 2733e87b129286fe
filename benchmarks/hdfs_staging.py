"""Staging into HDFS against ``hdfs dfs -put``: an S3 server's objects, from several nodes at the same time.

The HDFS and the S3 server are this machine's, started for this; a node is a process. Ours gets the objects
from S3 and writes them; `-put` writes files that lie on the disk already, and `get + put` fetches them first,
as a user would have to. Each way takes turns; the ratios are what counts. Run it with
`python benchmarks/hdfs_staging.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from common import machine, options

from trainmaster.hdfs.hadoop import find_hadoop
from trainmaster.hdfs.serving import Served, end, serve
from trainmaster.hdfs.sharding import Listed, shard
from trainmaster.hdfs.staging import forget
from trainmaster.objects.object_store import ObjectStore
from trainmaster.testing.private_hdfs import fetched_jars
from trainmaster.testing.private_s3 import PrivateS3

OURS = "import sys; from pathlib import Path; from trainmaster.hdfs.staging import stage; " + (
    "stage(*sys.argv[1:3], index=int(sys.argv[3]), count=int(sys.argv[4]), copies=1, directory=Path('/'))"
)
MB = 1 << 20


def at_once(commands: list[list[str]]) -> float:
    """Seconds until all have ended, well."""
    began = time.perf_counter()
    running = [
        subprocess.Popen(each, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for each in commands
    ]
    codes = [each.wait() for each in running]
    assert not any(codes)
    return time.perf_counter() - began


def main() -> None:
    """Print medians and ratios as JSON."""
    found = options(__doc__ or "", nodes=2, files=32, mb=8, rounds=3)
    cache = Path(os.environ.get("TRAINMASTER_CACHE") or "~/.cache/trainmaster").expanduser()
    jars = str(fetched_jars(cache / "hdfs"))
    work = Path(tempfile.mkdtemp(prefix="tm-hdfs-bench-"))
    try:
        with PrivateS3() as server:
            os.environ.update(server.environment())
            served = serve(work / "hdfs", "127.0.0.1", None, copies=1, hadoop=jars)
            url = f"s3://{server.new_bucket()}/set"
            store = ObjectStore(url)
            names = [f"{number:03}" for number in range(found.files)]
            for name in names:
                store.put(name, os.urandom(found.mb * MB))
            ways = ways_of(found.nodes, found.mb, names, url, served, work, jars)
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(found.rounds):
                for name, way in ways.items():
                    seconds[name].append(way())
        medians = {name: round(statistics.median(each), 2) for name, each in seconds.items()}
        ratios = {f"ours/{name}": round(each / medians["ours"], 2) for name, each in medians.items()}
        print(
            json.dumps({"machine": machine(), "bytes": found.files * found.mb * MB, "s": medians, **ratios})
        )
    finally:
        end(work / "hdfs")
        shutil.rmtree(work, ignore_errors=True)


def ways_of(
    nodes: int, mb: int, names: list[str], url: str, served: Served, work: Path, jars: str
) -> dict[str, Callable[[], float]]:
    """What takes turns, by name; each gives its seconds."""
    hadoop = find_hadoop(jars, "", os.environ)
    conf = [str(work / "hdfs/namenode/conf")]
    shares = [
        list(shard([Listed(each, mb * MB, "") for each in names], index, nodes)) for index in range(nodes)
    ]
    store = ObjectStore(url)

    def ours() -> float:
        forget(url, served.web)
        node = [sys.executable, "-c", OURS, url, served.web]
        return at_once([[*node, str(index), str(nodes)] for index in range(nodes)])

    def put() -> float:
        main = "org.apache.hadoop.fs.FsShell"
        shell = hadoop.command(main, conf, 256)
        at_once([[*shell, "-rm", "-r", "-f", "-skipTrash", "/put"]])
        at_once([[*shell, "-mkdir", "-p", "/put"]])
        files = [[str(work / "files" / each.key) for each in share] for share in shares]
        return at_once([[*shell, "-put", *share, "/put"] for share in files])

    def fetch() -> float:
        (work / "files").mkdir(exist_ok=True)
        began = time.perf_counter()
        for name in names:
            with (work / "files" / name).open("wb") as out:
                out.writelines(store.blocks(name))
        return time.perf_counter() - began

    fetch()
    return {"ours": ours, "put": put, "get + put": lambda: fetch() + put()}


if __name__ == "__main__":
    main()
