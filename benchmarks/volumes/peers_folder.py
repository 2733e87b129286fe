# ruff: noqa: D102
# What the methods of a method mean is said once, in `Method`.
"""Ways of reading that are directories: the local disk, ours mounted, rclone, JuiceFS, s3fs."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import psutil
from peers_install import program
from peers_method import Method, Read, at_once, in_threads, one_by_one
from peers_place import Place, environment

from trainmaster.volumes.mounting import mount, unmount

_PATIENCE_S = 60.0
_DAY_S = 86400


class Folder(Method):
    """Files below a directory, read as programs do: open, fstat, read, close."""

    def where(self, place: Place) -> Path:
        return self.root / "mnt"

    def get(self, name: bytes) -> bytes:
        descriptor = os.open(name, os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            data = os.read(descriptor, size)
            while len(data) < size:
                data += os.read(descriptor, size - len(data))
            return data
        finally:
            os.close(descriptor)

    def cold(self, place: Place, seed: int) -> Read:
        base = os.fsencode(self.where(place)) + b"/"
        return in_threads(
            self.shuffled(seed), lambda name: self.get(base + os.fsencode(name)), at_once(place, 16)
        )

    def warm(self, place: Place, seed: int) -> Read:
        names, base = self.shuffled(seed), os.fsencode(self.where(place)) + b"/"
        return one_by_one(names, self.get, [base + os.fsencode(name) for name in names])


class LocalDisk(Folder):
    """The files themselves."""

    settings = "ext4; cold: evicted from the page cache, 16 threads"

    def where(self, place: Place) -> Path:
        return Path(place.source)

    def start(self, place: Place) -> None:
        for name in self.names:
            with Path(place.source, name).open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Ours(Folder):
    """`volume mount`."""

    layout = "volume"
    whole = True
    settings = "defaults; cold: 16 threads, 66 at 50 ms"

    def start(self, place: Place) -> None:
        super().start(place)
        mount(f"s3://{place.bucket}/volume", self.where(place), cache=self.cache)

    def stop(self) -> None:
        if self.where_is_mounted():
            unmount(self.root / "mnt")

    def where_is_mounted(self) -> bool:
        return os.path.ismount(self.root / "mnt")

    def pids(self) -> list[int]:
        place = str(self.root / "mnt")
        return [one.pid for one in psutil.process_iter(["cmdline"]) if place in (one.info["cmdline"] or ())]


class Mounted(Folder):
    """A peer's mount, its process in the foreground so that its CPU time can be read."""

    _process: subprocess.Popen[bytes] | None = None

    def command(self, place: Place) -> list[str]:
        raise NotImplementedError

    def start(self, place: Place) -> None:
        super().start(place)
        there = self.root / "mnt"
        there.mkdir()
        with (self.root / "log").open("wb") as log:
            self._process = subprocess.Popen(
                self.command(place), env={**os.environ, **environment(place)}, stdout=log, stderr=log
            )
        deadline = time.monotonic() + _PATIENCE_S
        while not os.path.ismount(there):
            if self._process.poll() is not None or time.monotonic() > deadline:
                words = (self.root / "log").read_text(errors="replace")[-600:]
                raise RuntimeError(f"{self.name} does not mount: {words}")
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is None:
            return
        there = self.root / "mnt"
        for flags in ([], ["-l"]):
            if os.path.ismount(there):
                subprocess.run(["umount", *flags, str(there)], capture_output=True, check=False)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def pids(self) -> list[int]:
        if self._process is None:
            return []
        return [self._process.pid, *(one.pid for one in psutil.Process(self._process.pid).children(True))]


class Rclone(Mounted):
    """`rclone mount`."""

    peer = "rclone"
    more = ""
    layout = "objects"
    settings = (
        "vfs-cache-mode full, dir-cache-time and attr-timeout 24 h, no-modtime, no-checksum, "
        "fast fingerprint, max-read-ahead 1M; cold: 16 threads, 66 at 50 ms"
    )

    def command(self, place: Place) -> list[str]:
        remote = (
            f":s3,provider=SeaweedFS,access_key_id={place.key},secret_access_key={place.secret},"
            f"region=us-east-1,endpoint='{place.endpoint}',force_path_style=true:{place.bucket}/objects"
        )
        options = (
            "--read-only --vfs-cache-mode full --dir-cache-time 24h --attr-timeout 24h --poll-interval 0 "
            "--no-modtime --no-checksum --vfs-fast-fingerprint --vfs-read-wait 0 "
            "--vfs-cache-poll-interval 1h --vfs-cache-max-age 24h --max-read-ahead 1M "
            "--transfers 64 --s3-no-head-object"
        )
        there = [program("rclone", "rclone"), "mount", remote, str(self.root / "mnt")]
        return [
            *there,
            "--cache-dir",
            str(self.cache),
            "--config",
            "/dev/null",
            *options.split(),
            *self.more.split(),
        ]


class JuiceFS(Mounted):
    """`juicefs mount`."""

    peer = "juicefs"
    layout = "juicefs"
    settings = (
        "Redis; open-cache, attr, entry and dir caches 24 h, max-fuse-io 1M, buffer 1 GiB, prefetch 3, "
        "checksum of the cache off; cold: 16 threads, 66 at 50 ms"
    )

    def command(self, place: Place) -> list[str]:
        options = (
            "--read-only --no-bgjob --backup-meta 0 --attr-cache 24h --entry-cache 24h --dir-entry-cache 24h "
            "--open-cache 24h --open-cache-limit 0 --readdir-cache --buffer-size 1024 --prefetch 3 "
            "--max-fuse-io 1M --cache-size 102400 --free-space-ratio 0.01 --verify-cache-checksum none "
            "--no-usage-report --no-syslog"
        )
        store = ["--bucket", f"{place.endpoint}/{place.bucket}", "--cache-dir", str(self.cache)]
        juicefs = program("juicefs", "juicefs")
        return [juicefs, "mount", *options.split(), *store, place.redis, str(self.root / "mnt")]


class S3fs(Mounted):
    """s3fs-fuse."""

    peer = "s3fs"
    layout = "objects"
    settings = (
        "use_cache, kernel_cache, max_stat_cache_size 200,000 for 24 h, multireq_max 64, parallel_count 16; "
        "cold: 16 threads, 66 at 50 ms"
    )

    def command(self, place: Place) -> list[str]:
        secret = self.root / "passwd"
        secret.write_text(f"{place.key}:{place.secret}")
        secret.chmod(0o600)
        options = (
            f"ro,url={place.endpoint},use_path_request_style,passwd_file={secret},use_cache={self.cache},"
            f"kernel_cache,max_stat_cache_size=200000,stat_cache_expire={_DAY_S},multireq_max=64,"
            f"parallel_count=16,attr_timeout={_DAY_S},entry_timeout={_DAY_S},ensure_diskfree=100,"
            "enable_noobj_cache"
        )
        program_ = shutil.which("s3fs") or "s3fs"
        return [program_, f"{place.bucket}:/objects", str(self.root / "mnt"), "-f", "-o", options]
