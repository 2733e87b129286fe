"""Runs on a node, for `worker`: gets data from where they lie, to where members will find them.

``do`` of an order is one of these:

* ``volume``: a version of a volume appears at a directory, mounted if the node can, else fetched whole.
* ``models``: models of another experiment, fetched.
* ``url``: what a URL names, fetched.
* ``hdfs``: the daemons of an HDFS run, as `trainmaster.hdfs.serving.serve` has them.
* ``stage``: this node's share of what is below a URL is copied into it.
* ``output``: what a task has written into it is copied to where its output is.

Credentials come in the order only: they are in memory here, and in that of a mount.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zlib
from pathlib import Path
from typing import Final

from trainmaster.artifacts.scratch import made_whole
from trainmaster.cluster.node_files.order_output import NoWayError, Order, OrderOutput
from trainmaster.control.attempt.data_sources import fetch_models
from trainmaster.control.attempt.data_urls import fetch_url, open_web
from trainmaster.spec.locking import locked
from trainmaster.spec.redaction import redacted
from trainmaster.volumes.errors import DamagedVolumeError
from trainmaster.volumes.mounting.delegated_credentials import renew
from trainmaster.volumes.mounting.mounts import available
from trainmaster.volumes.mounting.providing import (
    Means,
    answers,
    last_trouble,
    provide,
    provided,
    settle,
    withdraw,
)
from trainmaster.volumes.packed.flat import CODES
from trainmaster.volumes.packed.getting import GetProgress
from trainmaster.volumes.packed.materialising import META_NAME
from trainmaster.volumes.packed.opening import ask_stores, open_volume
from trainmaster.volumes.packed.table import FileTable

_REACH_S: Final = 15.0
_WEB: Final = ("http://", "https://")
_COMPRESSION: Final = 1  # 140 MB/s, and hardly larger than with the best
_BLOCK_BYTES: Final = 1 << 20
_END: Final = ".gz"


def provide_data(order: Order, output: OrderOutput) -> str:
    """Do it; by what means, or what was found, as JSON.

    Raises:
        NoWayError: this node has no way to it.
        InUseError: another volume is still read there.
        UsageError: it lacks what the user has to bring (Hadoop).
        TrainmasterError: it has failed.
    """
    progress = GetProgress()
    output.at = lambda: (progress.done_bytes, progress.total_bytes)
    return _perform(order, progress, output)


def _perform(order: Order, progress: GetProgress, output: OrderOutput) -> str:
    directory = Path(order["directory"])
    directory.parent.mkdir(parents=True, exist_ok=True)
    if order["do"] in ("hdfs", "stage"):
        return _staged(order, directory, progress)
    if order["do"] == "output":
        from trainmaster.hdfs.staging import fetch_output

        return str(fetch_output(order["web"], order["path"], directory))
    if _was_sent(directory):
        return "sent"
    if order["do"] == "volume":
        return _volume(order, directory, progress, output)
    if order["do"] == "models":
        fetch_models([(task, uri) for task, uri in order["models"]], directory, is_single=order["is_single"])
        return "fetched"
    if order["url"].startswith(_WEB) and not directory.is_dir():
        _reach(order["url"], order.get("label") or order["url"])
    fetch_url(
        order["url"],
        directory,
        sha256=order.get("sha256"),
        size_limit_bytes=order.get("size_limit_bytes"),
        label=order.get("label", ""),
    )
    return "fetched"


def _staged(order: Order, directory: Path, progress: GetProgress) -> str:
    from trainmaster.hdfs.configuration import data_directory
    from trainmaster.hdfs.serving import RunningHdfs, serve, served_as_json
    from trainmaster.hdfs.staging import stage

    with locked(directory):
        if order["do"] == "hdfs":
            served = serve(
                directory,
                order["address"],
                None if order["served"] is None else RunningHdfs(**order["served"]),
                copies=order["copies"],
                hadoop=order["hadoop"],
                venv=order["venv"],
            )
            return json.dumps(served_as_json(served))

        def at(done_bytes: int, total_bytes: int) -> None:
            progress.done_bytes, progress.total_bytes = done_bytes, total_bytes

        found = stage(
            order["url"],
            order["web"],
            index=order["index"],
            count=order["count"],
            copies=order["copies"],
            directory=data_directory(directory),
            progress=at,
        )
        return json.dumps(list(found))


def _volume(order: Order, directory: Path, progress: GetProgress, output: OrderOutput) -> str:
    uri, cache = order["uri"], Path(order["cache"])
    # An engine that is another user's may not look into a mount of ours.
    means: Means | None = "fetched" if order["is_contained"] and os.geteuid() != 0 else None
    volumes = cache / "volumes"
    if (sent := volumes / "sent" / order["table"]).is_dir():
        unpack_columns(sent, volumes / "tables" / order["table"])
    with locked(directory):
        there = provided(uri, directory)
        if there == "mounted" and last_trouble(directory, cache):
            # Others read there: it stays, unless it does not work any more, and another one would.
            if answers(directory):
                settle(directory, cache)
            else:
                ask_stores(uri, open_volume(uri, cache).table)
                withdraw(directory)
                there = None
        if there is not None:
            renew(os.path.abspath(directory))  # noqa: PTH100 - as the mount's processes were told
            return "kept"
        problem = "a container's engine may not look into mounts" if means else available()
        if problem:
            words = f"all of it is fetched, as it cannot be mounted on nodes: {problem}"
            output.say({"note": words}, now=True)
        return provide(uri, directory, cache=cache, means=means, progress=progress)


def _was_sent(directory: Path) -> bool:
    """Whether it came through the machine that drives the run, at a time when there was no other way."""
    return directory.with_name(f".{directory.name}.stamp").exists() and directory.is_dir()


def _reach(url: str, label: str) -> None:
    try:
        with open_web(url, _REACH_S):
            pass
    except (OSError, ValueError) as error:
        raise NoWayError(f"{redacted(label)}: {error}") from error


def packed_columns(columns: Path, cache: Path) -> Path:
    """A directory with columns as they are sent, made unless it is there.

    Args:
        columns: see `materialised`.
        cache: for what can be made again.
    """
    target = cache / "volumes" / "sent" / columns.name
    with locked(target):
        if not target.is_dir():
            with made_whole(target) as scratch:
                for file in columns.iterdir():
                    packed = scratch / f"{file.name}{_END}"
                    with (
                        file.open("rb") as source,
                        gzip.open(packed, "wb", compresslevel=_COMPRESSION) as out,
                    ):
                        shutil.copyfileobj(source, out, _BLOCK_BYTES)
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
                with made_whole(target) as scratch:
                    for name in (*CODES, META_NAME):
                        packed = sent / f"{name}{_END}"
                        if packed.is_file():  # volumes without links have no columns for them
                            _unpack(packed, scratch / name)
                    _check(scratch, sent)
                    shutil.rmtree(target, ignore_errors=True)  # what somebody has half removed
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
