"""Runs on a node, with our runtime there: brings an image to the node's engine, or makes a ``setup`` in one.

Read from standard input: what to do (a line of JSON), and for an image that no registry gives, perhaps an
archive of it (gzip). It says ``@@have JSON`` when the image can be used; ``@@want REASON`` if it needs an
archive, and ends, or takes it if there is one; for a setup ``@@log BASE64`` and ``@@done`` or
``@@setup CODE WORDS``; or ``@@error JSON`` with what is wrong and what may help.
"""

# ruff: noqa: T201 - it speaks over a pipe
from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Final

from trainmaster.control.local_images import LocalImages, added_inside, end_all, own_user
from trainmaster.control.locking import locked
from trainmaster.executors.core_dumps import forbid_core_dumps
from trainmaster.executors.engines import Engine, Image, find_engine
from trainmaster.spec.errors import UsageError

_LOG_BYTES: Final = 1 << 19
_WORDS_BYTES: Final = 2000
#: Where the control loop has the image itself, nobody waits long for a registry.
_IMPATIENT_S: Final = 20.0


def main() -> int:
    """Do as told; the exit code."""
    forbid_core_dumps()
    order = json.loads(sys.stdin.buffer.readline())
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ended)
    try:
        engine = find_engine(os.environ)
        local_images = LocalImages(engine, f"{order['root']}/{order['run']}")
        image = _have(local_images, order)
        if image is None:
            return 1
        if "script" in order:
            return _set_up(local_images, image, order)
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


def _set_up(local_images: LocalImages, image: Image, order: dict[str, Any]) -> int:
    path = Path(order["path"])
    log = path.with_name(f"{path.name}.log")
    with locked(path):
        ready = path / "ready"
        if ready.is_file() and ready.read_text(encoding="utf-8") == image.id:
            print("@@done", flush=True)
            return 0
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        variables = {**added_inside(image, own_user()), **order["env"]}
        with log.open("wb") as output:
            code = local_images.set_up(
                order["image"], path, order["code"], order["script"], variables, output, marker={}
            )
        said = log.read_bytes()
        print(f"@@log {base64.b64encode(said[-_LOG_BYTES:]).decode()}", flush=True)
        if code != 0:
            tail = said[-_WORDS_BYTES:].decode("utf-8", "replace").strip().splitlines()[-3:]
            print(f"@@setup {code} {' / '.join(tail) or 'without a word'}", flush=True)
            return 1
        ready.write_text(image.id, encoding="utf-8")
    print("@@done", flush=True)
    return 0


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
    end_all()
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
