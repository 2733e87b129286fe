"""``trainmaster://`` for fsspec, and so for pandas, pyarrow, Dask and whatever else stands on it.

* ``trainmaster://NAME/PATH``, ``trainmaster://NAME@7/PATH``: a volume by its short name
* ``trainmaster://URL@7/PATH``: one by its URL, as in ``trainmaster://s3://bucket/cats@7/a.png``
* ``trainmaster://URL!/PATH``: the newest version of one

``fsspec.filesystem("trainmaster", volume="NAME")`` has the files of one volume; without a volume, paths
begin with one, as above.
"""

import datetime
import re
from typing import Any

from fsspec.spec import AbstractFileSystem

from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.volumes.packed.addresses import named_volumes
from trainmaster.volumes.packed.table import Entry
from trainmaster.volumes.reading.volume import Volume

_PREFIX = "trainmaster://"
_VERSIONED = re.compile(r"(.+?@v?\d+)(?:/(.*))?", re.DOTALL)


def split_path(text: str) -> tuple[str, str]:
    """Splits what follows ``trainmaster://`` into volume and path.

    >>> split_path("cats/train/a.png"), split_path("s3://b/cats@7/train/a.png")
    (('cats', 'train/a.png'), ('s3://b/cats@7', 'train/a.png'))
    >>> split_path("s3://b/cats!/a.png"), split_path("cats@2"), split_path("s3://b/cats")
    (('s3://b/cats', 'a.png'), ('cats@2', ''), ('s3://b/cats', ''))
    """
    volume, mark, path = f"{text}/".partition("!/") if text.endswith("!") else text.partition("!/")
    if mark:
        return volume, path
    if found := _VERSIONED.fullmatch(text):
        return found[1], found[2] or ""
    if "://" in text or text.startswith(("/", ".", "~")):
        return text, ""
    name, _, path = text.partition("/")
    return name, path


class VolumeFileSystem(AbstractFileSystem):  # type: ignore[misc] # fsspec is not typed
    """The files of a volume, or of all, read-only.

    Args:
        volume: address of the volume that paths lie in; from the URL where there is one. Without any a path
            begins with its volume.
        options: for fsspec.
    """

    protocol = "trainmaster"
    root_marker = ""

    def __init__(self, volume: str | None = None, **options: Any) -> None:  # noqa: ANN401 - fsspec's own
        super().__init__(volume=volume, **options)
        self._only = Volume.open(volume) if volume else None
        if not volume:
            self.__dict__["_strip_protocol"] = _with_volume  # of this object alone

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:  # noqa: ANN401 - a path or a list of them
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        text = str(path)
        if text.startswith(_PREFIX):
            text = split_path(text.removeprefix(_PREFIX))[1]
        return text.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(url: str) -> dict[str, str]:
        text = str(url)
        return {"volume": split_path(text.removeprefix(_PREFIX))[0]} if text.startswith(_PREFIX) else {}

    @property
    def _volume(self) -> Volume:
        if self._only is None:
            raise UsageError(
                "trainmaster:// names no volume.",
                "Write trainmaster://NAME/PATH or trainmaster://URL@7/PATH.",
            )
        return self._only

    def _inside(self, path: str) -> "tuple[VolumeFileSystem, str, str] | None":
        """The file system of a path's volume, the path in it, and what stands before that; None: this one."""
        text = self._strip_protocol(path)
        if self._only is not None or not text:
            return None
        volume, inner = split_path(text)
        try:
            found = VolumeFileSystem(volume=volume)
        except NotFoundError as error:
            raise FileNotFoundError(str(error)) from error
        return found, inner, text.removesuffix(inner).rstrip("/")

    @property
    def fsid(self) -> str:
        """Names the version, so that others may keep what they derived from it."""
        return self._volume.uri

    def unstrip_protocol(self, name: str) -> str:
        """Gives the full URL of a path."""
        base = f"{self._only.uri}/" if self._only is not None else ""
        return f"{_PREFIX}{base}{self._strip_protocol(name)}"

    def info(self, path: str, **_: Any) -> dict[str, Any]:  # noqa: ANN401 - fsspec's own
        """Describes a file or directory; links are followed."""
        if there := self._inside(path):
            fs, inner, base = there
            return _moved(fs.info(inner), base)
        if self._only is None:
            return {"name": "", "size": 0, "type": "directory"}
        try:
            entry = self._volume.entry(self._strip_protocol(path))
        except NotFoundError as error:
            raise FileNotFoundError(str(error)) from error
        return {**_described(entry), "name": self._strip_protocol(path)}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:  # noqa: ANN401 - fsspec's own
        """Lists a directory, or one file; without a volume and a path the volumes with short names."""
        if there := self._inside(path):
            fs, inner, base = there
            moved = [_moved(one, base) for one in fs.ls(inner)]
            return moved if detail else [one["name"] for one in moved]
        if self._only is None:
            names = [_with_volume(f"{name}!") for name in named_volumes()]
            return [{"name": name, "size": 0, "type": "directory"} for name in names] if detail else names
        path = self._strip_protocol(path)
        info = self.info(path)
        found = [info]
        if info["type"] == "directory":
            base = f"{path}/" if path else ""
            entries = self._volume.list(path)
            found = [{**self._of(entry), "name": base + entry.path.rpartition("/")[2]} for entry in entries]
        return found if detail else [one["name"] for one in found]

    def _of(self, entry: Entry) -> dict[str, Any]:
        if entry.kind != "symlink":
            return _described(entry)
        try:
            return {**_described(self._volume.entry(entry.path)), "islink": True}
        except NotFoundError:
            return {**_described(entry), "type": "other", "islink": True}

    def created(self, path: str) -> datetime.datetime:
        """Says when a file was last changed: a volume does not know more."""
        return self.modified(path)

    def modified(self, path: str) -> datetime.datetime:
        """Says when a file was last changed."""
        return datetime.datetime.fromtimestamp(self.info(path)["mtime"], tz=datetime.UTC)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:  # noqa: ANN401
        """Reads a file or a part of it; negative numbers count from its end."""
        if there := self._inside(path):
            return there[0].cat_file(there[1], start, end)
        row = self._row(path)
        size_bytes: int = self._volume.table.sizes[row]
        first, last, _step = slice(start, end).indices(size_bytes)
        return self._volume.read_range(row, first, max(last - first, 0))

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:  # noqa: ANN401 - a binary file
        if mode != "rb":
            raise OSError(30, f"a volume can only be read, not opened with {mode!r}", path)
        if there := self._inside(path):
            return there[0]._open(there[1], mode)
        return self._volume.open_file(self._row(path))

    def _row(self, path: str) -> int:
        try:
            return self._volume.row_of(self._strip_protocol(path))
        except NotFoundError as error:
            kind = IsADirectoryError if self.isdir(path) else FileNotFoundError
            raise kind(str(error)) from error


def _described(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.path,
        "size": entry.size_bytes,
        "type": "directory" if entry.kind == "directory" else "file",
        "mode": entry.mode,
        "mtime": entry.mtime_ns / 1e9,
        "ino": entry.row + 2,
    }


def _moved(info: dict[str, Any], base: str) -> dict[str, Any]:
    """What is said of a path in a volume, with the volume before it."""
    return {**info, "name": f"{base}/{info['name']}" if info["name"] else base}


def _with_volume(path: Any) -> Any:  # noqa: ANN401 - a path or a list of them
    """A path that begins with its volume, in one way only.

    >>> _with_volume(["trainmaster://cats/a/", "cats!/a", "s3://b/cats", "team/cats!", "cats@7/", ""])
    ['cats/a', 'cats/a', 's3://b/cats!', 'team/cats!', 'cats@7', '']
    """
    if isinstance(path, list):
        return [_with_volume(one) for one in path]
    volume, inner = split_path(str(path).removeprefix(_PREFIX))
    inner = inner.strip("/")
    if "/" in volume and not _VERSIONED.fullmatch(volume):
        volume += "!"  # marks where it ends
    return f"{volume}/{inner}" if inner else volume
