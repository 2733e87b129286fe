"""The lab's HTTP server: EC2's API for everybody with the key, and ``/lab`` for the command line."""

from __future__ import annotations

import hmac
import io
import json
import logging
import re
import time
from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from trainmaster.lab import price_list
from trainmaster.lab.api_token import TOKEN_HEADER
from trainmaster.lab.cloud import Cloud
from trainmaster.lab.control import Control
from trainmaster.lab.hooks import take_status
from trainmaster.lab.market import ApiRefusal
from trainmaster.spec.errors import NotFoundError, TrainmasterError

log = logging.getLogger(__name__)

_CREDENTIAL = re.compile(r"Credential=([^/\s]+)/[^/]*/([^/]*)/([^/]*)/")
#: Actions that change security groups, or which instance is in which.
_FILTERING: Final = ("Authorize", "Revoke", "Modify", "Attach", "Detach")
_LOOKING: Final = "DescribeInstances"
_READING: Final = ("Describe", "Get")
_REASONS: Final = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
    500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip

StartResponse = Callable[..., Any]
Application = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]


class LabMiddleware:
    """WSGI middleware before the application of moto.

    Args:
        cloud: behind it.
        moto: moto's own application.
        control: what ``/lab`` does.
        changed: is called after each action that may have changed what the hosts' packet filters say.
    """

    def __init__(
        self, cloud: Cloud, moto: Application, control: Control, changed: Callable[[], None]
    ) -> None:
        self._changed = changed
        self._cloud = cloud
        self._moto = moto
        self._control = control
        # Answers to DescribeInstances, while instances are in these states and nothing changes.
        self._there: list[tuple[str, ...]] = []
        self._told: dict[bytes, tuple[list[Any], list[bytes]]] = {}

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        path = str(environ.get("PATH_INFO", ""))
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length) if length else b""
        environ["wsgi.input"] = io.BytesIO(body)
        if path.startswith("/lab/"):
            return self._own(path.removeprefix("/lab/"), body, environ, start_response)
        if path.startswith("/moto-api"):
            return _answer(start_response, 403, b"not here", "text/plain")
        return self._ec2(body, environ, start_response)

    def _own(
        self, verb: str, body: bytes, environ: dict[str, Any], start_response: StartResponse
    ) -> Iterable[bytes]:
        given = str(environ.get("HTTP_" + TOKEN_HEADER.upper().replace("-", "_"), ""))
        if not hmac.compare_digest(given.encode(), self._cloud.settings.control_token.encode()):
            return _json(start_response, 403, {"error": "the control token is wrong", "hint": ""})
        try:
            return _json(start_response, 200, self._control.do(verb, json.loads(body or b"{}")))
        except TrainmasterError as error:
            status = 404 if isinstance(error, NotFoundError) else 400 if error.exit_code == 2 else 500
            return _json(start_response, status, {"error": error.args[0], "hint": error.hint})
        except Exception as error:
            log.exception("/lab/%s", verb)
            return _json(
                start_response, 500, {"error": f"{type(error).__name__}: {error}", "hint": "See daemon.log."}
            )

    def _ec2(self, body: bytes, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        settings = self._cloud.settings
        found = _CREDENTIAL.search(str(environ.get("HTTP_AUTHORIZATION", "")))
        if found is None or found[1] != settings.access_key_id:
            message = "AWS was not able to validate the provided access credentials"
            return _error(start_response, "AuthFailure", message, 401)
        if found[3] == price_list.SERVICE:  # one for all regions
            return self._price_list(body, environ, start_response)
        if found[2] != settings.region:
            message = f"The lab has one region, {settings.region}; this request was signed for {found[2]}."
            return _error(start_response, "AuthFailure", message, 401)
        action = (parse_qs(body.decode(errors="replace")).get("Action") or [""])[0]
        fault = self._cloud.market.next_fault(action)
        if fault is not None:
            time.sleep(fault.delay_s)
            if fault.code:
                return _error(start_response, fault.code, "A fault that was asked for.", fault.status)
        with self._cloud.exclusively:
            take_status()
            if action == _LOOKING:
                answer = self._look(body, environ, start_response)
            else:
                answer = self._pass_on(environ, start_response)
                if not action.startswith(_READING):
                    self._told.clear()
        if action.startswith(_FILTERING):
            self._changed()
        return answer

    def _price_list(
        self, body: bytes, environ: dict[str, Any], start_response: StartResponse
    ) -> Iterable[bytes]:
        action = str(environ.get("HTTP_X_AMZ_TARGET", "")).removeprefix(price_list.TARGET)
        fault = self._cloud.market.next_fault(action)
        if fault is not None:
            time.sleep(fault.delay_s)
        try:
            if fault is not None and fault.code:
                raise ApiRefusal(fault.code, "A fault that was asked for.", fault.status)
            return _json(
                start_response,
                200,
                price_list.answer(self._cloud.settings, action, json.loads(body or b"{}")),
            )
        except (ApiRefusal, ValueError) as error:
            code = error.code if isinstance(error, ApiRefusal) else "InvalidParameterException"
            status = error.status if isinstance(error, ApiRefusal) else 400
            return _json(start_response, status, {"__type": code, "message": str(error)})

    def _look(self, body: bytes, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """DescribeInstances: moto takes 25 ms, and many ask again and again while nothing changes."""
        there = self._cloud.states()
        if there != self._there:
            self._told.clear()
            self._there = there
        if body not in self._told:
            said: list[Any] = []

            def start(*words: Any) -> None:
                said[:] = words

            self._told[body] = said, list(self._pass_on(environ, start))
        words, pieces = self._told[body]
        line, headers, *rest = words
        start_response(line, list(headers), *rest)
        return pieces

    def _pass_on(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        def start(line: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            status = take_status()
            return start_response(
                _line(status) if status and not line.startswith("200") else line, headers, *rest
            )

        return list(self._moto(environ, start))


def _line(status: int) -> str:
    return f"{status} {_REASONS.get(status, 'Error')}"


def _answer(start_response: StartResponse, status: int, body: bytes, kind: str) -> Iterable[bytes]:
    start_response(_line(status), [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]


def _json(start_response: StartResponse, status: int, value: dict[str, Any]) -> Iterable[bytes]:
    return _answer(start_response, status, json.dumps(value).encode(), "application/json")


def _error(start_response: StartResponse, code: str, message: str, status: int) -> Iterable[bytes]:
    text = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Response><Errors><Error>'
        f"<Code>{escape(code)}</Code><Message>{escape(message)}</Message>"
        "</Error></Errors><RequestID>lab</RequestID></Response>"
    )
    return _answer(start_response, status, text.encode(), "text/xml;charset=UTF-8")
