"""`Runtime`: this machine's Python and frameworks as the hosts see them, at the same paths, read-only."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import trainmaster
from trainmaster.dataclass import dataclass
from trainmaster.lab.errors import LabError
from trainmaster.lab.image import only_one
from trainmaster.lab.shell import call

#: Counted up when what is in a layer changes.
RECIPE: Final = 2
_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: What Python loads from the system; a host without one of them would find out in the middle of a run.
_PROBE: Final = "import bz2, ctypes, hashlib, lzma, sqlite3, ssl, zlib"


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the hosts share of this machine: Python, its environment and Trainmaster, nothing else.

    Attributes:
        shared: directories and files, at the same path on the hosts.
        python: the interpreter that runs this.
        path: ``PATH`` of the hosts.
    """

    shared: tuple[str, ...]
    python: str
    path: str

    @classmethod
    def of_machine(cls) -> Runtime:
        """What runs this very process."""
        base, prefix = Path(sys.base_prefix), Path(sys.prefix)
        wanted = []
        if base.is_relative_to("/usr"):  # the system's own Python: not all of /usr, which is the image's
            names = sysconfig.get_config_vars("LIBDIR", "INSTSONAME")
            library = Path(*map(str, names)) if all(names) else Path("/nonexistent")
            wanted += [Path(sysconfig.get_path("stdlib")), Path(os.path.realpath(sys.executable)), library]
        else:
            wanted.append(base)
        if prefix != base:
            wanted.append(prefix)
        wanted.append(Path(trainmaster.__file__).parent)
        wanted += [Path(os.path.realpath(path)) for path in wanted]
        return cls(
            shared=_outermost([path for path in wanted if path.exists()]),
            python=sys.executable,
            path=f"{Path(sys.executable).parent}:{_SYSTEM_PATH}",
        )

    def key(self, image: Path) -> str:
        """Its name in the cache."""
        text = "\n".join((str(RECIPE), image.name, *self.shared, self.python, sys.version))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def ensure(self, image: Path, cache: Path) -> Path:
        """Make the layer that lies on an image, unless it is there: mount points, libraries, links.

        Raises:
            LabError: this Python does not run on that image.
        """
        key = self.key(image)
        place = cache / "layers" / key
        with only_one(cache / "layers", key):
            if place.is_dir():
                return place
            draft = Path(tempfile.mkdtemp(prefix=f"{key}.partial-", dir=place.parent))
            try:
                draft.chmod(0o755)
                self._fill(draft, image)
                self._probe(draft, image)
                draft.rename(place)
            finally:
                if draft.exists():
                    shutil.rmtree(draft, ignore_errors=True)
        return place

    def _fill(self, layer: Path, image: Path) -> None:
        for text in self.shared:
            path = Path(text)
            _directories(layer, image, path if path.is_dir() else path.parent)
            if not path.is_dir():
                (layer / text.lstrip("/")).touch()
        multiarch = Path("usr/lib") / f"{os.uname().machine}-linux-gnu"
        for library in self._libraries():
            target = multiarch / library.name
            if not _in_image(image, target):
                _directories(layer, image, Path("/") / multiarch)
                shutil.copy2(library, layer / target)
        for link in self._links():
            _directories(layer, image, link.parent)
            place = layer / str(link).lstrip("/")
            if not place.is_symlink() and not _in_image(image, link.relative_to("/")):
                place.symlink_to(link.readlink())
        # A link would lose the virtual environment: Python looks for it beside the name it was called by.
        script = f'#!/bin/sh\nexec {self.python} "$@"\n'
        _directories(layer, image, Path("/usr/bin"))
        for name in ("python3", "python"):
            if not _in_image(image, Path("usr/bin") / name) and not (layer / "usr/bin" / name).exists():
                (layer / "usr/bin" / name).write_text(script)
                (layer / "usr/bin" / name).chmod(0o755)

    def _links(self) -> list[Path]:
        """Links that lead from the interpreter's name to its file, and that hosts would not have.

        Debian's own, ``/usr/bin/python3``, is one: a virtual environment that was made with it needs it.
        """
        found = []
        path = Path(self.python)
        while path.is_symlink():
            if not self._is_shared(path):
                found.append(path)
            path = Path(os.path.normpath(path.parent / path.readlink()))
        return found

    def _libraries(self) -> list[Path]:
        """What this Python and its own modules load from the system."""
        modules = sorted(Path(sysconfig.get_path("stdlib")).glob("lib-dynload/*.so"))
        text = call(["ldd", os.path.realpath(sys.executable), *modules], check=False)
        found = {}
        for line in text.splitlines():
            _, arrow, right = line.partition(" => ")
            path = Path(right.split(" (")[0].strip()) if arrow else None
            if path is not None and path.is_absolute() and not self._is_shared(path):
                found[path.name] = path
        return list(found.values())

    def _is_shared(self, path: Path) -> bool:
        return any(path.is_relative_to(shared) for shared in self.shared)

    def _probe(self, layer: Path, image: Path) -> None:
        script = (
            'set -e; r=$(mktemp -d); mount -t overlay overlay -o "lowerdir=$1" "$r"; python=$2; shift 2\n'
            'for path in "$@"; do mount --bind "$path" "$r$path"; done\n'
            f'exec chroot "$r" "$python" -B -c "{_PROBE}"'
        )
        directory = tempfile.mkdtemp(prefix="tmlab-")
        command = ["env", f"TMPDIR={directory}", "unshare", "--mount", "--propagation", "private"]
        command += ["bash", "-c", script, "bash", f"{layer}:{image}", self.python, *self.shared]
        try:
            call(command)
        except LabError as error:
            raise LabError(
                f"this Python does not run on the image {image.name}: {str(error).partition(': ')[2]}",
                "Choose a --suite that is not older than this machine's system.",
            ) from error
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _outermost(paths: Sequence[Path]) -> tuple[str, ...]:
    """Without those that lie in another one; a mount point cannot be made below a read-only mount."""
    unique = list(dict.fromkeys(paths))
    return tuple(
        str(path)
        for path in unique
        if not any(path != other and path.is_relative_to(other) for other in unique)
    )


def _directories(layer: Path, image: Path, directory: Path) -> None:
    """A directory and those above it, open to everybody, else as the image has them."""
    for part in [*reversed(directory.parents), directory][1:]:
        inner = str(part).lstrip("/")
        below = image / inner
        if below.is_symlink():
            # /lib and /bin point into /usr in the image, and a directory here would hide that.
            _directories(layer, image, Path(os.path.normpath(part.parent / below.readlink())))
            continue
        target = layer / inner
        target.mkdir(exist_ok=True)
        target.chmod((below.stat().st_mode & 0o7777 if below.is_dir() else 0o755) | 0o111)


def _in_image(image: Path, path: Path) -> bool:
    return os.path.lexists(image / path)
