"""`cached_runtime_packages`: what hosts need, without reading hundreds of megabytes each time to name it.

What was found is kept with the size, time of change and number of every file, and of the directories in which
a new one would show. As long as all of them are what they were, so are the packages.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import sysconfig
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import trainmaster
from trainmaster.cluster.bootstrap.runtime_package import RuntimeLayer, RuntimePackage, make_runtime_packages
from trainmaster.spec.plain_json import parsed_json, typed

#: Changes when what is written changes, or what a package is made of.
_FORMAT: Final = 2
_NAME_CHARACTERS: Final = 16

Stamp = tuple[int, int, int]
_Places = list[tuple[str, Stamp]]
_Files = list[tuple[str, str, Stamp]]


def cached_runtime_packages(
    cache: Path, roots: Sequence[str], imports: Sequence[str]
) -> tuple[RuntimePackage, RuntimePackage]:
    """What `make_runtime_packages` gives, found out again only if a file has changed since the last time.

    Args:
        cache: a directory for what can be made again.
        roots: see `make_runtime_packages`.
        imports: see there.

    Raises:
        MissingPartError: something is not installed here.
    """
    about = [_FORMAT, roots, imports, sys.prefix, sys.version, str(Path(trainmaster.__file__).parent)]
    name = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:_NAME_CHARACTERS]
    path = cache / f"kits-{name}.json"
    found = _recall(path)
    if found is None:
        places, begun_ns = _places(), time.time_ns()
        found = make_runtime_packages(roots, imports)
        with contextlib.suppress(OSError):  # a full disk: it is found out again
            _write(path, found, places, begun_ns)
    return found


def _recall(path: Path) -> tuple[RuntimePackage, RuntimePackage] | None:
    try:
        data = parsed_json(path.read_bytes())
        if any(_stamp(place) != tuple(stamp) for place, stamp in typed(_Places, data["places"])):
            return None
        runtime_packages = [_package(typed(dict[str, Any], row)) for row in data["kits"]]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    if not runtime_packages or any(package is None for package in runtime_packages):
        return None
    first, *others = (package for package in runtime_packages if package is not None)
    return first, others[0] if others else first


def _package(row: dict[str, Any]) -> RuntimePackage | None:
    packages, source = _layer(row["packages"]), _layer(row["source"])
    if packages is None or source is None:
        return None
    return RuntimePackage(
        minor=typed(tuple[int, int], row["minor"]),
        soabi=typed(str, row["soabi"]),
        packages=packages,
        source=source,
        pins=typed(tuple[str, ...], row["pins"]),
        imports=typed(tuple[str, ...], row["imports"]),
    )


def _layer(row: dict[str, Any]) -> RuntimeLayer | None:
    """The layer, if its files are what they were."""
    files = []
    for name, file, stamp in typed(_Files, row["files"]):
        if _stamp(file) != tuple(stamp):
            return None
        files.append((name, Path(file)))
    kind, name = typed(str, row["kind"]), typed(str, row["name"])
    return RuntimeLayer(kind, name, tuple(files), typed(int, row["size_bytes"]))


def _write(
    path: Path,
    runtime_packages: tuple[RuntimePackage, RuntimePackage],
    places: list[tuple[str, Stamp]],
    begun_ns: int,
) -> None:
    different = runtime_packages[:1] if runtime_packages[0] is runtime_packages[1] else runtime_packages
    rows = [_row(package) for package in different]
    changed_ns = (
        stamp[1] for row in rows for kind in ("packages", "source") for *_, stamp in row[kind]["files"]
    )
    if max(changed_ns, default=0) >= begun_ns:
        return  # somebody has written to a file while it was read: what is kept must be what was read
    data = {"places": places, "kits": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        draft.write_text(json.dumps(data, separators=(",", ":")))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _row(package: RuntimePackage) -> dict[str, Any]:
    return {
        "minor": package.minor,
        "soabi": package.soabi,
        "pins": package.pins,
        "imports": package.imports,
        "packages": _layer_row(package.packages),
        "source": _layer_row(package.source),
    }


def _layer_row(layer: RuntimeLayer) -> dict[str, Any]:
    return {
        "kind": layer.kind,
        "name": layer.name,
        "size_bytes": layer.size_bytes,
        "files": [(name, str(file), _stamp(file)) for name, file in layer.files],
    }


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
