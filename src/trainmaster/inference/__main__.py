"""``python -m trainmaster.inference``: serve a model until SIGTERM, or ask it about files."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from trainmaster.inference.errors import ModelError
from trainmaster.inference.files import FileError, answer_files
from trainmaster.inference.http_server import MOST_BODY_BYTES, InferenceServer
from trainmaster.inference.model_servers import load
from trainmaster.inference.protocol import Protocol

#: What is under way at the end is given so long.
DRAIN_S: Final = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve, or answer files; the status says how it went: 1 if the model, the port or a file is wrong."""
    options = _options(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    return _serve(options) if options.files is None else _answer(options)


def _answer(options: argparse.Namespace) -> int:
    try:
        model = load(Path(options.model_dir), Path.cwd())
        for name, rows in answer_files(model, Path(options.files), Path(options.to)):
            print(f"{name}: {rows} row{'s' * (rows != 1)}", flush=True)  # noqa: T201
    except (ModelError, FileError) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _serve(options: argparse.Namespace) -> int:
    protocol = Protocol(options.name, options.queue)
    try:
        server = InferenceServer((options.host, options.port), protocol, options.body_bytes)
    except OSError as error:
        print(f"cannot listen at {options.host}:{options.port}: {error}", file=sys.stderr)  # noqa: T201
        return 1
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()  # alive while it loads
    try:
        model = load(Path(options.model_dir), Path.cwd())
    except ModelError as error:
        print(f"the model cannot be served: {error}", file=sys.stderr)  # noqa: T201
        return 1
    protocol.serve(model)
    logging.info("%s (%s) answers at port %d", options.name, model.platform, server.server_port)
    ended.wait()
    if not server.drain(DRAIN_S):
        logging.warning("requests were under way for longer than %.0f s, and were given up", DRAIN_S)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainmaster.inference", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--port", type=int, help="to listen at")
    what.add_argument("--files", help="to be answered: *.csv, *.npy, *.jsonl in this directory, then it ends")
    parser.add_argument(
        "--to", default=os.environ.get("TRAINMASTER_OUTPUT_DIR", "answers"), help="where answers to files go"
    )
    parser.add_argument("--host", default="127.0.0.1", help="to listen at; this machine only without")
    parser.add_argument("--name", default="model", help="of the model, in paths")
    parser.add_argument(
        "--model-dir", default=os.environ.get("TRAINMASTER_MODEL_DIR", "."), help="$TRAINMASTER_MODEL_DIR"
    )
    parser.add_argument("--queue", type=int, default=64, help="requests that may wait")
    parser.add_argument("--body-bytes", type=int, default=MOST_BODY_BYTES, help="of a request, at most")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
