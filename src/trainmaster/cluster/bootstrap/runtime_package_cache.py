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
from dataclasses import asdict
from pathlib import Path
from typing import Final

import trainmaster
from trainmaster.cluster.bootstrap.runtime_package import RuntimePackage, make_runtime_packages
from trainmaster.spec.plain_json import parsed_json, typed
from trainmaster.spec.private_files import write_private

#: Changes when what is written changes, or what a package is made of.
_FORMAT: Final = 2
_NAME_CHARACTERS: Final = 16

Stamp = tuple[int, int, int]
_Places = list[tuple[str, Stamp]]


def cached_runtime_packages(
    cache: Path, roots: Sequence[str], imports: Sequence[str], *, drives: bool = False
) -> tuple[RuntimePackage, RuntimePackage]:
    """What `make_runtime_packages` gives, found out again only if a file has changed since the last time.

    Args:
        cache: a directory for what can be made again.
        roots: see `make_runtime_packages`.
        imports: see there.
        drives: see there.

    Raises:
        MissingPartError: something is not installed here.
    """
    about = [
        _FORMAT,
        roots,
        imports,
        *(["drives"] if drives else []),
        sys.prefix,
        sys.version,
        str(Path(trainmaster.__file__).parent),
    ]
    name = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:_NAME_CHARACTERS]
    path = cache / f"kits-{name}.json"
    found = _recall(path)
    if found is None:
        places, begun_ns = _places(), time.time_ns()
        found = make_runtime_packages(roots, imports, drives=drives)
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
