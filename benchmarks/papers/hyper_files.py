"""Hyper's file system: millions of files in chunks of an object store, read as if they were local.

The tables of a volume of ten million files, and how quickly a file is found in them; many small texts, sent,
mounted, and compared one by one; then what `volumes/read.py` and `volumes/training.py` measure, shorter:
reading beside the local disk and beside a plain GET, and what a training waits for data.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from claims import Seen, tried
from images import ROOT
from tables import Report

CLAIMS = {
    "tables of millions of files, without their bytes, are open within a second": "100 million, 10 TB (4.1)",
    "many small files are sent in large chunks, and every one comes back the same": "25 to 100 MB (3.1)",
    "programs read them as local files, without a change": "said (3.1), no number",
    "what is on the machine is read as quickly as from the local disk (over 0.8)": "near-zero delay (1)",
    "what is not comes as quickly as the object store gives it (over 0.8)": "almost native speed (3.1)",
    "a training waits for its data under 5% of an epoch, as if they were local": "almost the same (3.1)",
}
FILES, TEXTS, FILES_READ = 10_000_000, 100_000, 4000
VOLUMES = ROOT / "benchmarks" / "volumes"
#: Of a benchmark that is told to end; what told us ends what is left.
ENDING_S = 60
#: What counts as "as quickly".
SHARE = 0.8
#: Of an epoch, after its first batch.
STALL = 0.05
WORDS = ("gradient", "batch", "worker", "server", "epoch", "loss", "rate", "the", "of", "a", "is", "and")


def measured(script: str, *arguments: object) -> dict[str, Any]:
    """What a benchmark of volumes prints."""
    command = [sys.executable, str(VOLUMES / f"{script}.py"), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        said = process.communicate()[0]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # it ends its server and its mounts
            process.wait(ENDING_S)
    if process.returncode:
        raise RuntimeError(f"{script}.py has failed with {process.returncode}")
    return dict(json.loads(said.splitlines()[-1]))


def tables(files: int, place: Path) -> list[Seen]:
    """The tables of so many files."""
    (found,) = measured("table", "--rows", files, "--directory", place)["table"]
    here = (
        f"{files / 1e6:g} million files: tables opened in {found['open_s'] * 1e3:.1f} ms, a file found "
        f"by its path in {found['path_us']:.1f} us; made in {found['make_columns_s']:.0f} s, "
        f"{found['columns_bytes_per_row']:.0f} bytes for each file"
    )
    return [Seen(found["open_s"] < 1, here, "other work had the cores")]


def text(number: int, rng: random.Random) -> bytes:
    """A small file, of which no two are the same."""
    return f"{number}\n{' '.join(rng.choices(WORDS, k=rng.randrange(20, 600)))}\n".encode()


def small(files: int, place: Path) -> list[Seen]:
    """So many small files, sent and read back through a mount."""
    from trainmaster.testing.private_s3 import PrivateS3
    from trainmaster.volumes.mounting import mount, unmount
    from trainmaster.volumes.packed.pushing import push

    source, point = place / "texts", place / "mounted"
    rng = random.Random(0)
    for number in range(files):
        path = source / f"{number // 1000:05}" / f"{number % 1000:03}.txt"
        if number % 1000 == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(text(number, rng))
    with PrivateS3() as server:
        os.environ.update(server.environment())
        uri = f"s3://{server.new_bucket()}/texts"
        began = time.monotonic()
        report = push(source, uri, cache=place / "push-cache")
        sent_s = time.monotonic() - began
        began = time.monotonic()
        mount(uri, point, cache=place / "cache")
        try:
            ready_s = time.monotonic() - began
            began = time.monotonic()
            same = subprocess.run(["diff", "-rq", source, point], capture_output=True).returncode == 0
            compared_s = time.monotonic() - began
            command = f"find {point} -name '*.txt' -print0 | xargs -0 cat | grep -c ^"
            lines = int(subprocess.run(command, shell=True, capture_output=True, check=True).stdout)
        finally:
            unmount(point)
    head = report.head
    mean = head.total_bytes / files
    chunks = f"{head.chunk_count} chunk{'s' if head.chunk_count > 1 else ''}"
    here = (
        f"{files:,} files of {mean:,.0f} bytes on average in {chunks} of at most "
        f"{head.chunk_limit_bytes >> 20} MiB, {files / sent_s:,.0f} files/s "
        f"(at that rate 10 million in {1e7 / files * sent_s / 60:.0f} min)"
    )
    used = (
        f"mounted in {ready_s:.1f} s; find, cat and grep saw {lines:,} lines, "
        f"diff compared {files / compared_s:,.0f} files/s"
    )
    return [
        Seen(same, here, "diff found a file that is not the same, or is missing"),
        Seen(lines == 2 * files, used, f"{2 * files:,} lines were written"),
    ]


def reading(files: int, rounds: int) -> list[Seen]:
    """Beside the local disk, and beside a plain GET."""
    read = measured("read", "--files", files, "--rounds", rounds, "--lines", "")
    ratios = read["warm"]["readers_1"]["ratio_to_ext4"]
    name = max((each for each in ("mount_kernel", "mount") if each in ratios), key=lambda each: ratios[each])
    rates = read["warm"]["readers_1"]["files_per_s"]
    cold = read["cold"]["ratio_to_plain_get"]["volume_chunks_only"]
    rate = read["cold"]["megabytes_per_s"]
    here = f"{cold:.2f} of a plain GET ({rate['volume_chunks_only']:.0f} and {rate['plain_get']:.0f} MB/s)"
    return [
        Seen(
            ratios[name] >= SHARE,
            f"{ratios[name]:.2f} of the local disk ({rates[name]:,} and {rates['ext4']:,} files/s)",
            "the mount is answered by a process, which other work delays",
        ),
        Seen(
            cold >= SHARE,
            here,
            "hashing and writing what comes need cores that the S3 server on the same machine has",
        ),
    ]


def training(files: int) -> list[Seen]:
    """What a training waits."""
    epochs = measured("training", "--files", files, "--epochs", 2, "--only", "whole")["whole"]
    first, later = (each["stall_share_after_first_batch"] for each in epochs)
    here = f"{later:.1%} of an epoch; {first:.1%} of the first, when nothing was on the machine yet"
    return [Seen(later <= STALL, here, "other work had the core of the thread that reads ahead")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of it")
    parser.add_argument("--files", type=int, help=f"in the tables ({FILES:,})")
    parser.add_argument("--texts", type=int, help=f"sent and read back ({TEXTS:,})")
    arguments = parser.parse_args()
    report = Report("hyper_files", arguments.quick)
    share = 10 if arguments.quick else 1
    place = Path(tempfile.mkdtemp(prefix="trainmaster-files-"))
    names = list(CLAIMS)
    files = FILES_READ // (4 if arguments.quick else 1)
    try:
        seen = tried(names[:1], lambda: tables(arguments.files or FILES // share, place))
        seen |= tried(names[1:3], lambda: small(arguments.texts or TEXTS // share, place))
        seen |= tried(names[3:5], lambda: reading(files, 1 if arguments.quick else 2))
        seen |= tried(names[5:], lambda: training(files))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    report.end(CLAIMS, seen)


if __name__ == "__main__":
    main()
