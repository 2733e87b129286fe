"""Container engines of the tests' own, with an image of this machine's files: no registry is asked."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from trainmaster.executors.containers.engines import find_engine
from trainmaster.testing.waits import until

#: bash, a few tools and this Python.
IMAGE = "trainmaster-test:1"
#: Those miss something; docker has them.
NO_BASH = "trainmaster-test-no-bash:1"
NO_PYTHON = "trainmaster-test-no-python:1"
_TOOLS = ("bash", "cat", "env", "id", "ls", "ps", "sleep", "touch")
_NEEDED = {
    "docker": ("docker", "dockerd", "runc"),
    "podman": ("podman", "runc"),
    "apptainer": ("apptainer", "squashfuse_ll", "mksquashfs"),
    "enroot": ("enroot", "squashfuse", "mksquashfs"),
}
#: Where `make apptainer` puts it.
APPTAINER = Path(
    os.environ.get("TRAINMASTER_CACHE") or Path.home() / ".cache/trainmaster", "apptainer/usr/bin"
)
#: Where `make enroot` puts it.
ENROOT = APPTAINER.parents[2] / "enroot/bin"
WITHOUT_DAEMON = ("apptainer", "enroot")
_NOT_NEEDED = {"test", "tests", "site-packages", "idlelib", "lib2to3", "tkinter", "turtledemo"}


class NoEngineError(Exception):
    """Why there is none."""


class PrivateEngine:
    """A container engine whose images and containers are all ours; a context manager.

    Attributes:
        kind: ``docker``, ``podman``, ``apptainer`` or ``enroot``.
        env: variables with which its client finds it.
        directory: everything that it keeps.

    Args:
        kind: of engine.
        root: what `IMAGE` is made of, a tar archive; `make_image` with everything by default.
    """

    def __init__(self, kind: str, root: bytes = b"") -> None:
        if os.getuid() != 0:
            raise NoEngineError("an engine of our own needs root")
        needed = _NEEDED[kind]
        path = f"{APPTAINER}:{ENROOT}:{os.environ['PATH']}"
        if missing := [program for program in needed if shutil.which(program, path=path) is None]:
            by = f"build_{kind}" if missing == [kind] else "system"
            raise NoEngineError(f"{', '.join(missing)} not installed; scripts/{by}.sh installs it")
        self.kind = kind
        self._root = root
        self.directory = Path(tempfile.mkdtemp(prefix=f"tm-{kind}-", dir="/tmp"))
        self.directory.chmod(0o755)
        self._daemon: subprocess.Popen[bytes] | None = None
        self.env = {"TRAINMASTER_CONTAINER_ENGINE": kind}
        if kind == "docker":
            self.env["DOCKER_HOST"] = f"unix://{self.directory}/docker.sock"
            self.env["DOCKER_CONFIG"] = str(self.directory / "config")
        elif kind == "podman":
            self._configure_podman()
        else:
            self._configure_files()

    def __enter__(self) -> PrivateEngine:
        try:
            if self.kind == "docker":
                self._start_dockerd()
            root = self._root or make_image()
            if self.kind in WITHOUT_DAEMON:
                engine = find_engine({**os.environ, **self.env})
                made = _archive if self.kind == "apptainer" else _squashfs
                engine.load(IMAGE, io.BytesIO(made(root)), set())
                for name, tools in ((NO_BASH, ("sleep",)), (NO_PYTHON, ("bash",))):
                    engine.load(name, io.BytesIO(made(make_image(tools, python=False))), set())
                return self
            self.client("import", "-c", "ENV FROM_IMAGE=yes", "-", IMAGE, stdin=root)
            if self.kind == "docker":
                self.client("import", "-", NO_BASH, stdin=make_image(tools=("sleep",), python=False))
                self.client("import", "-", NO_PYTHON, stdin=make_image(tools=("bash",), python=False))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def client(self, *arguments: str, stdin: bytes = b"") -> str:
        """Standard output of the client; it must succeed."""
        done = subprocess.run(
            [self.kind, *arguments],
            input=stdin,
            capture_output=True,
            env={**os.environ, **self.env},
            timeout=60,
        )
        assert done.returncode == 0, f"{self.kind} {arguments}: {done.stderr.decode()}"
        return done.stdout.decode()

    def containers(self) -> list[str]:
        """Names of all that there are, in any state."""
        if self.kind in WITHOUT_DAEMON:
            if scratch := [path.name for path in (self.directory / "tmp").iterdir()]:
                return scratch
            return [_told(each.parent) for each in self._processes()]
        return self.client("ps", "--all", "--format", "{{.Names}}").split()

    def has(self, name: str) -> bool:
        """Whether it has an image of this name."""
        return find_engine({**os.environ, **self.env}).image(name) is not None

    def forget(self, name: str) -> None:
        """Remove an image."""
        if self.kind in WITHOUT_DAEMON:
            suffix = "sif" if self.kind == "apptainer" else "sqsh"
            (self.directory / "cache/trainmaster" / f"{name}.{suffix}").unlink()
        else:
            self.client("rmi", name)

    def until_empty(self, patience_s: float = 60.0) -> None:
        """Wait until there is no container; says which one stays."""
        left: list[str] = []

        def is_empty() -> bool:
            left[:] = self.containers()
            return not left

        with suppress(AssertionError):
            until(is_empty, patience_s=patience_s)
        assert not left, f"not within {patience_s:.0f} s: no container is left"

    def remove_all(self) -> None:
        """End every container, also one that a supervisor removes just now: that is refused to others."""

        def is_done() -> bool:
            left = self.containers()
            if left and self.kind in WITHOUT_DAEMON:
                self._end_processes()
            elif left:
                subprocess.run([self.kind, "rm", "--force", *left], env={**os.environ, **self.env})
            return not left

        until(is_done, "no container is left")

    def close(self) -> None:
        """End every container and the daemon; leave nothing."""
        with suppress(AssertionError, subprocess.TimeoutExpired):  # the daemon is gone, or never came
            self.remove_all()
        if self._daemon is not None:
            self._daemon.terminate()
            try:
                self._daemon.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self._daemon.pid, signal.SIGKILL)
                self._daemon.wait()
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if (point := line.split()[4]).startswith(f"{self.directory}/"):
                subprocess.run(["umount", "--lazy", point], check=False)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _processes(self) -> list[Path]:
        """The environments of processes that have started our containers."""
        return [each for each in Path("/proc").glob("[0-9]*/environ") if self._started(each)]

    def _end_processes(self) -> None:
        for each in self._processes():
            with suppress(ProcessLookupError):
                os.kill(int(each.parent.name), signal.SIGKILL)
        for path in (self.directory / "tmp").iterdir():
            shutil.rmtree(path, ignore_errors=True)

    def _started(self, environ: Path) -> bool:
        """Whether the process there has started a container of ours."""
        mark = b"ENGINE_CONFIG" if self.kind == "apptainer" else b"ENROOT_LOGIN_SHELL"
        try:
            return mark in (said := environ.read_bytes()) and os.fsencode(self.directory) in said
        except OSError:
            return False  # it is over

    def _configure_files(self) -> None:
        cache = "APPTAINER_CACHEDIR" if self.kind == "apptainer" else "ENROOT_CACHE_PATH"
        for name, variable in (("cache", cache), ("tmp", "TMPDIR"), ("run", "ENROOT_RUNTIME_PATH")):
            place = self.directory / name
            place.mkdir()
            place.chmod(0o1777)
            self.env[variable] = str(place)
        programs = APPTAINER if self.kind == "apptainer" else ENROOT
        if programs.exists():
            self.env["PATH"] = f"{programs}:{os.environ['PATH']}"
        Path("/dev/fuse").chmod(0o666)  # as udev does

    def _start_dockerd(self) -> None:
        options = {
            "data-root": self.directory / "data",
            "exec-root": self.directory / "exec",
            "pidfile": self.directory / "pid",
            "host": self.env["DOCKER_HOST"],
            "iptables": "false",
            "ip6tables": "false",
            "bridge": "none",
        }
        log = self.directory / "log"
        with log.open("wb") as output:
            self._daemon = subprocess.Popen(
                ["dockerd", *(f"--{name}={value}" for name, value in options.items())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + 30
        while subprocess.run(
            ["docker", "info"], capture_output=True, env={**os.environ, **self.env}
        ).returncode:
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                words = log.read_text()[-500:]
                self.close()
                raise NoEngineError(f"dockerd does not start here: {words}")
            time.sleep(0.1)

    def _configure_podman(self) -> None:
        conf, storage = self.directory / "containers.conf", self.directory / "storage.conf"
        limits = '["nofile=16384:16384", "nproc=16384:16384"]'  # more may be refused to us
        conf.write_text(
            f"[containers]\ndefault_ulimits = {limits}\n"
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n'
        )
        storage.write_text(
            f'[storage]\ndriver = "overlay"\n'
            f'runroot = "{self.directory}/run"\ngraphroot = "{self.directory}/data"\n'
        )
        self.env |= {"CONTAINERS_CONF": str(conf), "CONTAINERS_STORAGE_CONF": str(storage)}


def _told(process: Path) -> str:
    """What a process is, and for how long: for whoever reads why it should not be there."""
    try:
        words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return f"{process.name}, which is over"
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return f"{process.name}, {fields[0]}, of {fields[1]}, {age_s:.0f} s old: {words[:200]}"


def make_image(tools: tuple[str, ...] = _TOOLS, *, python: bool = True) -> bytes:
    """The files of an image, as a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, mode in (("tmp", 0o1777), ("etc", 0o755), ("proc", 0o755), ("sys", 0o755), ("dev", 0o755)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            archive.addfile(entry)
        programs = [
            (Path(found).resolve(), f"usr/bin/{tool}") for tool in tools if (found := shutil.which(tool))
        ]
        if python:
            version = f"python{sysconfig.get_python_version()}"
            binary = Path(sys.base_prefix, "bin", version).resolve()
            programs.append((binary, "usr/local/bin/python3"))
            library = Path(sysconfig.get_path("stdlib"))
            archive.add(library, f"usr/local/lib/{version}", filter=_slim)
            extensions = [*library.glob("lib-dynload/*.so")]
            wheels = Path("/usr/share/python-wheels")  # for ensurepip of Debian's Python
            if wheels.is_dir():
                archive.add(wheels, str(wheels).lstrip("/"))
        else:
            extensions = []
        libraries = {line for path in [*(p for p, _ in programs), *extensions] for line in _libraries(path)}
        for source, target in [*programs, *((Path(name), name.lstrip("/")) for name in sorted(libraries))]:
            entry = archive.gettarinfo(source.resolve(), target)
            entry.uid = entry.gid = 0
            with source.open("rb") as file:
                archive.addfile(entry, file)
    return buffer.getvalue()


def _archive(root: bytes) -> bytes:
    """An archive as of `docker save`, of an image with these files."""
    layers = [f"sha256:{hashlib.sha256(root).hexdigest()}"]
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": {"Env": ["FROM_IMAGE=yes"]},
        "rootfs": {"type": "layers", "diff_ids": layers},
    }
    said = json.dumps(config).encode()
    name = f"{hashlib.sha256(said).hexdigest()}.json"
    manifest = json.dumps([{"Config": name, "RepoTags": None, "Layers": ["layer.tar"]}]).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for each, data in ((name, said), ("layer.tar", root), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(each)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _squashfs(root: bytes) -> bytes:
    """An image as Enroot makes them, with these files."""
    with tempfile.TemporaryDirectory(prefix="tm-enroot-") as place:
        files = Path(place, "root")
        with tarfile.open(fileobj=io.BytesIO(root)) as archive:
            archive.extractall(files, filter="fully_trusted")
        (files / "bin").symlink_to("usr/bin")
        (files / "etc/environment").write_text("FROM_IMAGE=yes\n")
        # As of an image whose entry point is not what a task is.
        (files / "etc/rc").write_text("echo the entry point of the image\n")
        quiet = ("-quiet", "-no-progress", "-all-root", "-comp", "lz4")
        subprocess.run(["mksquashfs", files, Path(place, "image"), *quiet], check=True, capture_output=True)
        return Path(place, "image").read_bytes()


def _slim(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = Path(entry.name).name
    if name in _NOT_NEEDED or name.startswith("config-") or name.endswith((".opt-1.pyc", ".opt-2.pyc", ".a")):
        return None
    entry.uid = entry.gid = 0
    return entry


def _libraries(program: Path) -> list[str]:
    listing = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return [word for line in listing.splitlines() for word in line.split() if word.startswith("/")]


def engine_of_module(kind: str) -> Any:
    """A fixture: one engine for all tests of a module; they skip where it is not installed."""

    @pytest.fixture(scope="module")
    def engine() -> Iterator[PrivateEngine]:
        try:
            with PrivateEngine(kind) as found:
                yield found
        except NoEngineError as error:
            pytest.skip(str(error))

    return engine
