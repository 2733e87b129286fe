"""One file that is larger than the memory it may take: pushed, indexed, and read from a small cache.

``python benchmarks/volumes/large.py [--gib 5] [--cache-mib 512] [--disk DIR]`` prints one JSON object. A
SeaweedFS of its own; each step is a process of its own whose memory is looked at twenty times a second.
``anonymous`` is what it has allocated; ``mapped`` are pages of the cache that it shares with everybody, which
the kernel may take back. The content is compared by a hash. It needs three times the file on the disk.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from common import machine

from trainmaster.testing.private_s3 import PrivateS3

BLOCK_BYTES = 1 << 20

PUSH = """
import sys
from trainmaster.volumes.packed import push
report = push(sys.argv[1], sys.argv[2])
assert report.sent_bytes == report.head.total_bytes
"""
UPLOAD = """
import sys
from trainmaster.objects.object_store import ObjectStore
store, size = ObjectStore(sys.argv[2]), int(sys.argv[3])
with open(sys.argv[1], "rb") as file:
    store.put_blocks("large.bin", iter(lambda: file.read(8 << 20), b""), size)
"""
INDEX = """
import sys
from trainmaster.volumes.packed import index
index(sys.argv[1], sys.argv[2])
"""
READ = """
import hashlib, sys
from trainmaster.volumes import Volume
volume = Volume.open(sys.argv[1], limit_bytes=int(sys.argv[2]))
digest = hashlib.sha256()
with volume.open_file("large.bin") as file:
    while block := file.read(4 << 20):
        digest.update(block)
volume.close()
print(digest.hexdigest())
"""


def large_file(path: Path, size_bytes: int) -> str:
    """Makes a file in which no two blocks are the same; gives its SHA-256."""
    block, digest = bytearray(os.urandom(BLOCK_BYTES)), hashlib.sha256()
    with path.open("wb") as file:
        for number in range(size_bytes // BLOCK_BYTES):
            block[:8] = number.to_bytes(8, "little")
            file.write(block)
            digest.update(block)
    return digest.hexdigest()


def step(program: str, *arguments: object, **environment: str) -> tuple[dict[str, float], str]:
    """Runs a program; gives what it cost, and its output."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    peaks = {"RssAnon": 0, "RssFile": 0}

    def watch() -> None:
        while process.poll() is None:
            try:
                lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            except OSError:
                return
            for line in lines:
                name, _, value = line.partition(":")
                if name in peaks:
                    peaks[name] = max(peaks[name], int(value.split()[0]) * 1024)
            time.sleep(0.05)

    watcher = threading.Thread(target=watch)
    watcher.start()
    output = process.communicate()[0]
    watcher.join()
    if process.returncode:
        raise SystemExit(f"it failed with {process.returncode}")
    cost = {
        "seconds": round(time.perf_counter() - began, 1),
        "peak_anonymous_mb": round(peaks["RssAnon"] / 1e6),
        "peak_mapped_mb": round(peaks["RssFile"] / 1e6),
    }
    return cost, output.strip()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=5)
    parser.add_argument("--cache-mib", type=int, default=512)
    parser.add_argument("--disk", type=Path)
    options = parser.parse_args()
    size_bytes = int(options.gib * 1024) << 20
    with (
        tempfile.TemporaryDirectory(prefix="trainmaster-large-", dir=options.disk) as name,
        PrivateS3() as server,
    ):
        root = Path(name)
        (root / "src").mkdir()
        expected = large_file(root / "src/large.bin", size_bytes)
        os.environ |= {**server.environment(), "TRAINMASTER_CACHE": str(root / "cache")}
        bucket = f"s3://{server.new_bucket()}"
        result: dict[str, object] = {
            "machine": machine(),
            "bytes": size_bytes,
            "cache_mib": options.cache_mib,
        }
        result["push"], _ = step(PUSH, root / "src", f"{bucket}/pushed")
        result["read"], seen = step(READ, f"{bucket}/pushed", options.cache_mib << 20)
        assert seen == expected
        step(UPLOAD, root / "src/large.bin", f"{bucket}/raw", size_bytes)
        result["index"], _ = step(INDEX, f"{bucket}/raw", f"{bucket}/indexed")
        result["read_indexed"], seen = step(READ, f"{bucket}/indexed", options.cache_mib << 20)
        assert seen == expected
        result["verified"] = True
        print(json.dumps(result))


if __name__ == "__main__":
    main()
