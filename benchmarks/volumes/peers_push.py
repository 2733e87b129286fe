"""Sending the same files to the store in each layout: MB/s, and CPU time of the client."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
from peers_install import program
from peers_place import (
    Place,
    put_juicefs,
    put_objects,
    put_tar,
    put_volume,
    run_with,
    store,
)
from peers_shards import write_mosaicml

Taken = dict[str, float]


def timed(work: Callable[[], object]) -> Taken:
    """Seconds, and CPU seconds of this process and of those it waited for."""
    spent, began = sum(os.times()[:4]), time.perf_counter()
    work()
    return {"seconds": time.perf_counter() - began, "cpu_s": sum(os.times()[:4]) - spent}


def ours(place: Place, prefix: str) -> Taken:
    import pyarrow.parquet  # noqa: F401 - as of all libraries here, its import is not timed

    return timed(lambda: put_volume(place, prefix))


def plain_chunks(place: Place, prefix: str) -> Taken:
    """What the wire takes: chunks that lie in memory already, 4 at once."""
    names = list(json.loads(Path(place.index).read_text()))
    content = b"".join(Path(place.source, name).read_bytes() for name in names)
    chunks = [content[at : at + place.shard_bytes] for at in range(0, len(content), place.shard_bytes)]
    there = store(place, prefix)

    def put() -> None:
        with ThreadPoolExecutor(4) as pool:
            list(
                pool.map(
                    lambda one: obstore.put(there, f"{one[0]:05}", one[1], use_multipart=False),
                    enumerate(chunks),
                )
            )

    return timed(put)


def obstore_files(place: Place, prefix: str) -> Taken:
    return timed(lambda: put_objects(place, prefix, 32))


def boto3_files(place: Place, prefix: str) -> Taken:
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3",
        endpoint_url=place.endpoint,
        aws_access_key_id=place.key,
        aws_secret_access_key=place.secret,
        region_name="us-east-1",
        config=Config(
            max_pool_connections=32,
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
        ),
    )
    names = list(json.loads(Path(place.index).read_text()))

    def put(name: str) -> None:
        data = Path(place.source, name).read_bytes()
        client.put_object(Bucket=place.bucket, Key=f"{prefix}/{name}", Body=data)

    def put_all() -> None:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(put, names))

    return timed(put_all)


def rclone_copy(place: Place, prefix: str) -> Taken:
    remote = (
        f":s3,provider=SeaweedFS,access_key_id={place.key},secret_access_key={place.secret},region=us-east-1,"
        f"endpoint='{place.endpoint}',force_path_style=true:{place.bucket}/{prefix}"
    )
    options = "--config /dev/null --transfers 32 --checkers 32 --no-check-dest --s3-no-head --no-traverse -q"
    command = [program("rclone", "rclone"), "copy", place.source, remote, *options.split()]
    return timed(lambda: subprocess.run(command, check=True, capture_output=True))


def juicefs_sync(place: Place, prefix: str) -> Taken:
    return timed(lambda: put_juicefs(place, prefix))


def tars(place: Place, prefix: str) -> Taken:
    return timed(lambda: put_tar(place, prefix))


def mosaicml(place: Place, prefix: str) -> Taken:
    return write_mosaicml(place, prefix)


#: Row -> the peer whose packages it needs.
ROWS = {
    "plain_chunks": "",
    "ours": "",
    "obstore_files": "",
    "boto3_files": "",
    "rclone_copy": "rclone",
    "juicefs_sync": "juicefs",
    "mosaicml": "mosaicml",
    "tars": "",
}


def push_once(row: str, place: Place, prefix: str) -> Taken:
    """Sends all, in a process of its own, and proves how many bytes arrived.

    Raises:
        RuntimeError: it failed.
        AssertionError: less arrived than was to be sent.
    """
    total = sum(one[0] for one in json.loads(Path(place.index).read_text()).values())
    os.sync()
    taken = run_with(ROWS[row], place, "peers_push", row, prefix)
    there = store(place, prefix)
    arrived = sum(one["size"] for part in obstore.list(there, chunk_size=1000) for one in part)
    if arrived < total:
        raise AssertionError(f"{row}: {arrived} of {total} bytes arrived")
    return {
        "mb_per_s": total / taken["seconds"] / 1e6,
        "cpu_s_per_gb": taken["cpu_s"] / total * 1e9,
        "bytes_arrived": arrived,
    }
