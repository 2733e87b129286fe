"""`ContainerEngine`: docker, podman, Apptainer or Enroot here, asked through its own command line."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from io import BufferedIOBase
from math import inf
from pathlib import Path

from trainmaster.dataclass import dataclass, field
from trainmaster.executors.base import Container
from trainmaster.executors.containers import command_line
from trainmaster.objects.errors import FullStoreError
from trainmaster.spec.addresses import is_loopback
from trainmaster.spec.errors import TrainmasterError, UsageError
from trainmaster.spec.plain_json import parsed_json
from trainmaster.spec.processes import said_by

ENGINE_VARIABLE = "TRAINMASTER_CONTAINER_ENGINE"
#: Those that can keep tasks of others apart; and all.
APART = ("docker", "podman")
KINDS = (*APART, *command_line.WITHOUT_DAEMON)

#: Where the clients find their engine, their configuration and their helpers. Nothing else of the
#: caller's environment reaches them, and none of it reaches a container.
_SETTINGS = (
    "DOCKER_API_VERSION", "DOCKER_CERT_PATH", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_HOST",
    "DOCKER_TLS_VERIFY",
    "CONTAINER_CONNECTION", "CONTAINER_HOST", "CONTAINERS_CONF", "CONTAINERS_CONF_OVERRIDE",
    "CONTAINERS_REGISTRIES_CONF", "CONTAINERS_STORAGE_CONF", "REGISTRY_AUTH_FILE",
    "APPTAINER_CACHEDIR", "APPTAINER_CONFIGDIR", "APPTAINER_TMPDIR", "APPTAINER_UNSQUASH",
    "SINGULARITY_CACHEDIR", "SINGULARITY_TMPDIR",
    "ENROOT_CACHE_PATH", "ENROOT_CONFIG_PATH", "ENROOT_DATA_PATH", "ENROOT_NATIVE_OVERLAYFS",
    "ENROOT_RUNTIME_PATH", "ENROOT_TEMP_PATH", "XDG_CACHE_HOME",
    "DBUS_SESSION_BUS_ADDRESS", "HOME", "PATH", "TMPDIR",
    "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR",
)  # fmt: skip

_ANSWER_S = 30.0
#: A registry that has not said what is in the image by then is not there.
CONNECT_S = 90.0
_PIECE_BYTES = 1 << 20
#: How often it is looked whether the registry has answered; and the end of what a client says that is kept.
_LOOK_S, _SAID = 0.5, 1 << 16
_LOADED = re.compile(r"^Loaded image(?:\(s\)| ID)?: (\S+)$", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NO_ROOM = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_UNDER_WAY = re.compile(
    r"Pulling from|Getting image source|Copying|ing OCI |\b[0-9a-f]{12}: |Digest: ", re.IGNORECASE
)
#: Without squashfuse, or with APPTAINER_UNSQUASH, all of an ordinary user's image is unpacked for each start.
_STARTED_S = 300.0
#: What is being made for so long was left by one that was killed.
_LEFT_S = 24 * 3600.0
#: Where an image that is a file says so, and which one it is.
_MAGIC = b"SIF_MAGIC"
_MAGIC_AT = 32
_ID = slice(48, 64)
_SQUASHFS, _SUPERBLOCK_BYTES = b"hsqs", 96
#: Says what is in the environment of a container, with nothing but a bash.
_ENVIRONMENT = "while IFS= read -rd '' pair; do printf '%s\\0' \"$pair\"; done </proc/self/environ"
#: What Apptainer, Enroot and bash set there.
_NOT_OF_IMAGE = (
    "APPTAINER_", "SINGULARITY_", "HOME=", "OLDPWD=", "PROMPT_COMMAND=", "PS1=", "PWD=", "SHELL=", "SHLVL=",
    "TERM=", "_=", "container=",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """What an engine knows of one of its images.

    Attributes:
        id: tells one from another, also of the same name.
        env: the variables that it sets.
        is_own: it was made on this machine: no registry is known to have it.
    """

    id: str
    env: Mapping[str, str]
    is_own: bool = False


@dataclass(frozen=True, slots=True)
class ContainerEngine:
    """What starts containers on this machine.

    Attributes:
        kind: one of `KINDS`.
        program: absolute path of its client.
        rootless: it runs as an ordinary user.
        settings: all the environment that the client gets.
    """

    kind: str
    program: str
    rootless: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    def container(self, image: str, mounts: Sequence[str]) -> Container:
        """A container of this engine, as members ask for it."""
        return Container(
            image=image,
            program=self.program,
            kind=self.kind,
            rootless=self.rootless,
            mounts=tuple(mounts),
            settings=self.settings,
        )

    def image(self, name: str) -> ContainerImage | None:
        """An image that is on this machine, else None."""
        code, said = self.ask("image", "inspect", name)
        if code:
            return None
        try:
            (found,) = parsed_json(said)
            pairs = (str(each).partition("=") for each in found["Config"].get("Env") or ())
            variables = {key: value for key, _, value in pairs}
            digests = [str(each) for each in found.get("RepoDigests") or ()]
            is_own = all(each.startswith("localhost/") for each in digests)  # podman gives those to its own
            return ContainerImage(_plain_id(str(found["Id"])), variables, is_own)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def pull(self, name: str, children: set[int], connect_s: float | None = None) -> None:
        """Bring an image here, however long that takes once the registry has answered.

        Args:
            name: of the image.
            children: holds the process group of the client while it lives.
            connect_s: how long the registry may be silent; `CONNECT_S` by default.

        Raises:
            UsageError: it cannot be had.
            FullStoreError: there is no room for it.
        """
        if name.startswith("/"):
            raise UsageError(
                f"{self.kind} knows no image that is a file: {name}",
                f"Name one of a registry, or install Apptainer and set {ENGINE_VARIABLE}=apptainer.",
            )
        code, said = self._listened("pull", name, children=children, connect_s=connect_s)
        if code:
            raise self.refusal(
                f"the image {name} is not on this machine and cannot be pulled",
                said,
                f"Check its name, build it (`{self.kind} build -t {name} .`), or `{self.kind} login`.",
            )

    def load(self, name: str, archive: BufferedIOBase, children: set[int]) -> None:
        """Take an image from an archive of `save`; it may be another kind of engine's.

        Args:
            name: of the image; engines write it in different ways.
            archive: not compressed: not every podman reads that. Read to its end.
            children: holds the process group of the client while it lives.

        Raises:
            UsageError: it is not taken.
            FullStoreError: there is no room for it.
        """
        with self._client("load", children=children, stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            with process.stdout:
                with suppress(BrokenPipeError), process.stdin as pipe:  # it says why
                    shutil.copyfileobj(archive, pipe, _PIECE_BYTES)
                said = process.stdout.read().decode("utf-8", "replace")
                process.wait()
        if process.returncode:
            raise self.refusal(f"{self.kind} does not take the image {name}", said)
        loaded = _LOADED.findall(said)
        if loaded and self.image(name) is None:
            self.ask("tag", loaded[-1], name)

    def _listened(
        self, *arguments: str, children: set[int], connect_s: float | None = None
    ) -> tuple[int, str]:
        """Exit code and output of what asks a registry."""
        with self._client(*arguments, children=children) as process:
            said = _listen(process, CONNECT_S if connect_s is None else connect_s)
        return process.returncode, said

    @contextmanager
    def _client(
        self, *arguments: str, children: set[int], stdin: int = subprocess.DEVNULL
    ) -> Iterator[subprocess.Popen[bytes]]:
        """The client at what may take long; it ends with the body."""
        process = subprocess.Popen(
            [self.program, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(self.settings),
            start_new_session=True,  # Ctrl-C is for us: we end it
        )
        children.add(process.pid)
        try:
            yield process
        finally:
            _end(process)
            children.discard(process.pid)

    def save(self, name: str, target: str) -> None:
        """Write an image to a file.

        Raises:
            UsageError: it cannot be written.
            FullStoreError: there is no room for it.
        """
        kind = ["--format", "docker-archive"] if self.kind == "podman" else []
        done = self._call(["save", *kind, "--output", target, name])
        if done.returncode:
            raise self.refusal(f"{self.kind} cannot save the image {name}", done.stderr)

    def refusal(self, what: str, said: str, hint: str = "") -> TrainmasterError:
        """The error of what the engine did not do; ``hint`` helps unless there is no room."""
        message = f"{what}: {last_words(said)}"
        if _NO_ROOM.search(said):
            return FullStoreError(message, f"Free some there: `{self.kind} system df` says what takes it.")
        return UsageError(message, hint)

    def remove(self, name: str) -> None:
        """Kill and remove a container; no harm if there is none."""
        container = {"program": self.program, "kind": self.kind}
        self.ask(*command_line.remove_command(container, [name])[1:])

    def ask(self, *arguments: str) -> tuple[int, str]:
        """Exit code and output of a quick command; the code is -1 if there was no answer."""
        try:
            done = self._call(arguments, _ANSWER_S)
        except subprocess.TimeoutExpired:
            return -1, f"no answer within {_ANSWER_S:.0f} s"
        except OSError as error:
            return -1, f"{self.program}: {error.strerror}"
        return done.returncode, done.stdout if not done.returncode else done.stderr

    def _call(
        self, arguments: Sequence[str], timeout_s: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=dict(self.settings),
            timeout=timeout_s,
            check=False,
        )


@dataclass(frozen=True, slots=True)
class Apptainer(ContainerEngine):
    """An engine without a daemon, whose images are files in the user's cache.

    They are found by name, as those of other engines, or by the path of a file. An image of a registry is
    made into a file once. Its name there is a link to that file, which is called as docker calls the image:
    by the digest of its configuration.
    """

    def image(self, name: str) -> ContainerImage | None:
        """See `ContainerEngine.image`."""
        file = self._file(name)
        try:
            identity = file.readlink().stem if name != str(file) else _identity(file)
        except OSError:
            return None
        try:
            said = self._environment(file)  # nothing, if it has no bash
        except (OSError, subprocess.TimeoutExpired):
            said = ""
        pairs = [pair for pair in said.split("\0") if pair and not pair.startswith(_NOT_OF_IMAGE)]
        variables = {key: value for key, _, value in (pair.partition("=") for pair in pairs)}
        return ContainerImage(identity, variables, is_own=name == str(file))

    def _file(self, name: str) -> Path:
        return Path(command_line.image_file(name, self.settings, self.kind))

    def _environment(self, file: Path) -> str:
        """What is in the environment of its containers."""
        return self._call(
            [*command_line.APPTAINER_EXEC, str(file), "bash", "-c", _ENVIRONMENT], _STARTED_S
        ).stdout

    def pull(self, name: str, children: set[int], connect_s: float | None = None) -> None:
        """See `ContainerEngine.pull`."""
        if name.startswith("/"):
            raise UsageError(f"there is no image {name}", "Name a file that is on every machine.")
        with self._making(name) as place:
            # In a cache of its own, which tells the digest; the user's would keep all of it twice.
            own = dict.fromkeys(command_line.APPTAINER_CACHES, str(place))
            settings = {**self.settings, **own}
            host = name.partition("/")[0]
            plain = ["--no-https"] if is_loopback(host.partition(":")[0]) else []
            source = f"docker://{name}"
            there = replace(self, settings=settings)
            words = ("pull", *plain, f"{place}/image", source)
            code, said = there._listened(*words, children=children, connect_s=connect_s)
            if code:
                is_host = "/" in name and set(".:") & set(host)
                host = host if is_host else "docker.io"
                raise self.refusal(
                    f"the image {name} is not on this machine and cannot be pulled",
                    said,
                    f"Check its name, or log in: `apptainer registry login --username YOU docker://{host}`.",
                )
            self._take(place, name, _digest(place / "cache/blob"))

    def load(self, name: str, archive: BufferedIOBase, children: set[int]) -> None:
        """See `ContainerEngine.load`; the archive may be of docker or podman."""
        with self._making(name) as place:
            sent, identity = place / "sent", ""
            with sent.open("wb") as file:
                shutil.copyfileobj(archive, file, _PIECE_BYTES)
            if self._is_own(sent):
                sent.rename(place / "image")
            else:
                identity = _digest_of_archive(sent)
                self._build(place, name, children)
            self._take(place, name, identity)

    def _is_own(self, file: Path) -> bool:
        return _is_file_of_apptainer(file)

    def _build(self, place: Path, name: str, children: set[int]) -> None:
        """Make an image of an archive."""
        words = ("build", f"{place}/image", f"docker-archive:{place}/sent")
        code, said = self._listened(*words, children=children, connect_s=inf)
        if code:
            raise self.refusal(f"{self.kind} does not take the image {name}", said)

    def save(self, name: str, target: str) -> None:
        """See `ContainerEngine.save`."""
        try:
            shutil.copyfile(self._file(name), target)
        except OSError as error:
            raise self.refusal(f"{self.kind} cannot save the image {name}", str(error)) from None

    def remove(self, name: str) -> None:
        """Its files; it has ended with what started it."""
        shutil.rmtree(command_line.scratch(self.settings, name), ignore_errors=True)

    def refusal(self, what: str, said: str, hint: str = "") -> TrainmasterError:
        """See `ContainerEngine.refusal`."""
        error = ContainerEngine.refusal(self, what, said, hint)
        if not isinstance(error, FullStoreError):
            return error
        advice = (
            "Free some there, or set APPTAINER_CACHEDIR (for images) and APPTAINER_TMPDIR (to make them)."
            if self.kind == command_line.APPTAINER
            else "Free some there, or set ENROOT_CACHE_PATH (for images) and ENROOT_TEMP_PATH (to make them)."
        )
        return FullStoreError(error.args[0], advice)

    @contextmanager
    def _making(self, name: str) -> Iterator[Path]:
        """A directory for what is being made, where its file is to be."""
        store = self._file(name).parent
        try:
            store.mkdir(parents=True, exist_ok=True)
            for left in store.glob(".new-*"):  # by one that was killed
                if time.time() - left.stat().st_mtime > _LEFT_S:
                    shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=".new-", dir=store, ignore_cleanup_errors=True) as place:
                yield Path(place)
        except OSError as error:
            raise self.refusal(f"the image {name} cannot be made at {store}", str(error)) from None

    def _take(self, place: Path, name: str, identity: str) -> None:
        """Put an image where it is found by its name; others may do the same."""
        suffix = self._file(name).suffix
        made, name_of_file = place / "image", f"{identity or _identity(place / 'image')}{suffix}"
        made.replace(place.parent / name_of_file)
        made.symlink_to(name_of_file)
        made.replace(self._file(name))


@dataclass(frozen=True, slots=True)
class Enroot(Apptainer):
    """The same with another program, which tells no digest and takes no archive of docker or podman."""

    def _environment(self, file: Path) -> str:
        with tempfile.TemporaryDirectory(prefix="tm-enroot-") as scratch:
            container = {"program": self.program, "settings": self.settings, "image": str(file), "mounts": ()}
            words = command_line.enroot_command(container, scratch, "/", script=_ENVIRONMENT)
            return replace(self, program=words[0])._call(words[1:], _STARTED_S).stdout

    def pull(self, name: str, children: set[int], connect_s: float | None = None) -> None:
        """See `ContainerEngine.pull`."""
        if name.startswith("/"):
            raise UsageError(f"there is no image {name}", "Name a file that is on every machine.")
        with self._making(name) as place:
            settings = {**self.settings, "ENROOT_CACHE_PATH": f"{place}/cache"}
            host, has_host, rest = name.partition("/")
            if is_loopback(host.partition(":")[0]):
                settings["ENROOT_ALLOW_HTTP"] = "y"
            is_host = bool(has_host and set(".:") & set(host))
            words = (
                "import",
                "--output",
                f"{place}/image",
                f"docker://{host}#{rest}" if is_host else f"docker://{name}",
            )
            there = replace(self, settings=settings)
            code, said = there._listened(*words, children=children, connect_s=connect_s)
            if code:
                raise self.refusal(
                    f"the image {name} is not on this machine and cannot be pulled",
                    said,
                    "Check its name, or write who you are into ~/.config/enroot/.credentials.",
                )
            self._take(place, name, _digest_in(place / "cache"))

    def _is_own(self, file: Path) -> bool:
        with file.open("rb") as opened:
            return opened.read(len(_SQUASHFS)) == _SQUASHFS

    def _build(self, place: Path, name: str, children: set[int]) -> None:
        raise UsageError(
            f"{self.kind} does not take the image {name} of another engine",
            "Push it to a registry, or make a file of it with `enroot import` and name that.",
        )


def find_engine(environ: Mapping[str, str], kinds: Sequence[str] = KINDS) -> ContainerEngine:
    """The engine that ``TRAINMASTER_CONTAINER_ENGINE`` names; else the first one that answers.

    Args:
        environ: the caller's.
        kinds: that will do.

    Raises:
        UsageError: there is none that answers.
    """
    chosen = environ.get(ENGINE_VARIABLE, "")
    if chosen and chosen not in kinds:
        what = "cannot keep tasks of others apart" if chosen in KINDS else "is no container engine"
        raise UsageError(f"{ENGINE_VARIABLE}: {chosen!r} {what}", f"Set it to {' or '.join(kinds)}.")
    settings = {name: environ[name] for name in _SETTINGS if name in environ}
    refusals = []
    for kind in [chosen] if chosen else kinds:
        names = (kind, command_line.SINGULARITY) if kind == command_line.APPTAINER else (kind,)
        path = environ.get("PATH", os.defpath)
        program = next((found for name in names if (found := shutil.which(name, path=path))), None)
        if program is None:
            refusals.append(f"{kind} is not installed")
            continue
        made = {command_line.APPTAINER: Apptainer, command_line.ENROOT: Enroot}.get(kind, ContainerEngine)
        engine = made(kind, os.path.abspath(program), settings=settings)  # noqa: PTH100
        rootless, refusal = _try(engine)
        if not refusal:
            return replace(engine, rootless=rootless)
        refusals.append(f"{kind} does not answer ({refusal})")
    raise UsageError(
        f"`container` needs {', '.join(kinds[:-1])} or {kinds[-1]}: {'; '.join(refusals)}",
        "Install one of them; start the docker daemon (`systemctl start docker`) or join the group `docker`. "
        f"{ENGINE_VARIABLE} chooses between them.",
    )


def last_words(said: str) -> str:
    """What an engine gives as the reason, on one line."""
    said = _COLOUR.sub("", said)
    lines = [line.removeprefix("FATAL:").strip() for line in said.splitlines() if line.strip()]
    useful = [line for line in lines if not line.startswith(("See 'docker", "Run 'docker"))]
    return (useful or lines or ["it said nothing"])[-1].removeprefix("Error response from daemon: ")


def _try(engine: ContainerEngine) -> tuple[bool, str]:
    """Whether an engine is rootless, and why it is of no use."""
    if engine.kind in command_line.WITHOUT_DAEMON:
        code, said = engine.ask("version")
        return True, last_words(said) if code else ""
    if engine.kind == "podman":
        code, said = engine.ask("info", "--format", "{{.Host.Security.Rootless}}")
        return said.strip() == "true", last_words(said) if code else ""
    code, said = engine.ask("info", "--format", "{{json .SecurityOptions}}")
    if not code and said.strip() in ("", "null"):  # some versions fail with exit code 0
        code, said = engine.ask("version")
        code = code or 1
    return not code and "rootless" in said, last_words(said) if code else ""


def _plain_id(text: str) -> str:
    """Docker says which hash it is, podman does not.

    >>> _plain_id("sha256:12ab")
    '12ab'
    """
    return text.removeprefix("sha256:")


def _listen(process: subprocess.Popen[bytes], connect_s: float) -> str:
    """The output of a pull; ends it if nothing comes of it."""
    assert process.stdout is not None
    said, give_up_at = "", time.monotonic() + connect_s
    with process.stdout as pipe:
        for _, piece in said_by(process, pipe, look_s=_LOOK_S):
            said = (said + piece.decode("utf-8", "replace"))[-_SAID:]
            if time.monotonic() >= give_up_at and not _UNDER_WAY.search(said):
                _end(process)
                return f"no registry has answered within {connect_s:.0f} s"
    return said


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to it and its helpers, unless it has ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _is_file_of_apptainer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(_ID.stop)[_MAGIC_AT:].startswith(_MAGIC)


def _identity(path: Path) -> str:
    """What tells an image from others of the same name.

    Raises:
        OSError: it cannot be read.
    """
    if path.is_dir() or not _is_file_of_apptainer(path):
        with suppress(IsADirectoryError), path.open("rb") as file:
            if (head := file.read(_SUPERBLOCK_BYTES)).startswith(_SQUASHFS):
                return sha256(head).hexdigest()
        return f"{path.stat().st_mtime_ns:x}"
    with path.open("rb") as file:
        return file.read(_ID.stop)[_ID].hex()


def _digest(blobs: Path) -> str:
    """Which image was pulled into an empty cache; empty if that is not told."""
    try:
        (entry,) = parsed_json((blobs / "index.json").read_bytes())["manifests"]
        manifest = parsed_json((blobs / "blobs" / entry["digest"].replace(":", "/")).read_bytes())
        return str(manifest["config"]["digest"]).rpartition(":")[2]
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _digest_in(cache: Path) -> str:
    """Which image was imported into an empty cache: the name of what is JSON; the others are layers."""
    for file in cache.glob("?" * 64):
        done = subprocess.run(["zstd", "-dcq", file], capture_output=True, check=False)
        if done.stdout.startswith(b"{"):
            return file.name
    return ""


def _digest_of_archive(path: Path) -> str:
    """Which image is in an archive of docker or podman; empty if that is not told."""
    import tarfile

    try:
        with tarfile.open(path) as archive, archive.extractfile("manifest.json") or path.open("rb") as file:
            (entry,) = parsed_json(file.read())
            return Path(entry["Config"]).stem
    except (OSError, ValueError, KeyError, TypeError, tarfile.TarError):
        return ""
