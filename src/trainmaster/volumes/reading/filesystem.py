"""``trainmaster://`` for fsspec, and so for pandas, pyarrow, Dask and whatever else stands on it.

* ``trainmaster://NAME/PATH``, ``trainmaster://NAME@7/PATH``: a volume by its short name
* ``trainmaster://URL@7/PATH``: one by its URL, as in ``trainmaster://s3://bucket/cats@7/a.png``
* ``trainmaster://URL!/PATH``: the newest version of one
"""

import datetime
import re
from typing import Any

from fsspec.spec import AbstractFileSystem

from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.volumes.packed import Entry
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
    volume, mark, path = text.partition("!/")
    if mark:
        return volume, path
    if found := _VERSIONED.fullmatch(text):
        return found[1], found[2] or ""
    if "://" in text or text.startswith(("/", ".", "~")):
        return text, ""
    name, _, path = text.partition("/")
    return name, path


class VolumeFileSystem(AbstractFileSystem):  # type: ignore[misc] # fsspec is not typed
    """The files of one volume, read-only.

    Args:
        volume: address of the volume; from the URL where there is one.
        options: for fsspec.
    """

    protocol = "trainmaster"
    root_marker = ""

    def __init__(self, volume: str | None = None, **options: Any) -> None:  # noqa: ANN401 - fsspec's own
        super().__init__(volume=volume, **options)
        if not volume:
            raise UsageError(
                "trainmaster:// names no volume.",
                "Write trainmaster://NAME/PATH or trainmaster://URL@7/PATH.",
            )
        self._volume = Volume.open(volume)

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
    def fsid(self) -> str:
        """Names the version, so that others may keep what they derived from it."""
        return self._volume.uri

    def unstrip_protocol(self, name: str) -> str:
        """Gives the full URL of a path."""
        return f"{_PREFIX}{self._volume.uri}/{self._strip_protocol(name)}"

    def info(self, path: str, **_: Any) -> dict[str, Any]:  # noqa: ANN401 - fsspec's own
        """Describes a file or directory; links are followed."""
        try:
            entry = self._volume.entry(self._strip_protocol(path))
        except NotFoundError as error:
            raise FileNotFoundError(str(error)) from error
        return {**_described(entry), "name": self._strip_protocol(path)}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:  # noqa: ANN401 - fsspec's own
        """Lists a directory, or one file."""
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
        row = self._row(path)
        size_bytes: int = self._volume.table.sizes[row]
        first, last, _step = slice(start, end).indices(size_bytes)
        return self._volume.read_range(row, first, max(last - first, 0))

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:  # noqa: ANN401 - a binary file
        if mode != "rb":
            raise OSError(30, f"a volume can only be read, not opened with {mode!r}", path)
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
