"""``python -m trainmaster.inference --port PORT``: serve a model until SIGTERM."""

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

from trainmaster.inference.engines import load
from trainmaster.inference.errors import ModelError
from trainmaster.inference.http_server import MOST_BODY_BYTES, InferenceServer
from trainmaster.inference.protocol import Protocol

#: What is under way at the end is given so long.
DRAIN_S: Final = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve, and say by the status how it went: 0 after SIGTERM, 1 if the model cannot be served."""
    options = _options(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
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
        engine = load(Path(options.model_dir), Path.cwd())
    except ModelError as error:
        print(f"the model cannot be served: {error}", file=sys.stderr)  # noqa: T201
        return 1
    protocol.serve(engine)
    logging.info("%s (%s) answers at port %d", options.name, engine.platform, server.server_port)
    ended.wait()
    if not server.drain(DRAIN_S):
        logging.warning("requests were under way for longer than %.0f s, and were given up", DRAIN_S)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainmaster.inference", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="to listen at")
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
