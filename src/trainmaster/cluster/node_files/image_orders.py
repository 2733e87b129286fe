"""Runs on a node, for `worker`: brings an image to the node's container engine, or makes a `Setup`.

A driver that is gone does not end them: the next one finds what they have made.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

from trainmaster.cluster.node_files.order_output import Order, OrderOutput
from trainmaster.control.attempt.local_images import LocalImages, end_all, own_user
from trainmaster.control.attempt.setup import Setup, end_setups
from trainmaster.executors.containers.engines import ContainerImage, find_engine
from trainmaster.objects.errors import FullStoreError
from trainmaster.spec.errors import UsageError
from trainmaster.spec.locking import locked
from trainmaster.spec.private_files import write_private

_LOG_BYTES: Final = 1 << 19
#: Where the driver has the image itself, a registry is not waited for long.
_IMPATIENT_S: Final = 20.0


def bring_image(order: Order, output: OrderOutput) -> dict[str, Any]:
    """What is known of an image that can be used now; or for which reason this node wants an archive of it.

    Raises:
        UsageError: it cannot be had, or cannot be used.
    """
    _outlive(output)
    try:
        engine = find_engine(os.environ)
        images = LocalImages(engine, f"{order['root']}/{order['run']}")
        image = _have(images, order, output)
        if isinstance(image, str):
            return {"wants": image}
        images.try_out(order["image"], order["code"], gpus=order["gpus"])
        # What the supervisor starts containers with.
        write_private(Path(order["engine_file"]), json.dumps(asdict(engine)).encode())
    except FullStoreError as full:  # it would be so again
        raise UsageError(full.args[0], full.hint) from None
    except EOFError:
        raise UsageError("the image did not arrive whole", "It is safe to try again.") from None
    except OSError as error:
        raise UsageError(f"{error.strerror or error}: {error.filename or order['root']}") from error
    return {"id": image.id, "env": dict(image.env), "user": own_user()}


def make_setup(order: Order, output: OrderOutput) -> bool:
    """Make a virtual environment unless it is there; whether it was not. What it has said is told.

    Raises:
        UsageError: it failed.
    """
    setup, is_new = Setup(**order["setup"]), True
    _outlive(output)
    try:
        is_new = setup.make(LocalImages(find_engine(os.environ), setup.path).set_up if setup.image else None)
    except OSError as error:
        raise UsageError(f"{error.strerror or error}: {error.filename or order['root']}") from error
    finally:
        if is_new and setup.log.exists():
            output.say({"log": base64.b64encode(setup.said(_LOG_BYTES)).decode()})
    return is_new


def _have(images: LocalImages, order: Order, output: OrderOutput) -> ContainerImage | str:
    """The image, by the engine, by a registry, or by the driver; a reason if that one has to be told.

    One at a time on a node.
    """
    name, offered, has_archive = order["image"], order["offered"], order["has_archive"]
    with locked(Path(order["root"], "images", "one-at-a-time")):
        here = images.engine.image(name)
        is_stale = here is not None and order["is_own"] and here.id != offered
        if here is not None and not is_stale:
            return here
        reason = "it has another one of this name"
        if here is None and not has_archive:
            try:
                return images.find(name, connect_s=_IMPATIENT_S if offered else None)
            except UsageError as error:
                reason = str(error.args[0])
        if not has_archive:
            return reason
        output.say({"want": True}, now=True)
        with gzip.open(io.BufferedReader(_SentImage(sys.stdin.buffer))) as archive:
            return images.load(name, archive)


class _SentImage(io.RawIOBase):
    """What the driver sends, in pieces with their lengths before them, until one of 0."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._left_bytes = -1

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - of any type that holds bytes
        if self._left_bytes < 0:
            self._left_bytes = int(self._source.readline() or self._cut())
        data = self._source.read(min(len(buffer), self._left_bytes))
        if not data and self._left_bytes:
            self._cut()
        buffer[: len(data)] = data
        self._left_bytes -= len(data)
        if data and not self._left_bytes:
            self._left_bytes = -1
        return len(data)

    @staticmethod
    def _cut() -> NoReturn:
        raise EOFError


def _outlive(output: OrderOutput) -> None:
    """What is started here ends with this process, which goes on when its reader has gone."""
    output.outlives = True
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ended)


def _ended(number: int, _frame: object) -> None:
    for each in (signal.SIGTERM, signal.SIGHUP):  # a second one would wait for what the first one does
        signal.signal(each, signal.SIG_IGN)
    end_setups()
    end_all()
    os._exit(128 + number)
