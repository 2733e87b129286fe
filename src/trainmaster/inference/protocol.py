"""`Protocol`: the V2 inference protocol (Open Inference Protocol), of one model. Knows nothing of sockets."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

from trainmaster.inference.errors import RequestError
from trainmaster.inference.model_servers import ModelServer
from trainmaster.inference.tensors import read_request, write_answer

log = logging.getLogger(__name__)

#: A client that finds the queue full may come again after so long.
_RETRY_S: Final = 1


class Protocol:
    """Paths and bodies in, statuses and bodies out; threads share it.

    Args:
        name: of the model.
        queue: so many requests may wait while others are answered.
    """

    def __init__(self, name: str, queue: int) -> None:
        self.name = name
        self.is_draining = False
        self._queue = queue
        self._model: ModelServer | None = None
        self._places = threading.BoundedSemaphore(1)
        self._turns = threading.BoundedSemaphore(1)

    def serve(self, model: ModelServer) -> None:
        """Be ready from now on."""
        self._places = threading.BoundedSemaphore(model.at_once + self._queue)
        self._turns = threading.BoundedSemaphore(model.at_once)
        self._model = model

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and JSON body.

        Raises:
            RequestError: nothing else is said.
        """
        parts = [unquote(part) for part in path.partition("?")[0].strip("/").split("/")]
        if parts[0] != "v2":
            raise RequestError("there is nothing here; the protocol is below /v2", 404)
        if parts[1:2] == ["models"] and len(parts) > 2:
            return self._of_model(method, parts[2], parts[3:], body)
        if method != "GET":
            raise RequestError(f"{method} is not for this path; GET is", 405)
        model = self._model
        is_ready = model is not None and not self.is_draining
        if parts == ["v2"]:
            return _json({"name": "trainmaster", "version": "1", "extensions": []})
        if parts[1:] == ["health", "live"]:
            return _json({"live": True})
        if parts[1:] == ["health", "ready"]:
            return _json({"ready": is_ready}, 200 if is_ready else 503)
        raise RequestError("there is nothing here; see /v2/models/" + self.name, 404)

    def _of_model(self, method: str, name: str, rest: Sequence[str], body: bytes) -> tuple[int, bytes]:
        if name != self.name:
            raise RequestError(f"there is no model {name!r}; this serves {self.name!r}", 404)
        model, path = self._model, list(rest)
        is_post = path == ["infer"]
        if not is_post and path not in ([], ["ready"]):
            raise RequestError(f"there is nothing here; see /v2/models/{self.name}", 404)
        if method != ("POST" if is_post else "GET"):
            raise RequestError(f"{method} is not for this path; {'POST' if is_post else 'GET'} is", 405)
        if path == ["ready"]:
            is_ready = model is not None and not self.is_draining
            return _json({"name": name, "ready": is_ready}, 200 if is_ready else 503)
        if model is None:
            raise RequestError("the model is being loaded", 503, _RETRY_S)
        if is_post:
            return 200, self._infer(model, body)
        return _json(
            {
                "name": name,
                "platform": model.platform,
                "inputs": [each.as_dict() for each in model.inputs],
                "outputs": [each.as_dict() for each in model.outputs],
            }
        )

    def _infer(self, model: ModelServer, body: bytes) -> bytes:
        inputs, identity, wanted = read_request(body, model.inputs)
        known = [each.name for each in model.outputs]
        if known and (unknown := [name for name in wanted if name not in known]):
            raise RequestError(f"there is no output {unknown[0]!r}; there are {', '.join(map(repr, known))}")
        if not self._places.acquire(blocking=False):
            raise RequestError("too many requests wait already", 503, _RETRY_S)
        try:
            with self._turns:
                try:
                    outputs = model.infer(inputs, wanted)
                except RequestError:
                    raise
                except Exception:
                    log.exception("the model has failed")
                    raise RequestError("the model has failed; its log says how", 500) from None
        finally:
            self._places.release()
        return write_answer(self.name, identity, outputs)


def _json(value: Any, status: int = 200) -> tuple[int, bytes]:  # noqa: ANN401 - what JSON has
    return status, json.dumps(value).encode()
