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

import json
import os
from pathlib import Path
from typing import Final

from trainmaster.cluster.node_files.tables import unpack_columns
from trainmaster.cluster.node_files.voice import NoWayError, Order, Voice
from trainmaster.control.attempt.data_sources import fetch_models, fetch_url, open_web
from trainmaster.control.task.locking import locked
from trainmaster.spec.redaction import redacted
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
from trainmaster.volumes.packed.getting import GetProgress
from trainmaster.volumes.packed.opening import ask_stores, open_volume

_REACH_S: Final = 15.0
_WEB: Final = ("http://", "https://")


def provide_data(order: Order, voice: Voice) -> str:
    """Do it; by what means, or what was found, as JSON.

    Raises:
        NoWayError: this node has no way to it.
        InUseError: another volume is still read there.
        UsageError: it lacks what the user has to bring (Hadoop).
        TrainmasterError: it has failed.
    """
    progress = GetProgress()
    voice.at = lambda: (progress.done_bytes, progress.total_bytes)
    return _perform(order, progress, voice)


def _perform(order: Order, progress: GetProgress, voice: Voice) -> str:
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
        return _volume(order, directory, progress, voice)
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
    from trainmaster.hdfs.serving import Served, serve, served_as_json
    from trainmaster.hdfs.staging import stage

    with locked(directory):
        if order["do"] == "hdfs":
            served = serve(
                directory,
                order["address"],
                None if order["served"] is None else Served(**order["served"]),
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


def _volume(order: Order, directory: Path, progress: GetProgress, voice: Voice) -> str:
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
            voice.say({"note": words}, now=True)
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
