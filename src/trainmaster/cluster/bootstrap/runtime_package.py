"""`RuntimePackage`: what our runtime consists of: taken from this installation, packed for hosts.

Two layers, as one changes often and the other is large: the libraries (*packages*), and Trainmaster itself
with the interpreter's directory (*runtime*). Each is named by what is in it, so that what a host has is not
sent again. What is imported when a node starts is sent with its bytecode: every host would compile it again,
for 2 to 3 s of CPU.

`cached_runtime_packages`: what hosts need, without reading hundreds of megabytes each time to name it.

What was found is kept with the size, time of change and number of every file, and of the directories in which
a new one would show. As long as all of them are what they were, so are the packages.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import marshal
import os
import sys
import sysconfig
import tarfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Final

import trainmaster
from trainmaster.dataclass import dataclass, field
from trainmaster.spec.errors import MissingPartError, imports_of
from trainmaster.spec.plain_json import parsed_json, typed
from trainmaster.spec.private_files import write_private

#: Changes when what is written changes, or what a package is made of.
_FORMAT: Final = 2
_CACHED_CHARACTERS: Final = 16

Stamp = tuple[int, int, int]
_Places = list[tuple[str, Stamp]]


def cached_runtime_packages(
    cache: Path,
    roots: Sequence[str],
    imports: Sequence[str],
    unused: Sequence[str] = (),
    *,
    drives: bool = False,
) -> tuple[RuntimePackage, RuntimePackage]:
    """What `make_runtime_packages` gives, found out again only if a file has changed since the last time.

    Args:
        cache: a directory for what can be made again.
        roots: see `make_runtime_packages`.
        imports: see there.
        unused: see there.
        drives: see there.

    Raises:
        MissingPartError: something is not installed here.
    """
    about = [
        _FORMAT,
        roots,
        imports,
        unused,
        *(["drives"] if drives else []),
        sys.prefix,
        sys.version,
        str(Path(trainmaster.__file__).parent),
    ]
    name = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:_CACHED_CHARACTERS]
    path = cache / f"kits-{name}.json"
    found = _recall(path)
    if found is None:
        places, begun_ns = _places(), time.time_ns()
        found = make_runtime_packages(roots, imports, unused, drives=drives)
        with contextlib.suppress(OSError):  # a full disk: it is found out again
            _write(path, found, places, begun_ns)
    return found


def _recall(path: Path) -> tuple[RuntimePackage, RuntimePackage] | None:
    try:
        data = parsed_json(path.read_bytes())
        if any(_stamp(place) != stamp for place, stamp in typed(_Places, data["places"])):
            return None
        first, *others = typed(list[RuntimePackage], data["kits"])
    except (OSError, ValueError, LookupError, TypeError):  # also one that is gone
        return None
    return first, others[0] if others else first


def _write(
    path: Path, packages: tuple[RuntimePackage, RuntimePackage], places: _Places, begun_ns: int
) -> None:
    different = packages[:1] if packages[0] is packages[1] else packages
    layers = [layer for package in different for layer in (package.packages, package.source)]
    stamps = {str(file): _stamp(file) for layer in layers for _, file in layer.files}
    if max((changed_ns for _, changed_ns, _ in stamps.values()), default=0) >= begun_ns:
        return  # somebody has written to a file while it was read: what is kept must be what was read
    data = {"places": [*places, *stamps.items()], "kits": [asdict(package) for package in different]}
    write_private(path, json.dumps(data, separators=(",", ":"), default=str).encode())


def _places() -> list[tuple[str, Stamp]]:
    """Directories in which something new would show: of installed libraries, and of our own source."""
    own = Path(trainmaster.__file__).parent
    found = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *_directories(own)]
    return [(place, _stamp(place)) for place in dict.fromkeys(found)]


def _directories(root: Path) -> Iterable[str]:
    for place, names, _ in os.walk(root):
        names[:] = [name for name in names if name != "__pycache__"]
        yield place


def _stamp(path: str | Path) -> Stamp:
    status = os.stat(path)  # noqa: PTH116 - of thousands, one after the other
    return status.st_size, status.st_mtime_ns, status.st_ino


#: Changes when what is in a layer is arranged in another way.
_ARRANGEMENT: Final = "3"
#: What a node cannot do without; what its engine needs is added.
ROOTS: Final = ("trainmaster",)
#: Besides, where the host has GPUs.
GPU_ROOTS: Final = ("nvidia-ml-py",)
#: What is tried on the host at the end; a supervisor needs no more.
IMPORTS: Final = ("psutil", "obstore", "trainmaster.spec.errors")
#: Of each kind, in the cache here.
_KEPT_ARCHIVES: Final = 4
_COMPRESSION: Final = 1  # a local network is faster than better compression
_NAME_CHARACTERS: Final = 20
#: Packages of ours that nodes have no use for, and those that one which drives a run needs: no floor that a
#: node's programs are on imports them. Half of all files; to make each takes a host half a millisecond.
_NOT_FOR_NODES: Final = ("lab", "testing")
_FOR_DRIVERS: Final = ("api", "cli", "service", "web")
#: What Trainmaster needs where it drives runs only.
_NOT_NEEDED_ON_NODES: Final = frozenset({"alembic", "rich", "sqlalchemy", "typer"})
#: By the kind of the layer: where modules are that a node imports when it starts; and where there are so many
#: others that to send their bytecode takes longer than to compile the few that somebody may import.
_COMPILED: Final = {
    "packages": ("",),
    "runtimes": tuple(
        f"trainmaster/{start}" for start in ("__init__", "dataclass", "executors/", "lazy", "spec/")
    ),
}
_NOT_COMPILED: Final = ("numpy/", "pathspec/", "ruamel/")
#: In the header of bytecode that is not compared with its source (PEP 552): a layer never changes.
_UNCHECKED: Final = 0b01
_packing = threading.Lock()


@dataclass(frozen=True, slots=True)
class RuntimeLayer:
    """Files under one name.

    Attributes:
        kind: directory below the root on the host: ``packages``, ``runtimes`` or ``code``.
        name: follows from what is in it.
        files: (path in the layer, file here).
        size_bytes: of all files, unpacked.
    """

    kind: str
    name: str
    files: tuple[tuple[str, Path], ...] = field(repr=False)
    size_bytes: int

    @property
    def key(self) -> str:
        """As `HostFacts.have` lists it."""
        return f"{self.kind}/{self.name}"

    @property
    def compiled(self) -> list[tuple[str, Path]]:
        """Those of its files that are sent with their bytecode."""
        places = _COMPILED.get(self.kind, ())
        return [
            (path, file)
            for path, file in self.files
            if path.endswith(".py") and path.startswith(places) and not path.startswith(_NOT_COMPILED)
        ]

    @property
    def members(self) -> int:
        """How many files the archive has."""
        return len(self.files) + len(self.compiled)

    def tops(self) -> dict[str, str]:
        """What is at the top of the layer, and where that is here; empty if it is not in one piece here.

        It need not all be in one directory: some packages bring libraries of their own.
        """
        found: dict[str, str] = {}
        for path, file in self.files:
            name, _, rest = path.partition("/")
            place = str(file).removesuffix(f"/{rest}") if rest else str(file)
            if found.setdefault(name, place) != place or not place.endswith(f"/{name}"):
                return {}
        return found

    def stamps(self) -> list[tuple[str, int, int]]:
        """Path, size and time of change (nanoseconds) of each file: enough to know the very same ones by."""
        found = []
        for path, file in self.files:
            status = file.stat()
            found.append((path, status.st_size, status.st_mtime_ns))
        return found

    def archive(self, cache: Path) -> Path:
        """The layer as one file, made unless it is there.

        Args:
            cache: where such files are kept.
        """
        place = cache / f"{self.kind}-{self.name}.tar.gz"
        with _packing:  # many hosts ask at the same time
            if not place.exists():
                cache.mkdir(parents=True, exist_ok=True)
                draft = cache / f".{place.name}.{os.getpid()}"
                try:
                    with tarfile.open(draft, "w:gz", compresslevel=_COMPRESSION, dereference=True) as archive:
                        for path, file in self.files:
                            archive.add(file, path, recursive=False, filter=_nobodys)
                        for path, file in self.compiled:
                            _add_bytecode(archive, path, file)
                    draft.replace(place)
                finally:
                    draft.unlink(missing_ok=True)
                self._tidy(cache)
            os.utime(place)
        return place

    def _tidy(self, cache: Path) -> None:
        """Keep what was asked for last; older ones can be made again."""
        archives = sorted(cache.glob(f"{self.kind}-*.tar.gz"), key=lambda path: path.stat().st_mtime)
        for old in archives[:-_KEPT_ARCHIVES]:
            old.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class RuntimePackage:
    """Our runtime for one kind of host.

    Attributes:
        minor: version of Python, such as (3, 11). soabi: what its compiled modules are built for.
        packages: the libraries. source: Trainmaster itself.
        pins: the libraries as pip takes them, for hosts with another Python.
        imports: modules that must be importable in the end, and libraries of packages that must be loadable
            (``package/library.so``), where to import the package would take long.
    """

    minor: tuple[int, int]
    soabi: str
    packages: RuntimeLayer
    source: RuntimeLayer
    pins: tuple[str, ...]
    imports: tuple[str, ...]


def make_runtime_package(
    roots: Sequence[str] = ROOTS,
    imports: Sequence[str] = IMPORTS,
    unused: Sequence[str] = (),
    *,
    drives: bool = False,
    read: dict[Path, bytes] | None = None,
) -> RuntimePackage:
    """Find what a host needs of this installation.

    Args:
        roots: distributions, perhaps with extras, that come with all that they need.
        imports: modules that are tried on the host at the end.
        unused: folders of libraries that are left out, such as ``package/part/``.
        drives: the host is to make runtime packages of its own installation in turn.
        read: see `make_layer`.

    Raises:
        MissingPartError: something is not installed here.
    """
    soabi = str(sysconfig.get_config_var("SOABI"))
    needed = closure(roots)
    packages = make_layer("packages", _files_of(needed, tuple(unused), drives=drives), soabi, read=read)
    pins = tuple(sorted(f"{dist.name}=={dist.version}" for dist in needed))
    return RuntimePackage(
        minor=sys.version_info[:2],
        soabi=soabi,
        packages=packages,
        source=make_layer("runtimes", _own_files(drives=drives), read=read),
        pins=pins,
        imports=tuple(imports),
    )


def make_runtime_packages(
    roots: Sequence[str] = ROOTS,
    imports: Sequence[str] = IMPORTS,
    unused: Sequence[str] = (),
    *,
    drives: bool = False,
) -> tuple[RuntimePackage, RuntimePackage]:
    """The packages for hosts without and with GPUs; the same where nothing for GPUs is installed here."""
    read: dict[Path, bytes] = {}  # they share all but a few of hundreds of megabytes
    plain = make_runtime_package(roots, imports, unused, drives=drives, read=read)
    try:
        return plain, make_runtime_package((*roots, *GPU_ROOTS), imports, unused, drives=drives, read=read)
    except MissingPartError:
        return plain, plain


def closure(roots: Iterable[str]) -> list[metadata.Distribution]:
    """Distributions that are installed here, and all that they need, without Trainmaster itself.

    Raises:
        MissingPartError: one is not installed.
    """
    with imports_of("hosts", "a host"):
        from packaging.requirements import Requirement
        from packaging.utils import canonicalize_name

    found: dict[str, metadata.Distribution] = {}
    asked: set[tuple[str, str]] = set()
    waiting = [(Requirement(root), "you") for root in roots]
    while waiting:
        wanted, whose = waiting.pop()
        name = canonicalize_name(wanted.name)
        if whose == "trainmaster" and name in _NOT_NEEDED_ON_NODES:
            continue
        try:
            dist = metadata.distribution(wanted.name)
        except metadata.PackageNotFoundError:
            raise MissingPartError(
                f"{wanted.name} is needed by {whose} and not installed here, so it cannot be sent to hosts",
                f"pip install '{wanted}'",
            ) from None
        if name != "trainmaster":
            found[name] = dist
        for extra in ("", *wanted.extras):
            if (name, extra) in asked:
                continue
            asked.add((name, extra))
            for text in dist.requires or ():
                need = Requirement(text)
                if need.marker is None or need.marker.evaluate({"extra": extra}):
                    waiting.append((need, wanted.name))
    return [found[name] for name in sorted(found)]


def make_layer(
    kind: str, files: Iterable[tuple[str, Path]], *salt: str, read: dict[Path, bytes] | None = None
) -> RuntimeLayer:
    """Name files by what they hold.

    Args:
        kind: see `RuntimeLayer`.
        files: (path in the layer, file here).
        salt: what else makes a difference.
        read: digests of files that were read before; what is read now is added.
    """
    read = {} if read is None else read
    listed = sorted(files)
    digest = hashlib.sha256(json.dumps([_ARRANGEMENT, kind, *salt]).encode())
    size = 0
    for path, file in listed:
        status = file.stat()
        size += status.st_size
        digest.update(f"\0{path}\0{status.st_mode & 0o111}\0".encode())
        if file not in read:
            with file.open("rb") as stream:
                read[file] = hashlib.file_digest(stream, "sha256").digest()
        digest.update(read[file])
    return RuntimeLayer(kind, digest.hexdigest()[:_NAME_CHARACTERS], tuple(listed), size)


def code_layer(directory: Path) -> RuntimeLayer:
    """The user's files, all that is in a directory: a snapshot of their code, which never changes."""
    return make_layer("code", tree(directory))


def pieces(file: Path, size: int = 1 << 18) -> Iterator[bytes]:
    """A file, bit by bit."""
    with file.open("rb") as stream:
        while piece := stream.read(size):
            yield piece


def tree(directory: Path, skip: Callable[[Path], bool] = lambda _: False) -> Iterator[tuple[str, Path]]:
    """Every file below a directory, with its path in it."""
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not skip(path):
            yield path.relative_to(directory).as_posix(), path


def _files_of(
    dists: Iterable[metadata.Distribution], unused: tuple[str, ...], *, drives: bool
) -> Iterator[tuple[str, Path]]:
    unwanted = ("direct_url.json",) if drives else ("RECORD", "direct_url.json")
    for dist in dists:
        if dist.files is None:
            raise MissingPartError(
                f"{dist.name} was not installed by pip, so nobody knows which files belong to it",
                f"Install Trainmaster into a venv of its own, or: pip install --force-reinstall {dist.name}",
            )
        for entry in dist.files:
            # `..` leads to scripts for this very machine; bytecode may be somebody else's, or damaged.
            if (
                ".." in entry.parts
                or "__pycache__" in entry.parts
                or "tests" in entry.parts
                or entry.as_posix().startswith(unused)
                or entry.name in unwanted
            ):
                continue
            path = Path(str(dist.locate_file(entry)))
            if path.is_file():
                yield entry.as_posix(), path


def _own_files(*, drives: bool) -> Iterator[tuple[str, Path]]:
    """Trainmaster as it is imported here, be it installed or a source tree."""
    source = Path(trainmaster.__file__).parent
    unused = _NOT_FOR_NODES if drives else _NOT_FOR_NODES + _FOR_DRIVERS
    for name, file in tree(source, lambda path: "__pycache__" in path.parts):
        if name.startswith(tuple(f"{package}/" for package in unused)):
            continue
        yield f"trainmaster/{name}", file
    dist = metadata.distribution("trainmaster")
    names = ("METADATA", "entry_points.txt", *(("RECORD",) if drives else ()))
    for entry in dist.files or ():
        if entry.parent.suffix == ".dist-info" and entry.name in names:
            yield entry.as_posix(), Path(str(dist.locate_file(entry)))


def _add_bytecode(archive: tarfile.TarFile, path: str, file: Path) -> None:
    """Compile a module; what cannot be compiled gets a file that Python does not take for bytecode."""
    source, code = file.read_bytes(), b""
    with warnings.catch_warnings(action="ignore"):
        try:
            module = compile(source, path, "exec", dont_inherit=True, optimize=0)
            code = b"".join(
                (
                    importlib.util.MAGIC_NUMBER,
                    _UNCHECKED.to_bytes(4, "little"),
                    importlib.util.source_hash(source),
                    marshal.dumps(module),
                )
            )
        except (SyntaxError, ValueError):
            pass
    folder, _, name = path.rpartition("/")
    cached = f"__pycache__/{name.removesuffix('.py')}.{sys.implementation.cache_tag}.pyc"
    member = tarfile.TarInfo(f"{folder}/{cached}" if folder else cached)
    member.size = len(code)
    archive.addfile(member, io.BytesIO(code))


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = int(member.mtime)  # a fraction would need a header of its own
    return member
