"""Data that must be brought here before members start: volumes, URLs, sets that ship with a library."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from trainmaster.artifacts import fetch
from trainmaster.control.attempt.data_urls import fetch_url, url_directory
from trainmaster.control.decide.store_verdicts import NoticedAt, StoreVerdict, verdict
from trainmaster.dataclass import dataclass
from trainmaster.objects import ObjectStore
from trainmaster.objects.errors import (
    trouble_of,
)
from trainmaster.objects.plugins import package_of
from trainmaster.spec.errors import (
    MissingPartError,
    NotFoundError,
    PublishError,
    TrainmasterError,
    UsageError,
)
from trainmaster.spec.facts import Fact, RunFacts
from trainmaster.spec.locking import locked

if TYPE_CHECKING:
    from trainmaster.spec import DataSource

#: Where volumes appear, beside a run's other data; see `volume_place`.
_VOLUME_PLACE: Final = re.compile(r"volume-[0-9a-f]{12}")
#: Where the HDFS of a run lies, beside its other data.
HDFS: Final = "hdfs"
#: Before the name of a built-in set, where no volume of that name is meant: none can be called so.
BUILT_IN_PREFIX: Final = "built-in:"


class DataRequirement(NamedTuple):
    """What must be installed where data are brought from.

    Attributes:
        package: as pip takes it.
        modules: that it brings.
    """

    package: str
    modules: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """Those of its modules that are not here."""
        return [name for name in self.modules if importlib.util.find_spec(name) is None]


_SCIKIT_LEARN: Final = DataRequirement("scikit-learn", ("sklearn",))
#: Sets that are fetched need nothing.
_NOTHING: Final = DataRequirement("")
_VOLUMES: Final = DataRequirement("trainmaster[volumes]", ("pyarrow", "blake3"))


def parts_of(source: DataSource) -> list[DataRequirement]:
    """What one entry of ``data`` needs on the machine that drives the run, beside what each driver has.

    A short name of a built-in set may mean a volume: both, as far as they are here.
    """
    if source.url is not None or source.model_uri is not None:
        return _stores_of(source.url or source.model_uri or "")
    if source.volume is None:  # a directory that is part of the code, models on the run's own store
        return []
    built_in = BUILT_IN.get(source.volume.removeprefix(BUILT_IN_PREFIX))
    if built_in is None:
        return [_VOLUMES, *_stores_of(source.volume)]
    needed = [built_in.part] if built_in.part.package else []
    if source.volume.startswith(BUILT_IN_PREFIX):
        return needed
    return [part for part in (*needed, _VOLUMES) if not part.missing]


def _stores_of(url: str) -> list[DataRequirement]:
    package = package_of(url)
    return [] if package is None else [DataRequirement(package)]


def volume_url(name: str, store_url: str) -> str:
    """The address of a volume: short names lie under the home's store.

    >>> volume_url("cifar10@3", "s3://b/x"), volume_url("s3://other/v", "s3://b/x")
    ('s3://b/x/volumes/cifar10@3', 's3://other/v')
    """
    return name if "://" in name or name.startswith(("/", ".")) else f"{store_url.rstrip('/')}/volumes/{name}"


def volume_place(name: str) -> str:
    """What the directory is called in which a volume appears.

    >>> volume_place("cifar10@3")
    'volume-d57468440bcc'
    """
    return f"volume-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def require_volume(name: str, address: str) -> None:
    """Refuse a volume that is not there, before anything starts; a store that does not answer is no refusal.

    Args:
        name: as in the recipe.
        address: see `volume_url`.

    Raises:
        UsageError: there is no such volume, or no such version of it, or its store refuses our credentials.
        MissingPartError: it is a built-in set, and the library that it ships with is not installed.
    """
    from trainmaster.volumes.packed.addresses import volume_address
    from trainmaster.volumes.packed.head import read_head

    built_in = BUILT_IN.get(name.removeprefix(BUILT_IN_PREFIX))
    if built_in is not None and (name.startswith(BUILT_IN_PREFIX) or not built_in.part.missing):
        return
    found = volume_address(address)
    try:
        read_head(ObjectStore(found.url), found.version)
    except NotFoundError as error:
        if built_in is not None:
            raise _lacking(name, built_in.part) from error
        raise _no_volume(name, found.version, error) from error
    except PublishError as error:
        if verdict(NoticedAt.CHECK, trouble_of(error)) is StoreVerdict.USER_ERROR:
            raise UsageError(error.args[0], error.hint) from error


def _no_volume(name: str, version: int | None, error: NotFoundError) -> UsageError:
    plain = name.rpartition("@")[0] or name
    hint = f"`trainmaster volume ls` lists what is there, `trainmaster volume push DIR {plain}` makes one."
    if version is not None:  # it may be there in others
        hint = f"{error.hint} {hint}"
    return UsageError(f"there is no volume {name}: {error.args[0].rstrip('.')}", hint)


def pinned_volume(name: str, address: str, facts: RunFacts) -> str | None:
    """Which version of a volume all attempts of a run see: the one that the first look has seen.

    Args:
        name: as in the recipe.
        address: see `volume_url`.
        facts: of the run.

    Returns:
        Its URI with its number; None for a built-in set.

    Raises:
        UsageError: there is no such volume.
        TrainmasterError: the store cannot be read, or nothing can be recorded.
    """
    if name.startswith(BUILT_IN_PREFIX):
        return None
    uri = facts.settled(Fact.VOLUME, name, lambda: _newest(name, address))
    return None if uri.startswith(BUILT_IN_PREFIX) else uri


def _newest(name: str, address: str) -> str:
    """The URI of a volume, with the newest version unless one is named; or of a built-in set."""
    from trainmaster.volumes.packed.addresses import VolumeAddress, volume_address
    from trainmaster.volumes.packed.head import read_head

    found = volume_address(address)
    store = ObjectStore(found.url)
    try:
        head = read_head(store, found.version)
    except NotFoundError as error:
        if name in BUILT_IN:
            return f"{BUILT_IN_PREFIX}{name}"
        raise _no_volume(name, found.version, error) from error
    return str(VolumeAddress(store.url, head.version))


def provide_volume(
    name: str, address: str, directory: Path, facts: RunFacts, *, fetches: bool = False
) -> None:
    """Make a volume's files appear at a directory: mounted where that is possible, else fetched.

    All attempts of a run see the version that the first one has seen, also after a reboot.

    Args:
        name: as in the recipe; one that is no volume may be a built-in set.
        address: see `volume_url`.
        directory: where.
        facts: of the run.
        fetches: it is fetched, whatever is possible.

    Raises:
        UsageError: there is no such volume.
        TrainmasterError: the store cannot be read.
    """
    from trainmaster.volumes.mounting import provide, provided

    with locked(directory):
        uri = pinned_volume(name, address, facts)
        if uri is None:
            BUILT_IN[name.removeprefix(BUILT_IN_PREFIX)].bring(directory)
        elif provided(uri, directory) is None:
            provide(uri, directory, means="fetched" if fetches else None)


def withdraw_volumes(data: Path) -> None:
    """End a run's mounts and HDFS here; what cannot be ended is found again by the next one made there."""
    if (data / HDFS).is_dir():
        from trainmaster.hdfs.serving import end

        end(data / HDFS)
        shutil.rmtree(data / HDFS, ignore_errors=True)  # it may be as large as the data
    places = [place for place in sorted(data.glob("*")) if _VOLUME_PLACE.fullmatch(place.name)]
    if not places:
        return
    from trainmaster.volumes.mounting import withdraw

    for place in places:
        with contextlib.suppress(TrainmasterError, OSError):
            withdraw(place)


def fetch_models(models: Sequence[tuple[int, str]], directory: Path, *, is_single: bool) -> None:
    """Bring models into a directory, whole or not at all; once.

    Args:
        models: tasks and URIs.
        directory: where.
        is_single: there is one, and it is the directory; else each has one of its own, named by its task.

    Raises:
        TrainmasterError: one cannot be read, or there is no room.
    """
    with locked(directory):
        if directory.is_dir():
            return
        if is_single:
            fetch(models[0][1], directory)
            return
        partial = directory.with_name(directory.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        for task, uri in models:
            fetch(uri, partial / str(task))
        partial.rename(directory)


def _digits(directory: Path) -> None:
    """The handwritten digits that scikit-learn ships: 1,797 images of 8 x 8, as ``digits.csv``."""
    if directory.exists():
        return
    found = importlib.util.find_spec("sklearn")
    origin = found.origin if found is not None else None
    source = Path(origin).parent / "datasets" / "data" / "digits.csv.gz" if origin else None
    if source is None or not source.exists():
        raise _lacking("digits", _SCIKIT_LEARN)
    draft = directory.with_name(f".{directory.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    with gzip.open(source) as packed, (draft / "digits.csv").open("wb") as out:
        shutil.copyfileobj(packed, out)
    draft.rename(directory)


def _lacking(name: str, part: DataRequirement) -> MissingPartError:
    return MissingPartError(
        f"the built-in set {name} is part of {part.package}, which is not installed",
        f"pip install {part.package}",
    )


#: The variable of a place with the files of all sets that are fetched, as ``NAME/FILE``.
MIRROR: Final = "TRAINMASTER_DATASETS"


@dataclass(frozen=True)
class _Published:
    """A set that is fetched from where it is published, verified, and kept for all runs here.

    Attributes:
        name: of the set. url: of the place of its files. files: their names, with the SHA-256 of each.
    """

    name: str
    url: str
    files: Mapping[str, str]

    def __call__(self, directory: Path) -> None:
        """Write its files into a directory, which is there whole or not at all; archives unpacked."""
        if directory.exists():
            return
        from trainmaster.volumes.reading.place import cache_directory

        mirror = os.environ.get(MIRROR, "").rstrip("/")
        draft = directory.with_name(f".{directory.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        for file, sha256 in self.files.items():
            url = f"{mirror}/{self.name}/{file}" if mirror else f"{self.url}/{file}"
            kept = url_directory(cache_directory(), url, sha256)
            fetch_url(
                url, kept, sha256=sha256, label=f"built-in:{self.name}: {url} ({MIRROR} names a mirror)"
            )
            shutil.copytree(kept, draft, dirs_exist_ok=True, copy_function=_linked)
        draft.rename(directory)


def _linked(source: str, target: str) -> None:
    """One file in two places, or a copy on another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _idx(name: str, url: str, *sha256: str) -> BuiltIn:
    """Images and labels in the format of MNIST."""
    kinds = [
        f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
    ]
    return BuiltIn(_NOTHING, _Published(name, url, dict(zip(kinds, sha256, strict=True))))


class BuiltIn(NamedTuple):
    """A set that has a name: it ships with a library, or is fetched.

    Attributes:
        part: that library.
        bring: writes the set into a directory that it makes.
    """

    part: DataRequirement
    bring: Callable[[Path], None]


#: Sets by name; a volume of the same name goes first.
BUILT_IN: Final = {
    "digits": BuiltIn(_SCIKIT_LEARN, _digits),
    "cifar10": BuiltIn(
        _NOTHING,
        _Published(
            "cifar10",
            "https://www.cs.toronto.edu/~kriz",
            {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
        ),
    ),
    "mnist": _idx(
        "mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    "fashion-mnist": _idx(
        "fashion-mnist",
        "https://fashion-mnist.s3.eu-central-1.amazonaws.com",
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
}
