"""The columns of a volume on their way to nodes: made here once, and packed once for all of them.

With them a node needs neither the tables on the store nor the library that reads those. Packed they take
about 40 bytes for each file of the volume, a third of what they take on the node.
"""

from __future__ import annotations

import gzip
import shutil
import zlib
from pathlib import Path
from typing import Final

from trainmaster.artifacts.scratch import move_into_place, scratch_directory
from trainmaster.control.task.locking import locked
from trainmaster.volumes.errors import DamagedVolumeError
from trainmaster.volumes.packed.flat import CODES
from trainmaster.volumes.packed.materialising import META_NAME
from trainmaster.volumes.packed.table import FileTable

_COMPRESSION: Final = 1  # 140 MB/s, and hardly larger than with the best
_BLOCK_BYTES: Final = 1 << 20
_END: Final = ".gz"


def packed_columns(columns: Path, cache: Path) -> Path:
    """A directory with columns as they are sent, made unless it is there.

    Args:
        columns: see `materialised`.
        cache: for what can be made again.
    """
    target = cache / "volumes" / "sent" / columns.name
    with locked(target):
        if not target.is_dir():
            with scratch_directory(target) as scratch:
                for file in columns.iterdir():
                    packed = scratch / f"{file.name}{_END}"
                    with (
                        file.open("rb") as source,
                        gzip.open(packed, "wb", compresslevel=_COMPRESSION) as out,
                    ):
                        shutil.copyfileobj(source, out, _BLOCK_BYTES)
                move_into_place(scratch, target)
    return target


def unpack_columns(sent: Path, target: Path) -> None:
    """Put what was sent where readers look for it, whole or not at all; once.

    Args:
        sent: removed in the end.
        target: see `materialised`.

    Raises:
        OSError: there is no room, or it is not what was packed: then it may be sent or fetched anew.
    """
    with locked(target):
        try:
            if not (target / META_NAME).is_file():
                with scratch_directory(target) as scratch:
                    for name in (*CODES, META_NAME):
                        packed = sent / f"{name}{_END}"
                        if packed.is_file():  # volumes without links have no columns for them
                            _unpack(packed, scratch / name)
                    _check(scratch, sent)
                    shutil.rmtree(target, ignore_errors=True)  # what somebody has half removed
                    move_into_place(scratch, target)
        finally:
            shutil.rmtree(sent, ignore_errors=True)


def _check(columns: Path, sent: Path) -> None:
    try:
        FileTable(columns)
    except DamagedVolumeError as error:
        raise OSError(f"{sent} did not arrive whole: {error.args[0]}") from error


def _unpack(packed: Path, target: Path) -> None:
    try:
        with gzip.open(packed) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out, _BLOCK_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise OSError(f"{packed} did not arrive whole: {error}") from error
