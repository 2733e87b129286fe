"""Runs on a node, with our runtime there: brings an image to the node's engine, or makes a `Setup`.

Read from standard input: what to do (a line of JSON), and for an image that no registry gives, perhaps an
archive of it (gzip). It says ``@@have JSON`` when the image can be used; ``@@want REASON`` if it needs an
archive, and ends, or takes it if there is one; ``@@have`` for a setup that was there, else ``@@log BASE64``
and ``@@done``; or ``@@error JSON`` with what is wrong and what may help.
"""

# ruff: noqa: T201 - it speaks over a pipe
from __future__ import annotations

import base64
import gzip
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Final

from trainmaster.control.local_images import LocalImages, end_all, own_user
from trainmaster.control.locking import locked
from trainmaster.control.setup import Setup, end_setups
from trainmaster.executors.core_dumps import forbid_core_dumps
from trainmaster.executors.engines import Engine, Image, find_engine
from trainmaster.spec.errors import UsageError

_LOG_BYTES: Final = 1 << 19
#: Where the control loop has the image itself, nobody waits long for a registry.
_IMPATIENT_S: Final = 20.0


def main() -> int:
    """Do as told; the exit code."""
    forbid_core_dumps()
    order = json.loads(sys.stdin.buffer.readline())
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ended)
    try:
        if "setup" in order:
            _set_up(Setup(**order["setup"]))
            return 0
        engine = find_engine(os.environ)
        local_images = LocalImages(engine, f"{order['root']}/{order['run']}")
        image = _have(local_images, order)
        if image is None:
            return 1
        local_images.try_out(order["image"], order["code"], gpus=order["gpus"])
        _write_engine(Path(order["engine_file"]), engine)
        print(
            f"@@have {json.dumps({'id': image.id, 'env': dict(image.env), 'user': own_user()})}", flush=True
        )
    except UsageError as error:
        print(f"@@error {json.dumps([error.args[0], error.hint])}", flush=True)
        return 1
    except EOFError:
        print(
            f"@@error {json.dumps(['the image did not arrive whole', 'It is safe to try again.'])}",
            flush=True,
        )
        return 1
    except OSError as error:
        words = f"{error.strerror or error}: {error.filename or order['root']}"
        print(f"@@error {json.dumps([words, ''])}", flush=True)
        return 1
    return 0


def _have(local_images: LocalImages, order: dict[str, Any]) -> Image | None:
    """The image, by the engine, by a registry, or by the caller; None if that one has to be told.

    One at a time on a node.
    """
    name, offered, has_archive = order["image"], order["offered"], order["has_archive"]
    with locked(Path(order["root"], "images", "one-at-a-time")):
        here = local_images.engine.image(name)
        is_stale = here is not None and order["is_own"] and here.id != offered
        if here is not None and not is_stale:
            return here
        reason = "it has another one of this name"
        if here is None and not has_archive:
            try:
                return local_images.find(name, connect_s=_IMPATIENT_S if offered else None)
            except UsageError as error:
                reason = str(error.args[0])
        print(f"@@want {reason}", flush=True)
        if not has_archive:
            return None
        with gzip.open(sys.stdin.buffer) as archive:
            return local_images.load(name, archive)


def _set_up(setup: Setup) -> None:
    is_new = True
    try:
        is_new = setup.make(LocalImages(find_engine(os.environ), setup.path).set_up if setup.image else None)
    finally:
        if is_new and setup.log.exists():
            print(f"@@log {base64.b64encode(setup.said(_LOG_BYTES)).decode()}", flush=True)
    print("@@done" if is_new else "@@have", flush=True)


def _write_engine(path: Path, engine: Engine) -> None:
    """What the supervisor starts containers with."""
    said = {
        "program": engine.program,
        "kind": engine.kind,
        "rootless": engine.rootless,
        "settings": dict(engine.settings),
    }
    draft = path.with_name(f".{path.name}-{os.getpid()}-{threading.get_ident()}")
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(said), encoding="utf-8")
    draft.replace(path)


def _ended(number: int, _frame: object) -> None:
    for each in (signal.SIGTERM, signal.SIGHUP):  # a second one would wait for what the first one does
        signal.signal(each, signal.SIG_IGN)
    end_setups()
    end_all()
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
