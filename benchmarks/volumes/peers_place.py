"""The place where peers are compared: files, a server of its own, the files there in every layout, a line."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import obstore
from obstore.store import S3Store
from peers_install import folder, program
from reading_bench import evict, photographs

from trainmaster.testing.private_s3 import PrivateS3
from trainmaster.volumes.packed.pushing import push

HERE = Path(__file__).resolve().parent
#: The layouts of the same files.
LARGE_MIB = 256
BLOCK_BYTES = 8 << 20
LAYOUTS = ("objects", "volume", "mosaicml", "tar", "juicefs")


@dataclass
class Place:
    """Everything a method needs to know; goes to its process as JSON.

    Attributes:
        root: a directory of its own.
        source: the files.
        index: JSON of what each file should be: name -> size, sum, first and last bytes, SHA-256.
        endpoint: of the S3 server, or of a slow line before it.
        bucket: where all layouts lie, in folders of their names.
        key: of the server.
        secret: of the server.
        shards: how many tars.
        shard_bytes: of chunks, MosaicML's shards and tars.
        redis: URL of the metadata of JuiceFS; "" where there is none.
        latency_ms: of the line.
        large: whether the files are large, and read in blocks.
    """

    root: str
    source: str
    index: str
    endpoint: str
    bucket: str
    key: str
    secret: str
    shards: int = 0
    shard_bytes: int = 64 << 20
    redis: str = ""
    latency_ms: float = 0.0
    large: bool = False

    def as_json(self) -> str:
        """For another process."""
        return json.dumps(asdict(self))


def fingerprint(data: bytes | memoryview) -> int:
    """A checksum that costs a tenth of what a GET does: all 64-bit words, and the ends in their places."""
    whole = len(data) & ~7
    total = int(np.frombuffer(data, np.uint64, whole >> 3).sum()) if whole else 0
    ends = bytes(data[:8]) + bytes(data[-8:])
    return total ^ int.from_bytes(hashlib.blake2b(ends, digest_size=8).digest(), "little")


def spot(data: bytes | memoryview) -> int:
    """Eight bytes in the middle: for reads so quick that looking at all bytes would be most of them."""
    middle = len(data) >> 1
    return int.from_bytes(data[middle : middle + 8], "little")


def store(place: Place, prefix: str, endpoint: str = "") -> S3Store:
    """A folder of the bucket, by obstore."""
    return S3Store(
        place.bucket,
        prefix=prefix,
        endpoint=endpoint or place.endpoint,
        access_key_id=place.key,
        secret_access_key=place.secret,
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "timeout": "120s"},
    )


def environment(place: Place) -> dict[str, str]:
    """How S3 clients find the server."""
    return {
        "AWS_ENDPOINT_URL": place.endpoint,
        "S3_ENDPOINT_URL": place.endpoint,  # MosaicML's
        "AWS_ACCESS_KEY_ID": place.key,
        "AWS_SECRET_ACCESS_KEY": place.secret,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory; nothing mounted in it is left."""
    root = Path(tempfile.mkdtemp(prefix="tm-peers-", dir=os.environ.get("BENCH_DIR")))
    try:
        yield root
    finally:
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            mounted = line.split(" ")[1]
            if mounted.startswith(f"{root}/"):
                subprocess.run(["umount", "-l", mounted], check=False)
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def serving(root: Path, files: int, mean_bytes: int, large_mib: int) -> Iterator[Place]:
    """Files, evicted from the page cache once, and an S3 server without them.

    Args:
        root: where.
        files: like photographs, if no large ones are asked for.
        mean_bytes: of them.
        large_mib: size of all large files together; each has 256 MiB.
    """
    source = root / "src"
    if large_mib:
        large_files(source, large_mib)
    else:
        photographs(source, files, mean_bytes)
    with PrivateS3(root / "s3") as server:
        found = server.environment()
        yield Place(
            str(root),
            str(source),
            (described_large if large_mib else described)(root, source),
            server.url,
            server.new_bucket(),
            found["AWS_ACCESS_KEY_ID"],
            found["AWS_SECRET_ACCESS_KEY"],
            large=large_mib > 0,
        )


def large_files(directory: Path, mebibytes: int) -> None:
    """Files of 256 MiB."""
    rng = random.Random(0)
    directory.mkdir()
    for number in range(max(mebibytes // LARGE_MIB, 1)):
        with (directory / f"{number:03}.bin").open("wb") as file:
            for _ in range(LARGE_MIB):
                file.write(rng.randbytes(1 << 20))


def described(root: Path, source: Path) -> str:
    """Notes what the files are."""
    index = {}
    for path in sorted(source.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            name = path.relative_to(source).as_posix()
            index[name] = [len(data), fingerprint(data), spot(data), hashlib.sha256(data).hexdigest()]
    evict(source)
    (root / "index.json").write_text(json.dumps(index))
    return str(root / "index.json")


def described_large(root: Path, source: Path) -> str:
    """The same for large files, block by block."""
    index = {}
    for path in sorted(source.iterdir()):
        with path.open("rb", buffering=0) as file:
            sums = [fingerprint(data) for data in iter(lambda file=file: file.read(BLOCK_BYTES), b"")]
        index[path.name] = [path.stat().st_size, 0, 0, "", sums]
    evict(source)
    (root / "index.json").write_text(json.dumps(index))
    return str(root / "index.json")


def put_objects(place: Place, prefix: str = "objects", jobs: int = 16) -> None:
    """Each file an object."""
    from concurrent.futures import ThreadPoolExecutor

    there, names = store(place, prefix), list(json.loads(Path(place.index).read_text()))

    def put(name: str) -> None:
        path = Path(place.source, name)
        if place.large:  # streamed, in parts of 8 MiB
            obstore.put(there, name, path, chunk_size=BLOCK_BYTES, max_concurrency=4)
        else:
            obstore.put(there, name, path.read_bytes(), use_multipart=False)

    with ThreadPoolExecutor(4 if place.large else jobs) as pool:
        list(pool.map(put, names))


def put_volume(place: Place, prefix: str = "volume") -> None:
    os.environ.update(environment(place))
    cache = Path(place.root, f"push-{prefix.replace('/', '-')}")
    push(
        Path(place.source), f"s3://{place.bucket}/{prefix}", cache=cache, chunk_limit_bytes=place.shard_bytes
    )


def put_tar(place: Place, prefix: str = "tar") -> None:
    """Tars of the shard size, in random order as one packs for WebDataset; sent while the next is written."""
    from concurrent.futures import ThreadPoolExecutor

    names = list(json.loads(Path(place.index).read_text()))
    np.random.default_rng(1).shuffle(names)
    there, place.shards, total = store(place, prefix), 0, 0
    target = Path(place.root, "tars", prefix)
    target.mkdir(parents=True)

    def send(path: Path) -> None:
        obstore.put(there, path.name, path, use_multipart=False)
        path.unlink()

    with ThreadPoolExecutor(4) as pool:
        sent, archive = [], None
        for name in names:
            if archive is None:
                archive, total = tarfile.open(target / f"{place.shards:05}.tar", "w"), 0  # noqa: SIM115
            archive.add(Path(place.source, name), name.replace("/", "_"))
            total += Path(place.source, name).stat().st_size
            if total >= place.shard_bytes or name == names[-1]:
                archive.close()
                sent.append(pool.submit(send, target / f"{place.shards:05}.tar"))
                archive, place.shards = None, place.shards + 1
        for one in sent:
            one.result()


def put_mosaicml(place: Place, prefix: str = "mosaicml") -> None:
    """By its own writer, in a process that knows it."""
    run_with("mosaicml", place, "peers_shards", "write_mosaicml", prefix)


def put_juicefs(place: Place, prefix: str = "juicefs") -> None:
    """By its own `sync`, which is quicker than through a mount."""
    juicefs = program("juicefs", "juicefs")
    made = [
        "format", "--storage", "s3", "--bucket", f"{place.endpoint}/{place.bucket}",
        "--access-key", place.key, "--secret-key", place.secret, "--trash-days", "0", place.redis, prefix,
    ]  # fmt: skip
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "check": True}
    subprocess.run([juicefs, *made], **quiet)
    subprocess.run(
        [juicefs, "sync", "--threads", "16", "--no-https", f"{place.source}/", "jfs://PEERS/"],
        env={**os.environ, "PEERS": place.redis},
        **quiet,
    )


def run_with(peer: str, place: Place, module: str, function: str, *arguments: str) -> dict[str, float]:
    """Calls a function in a process that has a peer; what it returns must be JSON."""
    code = (
        f"import json, {module}, peers_place, sys; place = peers_place.Place(**json.loads(sys.argv[1]));"
        f"print('RESULT' + json.dumps({module}.{function}(place, *sys.argv[2:])))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, place.as_json(), *arguments],
        env={
            **os.environ,
            **environment(place),
            "PYTHONPATH": f"{folder(peer)}:{HERE}" if peer else str(HERE),
        },
        capture_output=True,
        text=True,
        cwd=HERE,
    )
    if done.returncode:
        raise RuntimeError(f"{function}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.rpartition("RESULT")[2])


PUT = {
    "objects": put_objects,
    "volume": put_volume,
    "mosaicml": put_mosaicml,
    "tar": put_tar,
    "juicefs": put_juicefs,
}


@contextmanager
def redis(root: Path) -> Iterator[str]:
    """Redis of its own for the metadata of JuiceFS."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder_ = root / "redis"
    folder_.mkdir()
    command = [
        "redis-server",
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(folder_),
        "--save",
        "",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise
                time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}/1"
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def line(place: Place, latency_ms: float, megabytes_per_s: float) -> Iterator[Place]:
    """The same place behind a slow line."""
    if not latency_ms and not megabytes_per_s:
        yield place
        return
    upstream = place.endpoint.removeprefix("http://")
    process = subprocess.Popen(
        [sys.executable, str(HERE / "peers_line.py"), upstream, str(latency_ms), str(megabytes_per_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        yield Place(**{**asdict(place), "endpoint": f"http://127.0.0.1:{port}", "latency_ms": latency_ms})
    finally:
        process.kill()
        process.wait()
