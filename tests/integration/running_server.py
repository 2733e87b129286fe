"""`RunningServer`: a `trainmaster server` that a test has started, and what it is asked over TCP."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import urllib.request
from collections.abc import Callable
from typing import Any


class RunningServer:
    """A server, started by what can call the command line, and asked with one token.

    Attributes:
        begin: starts the command line with these arguments, in the background.
        process: the server's process.
        token: of all requests.
    """

    def __init__(self, begin: Callable[..., Any], token: str = "") -> None:
        self.begin = begin
        self.token = token
        self.port = "0"

    def start(self) -> Any:
        """Start it, or start it again where it was: on the same port."""
        self.process = self.begin("server", "--port", self.port, "--json")
        self.process.until(lambda: self.process.out.endswith("\n"), "the server is ready")
        said = json.loads(self.process.out)
        self.url, self.setup_url = said["url"], said["setup_url"]
        self.port = self.url.rpartition(":")[2]
        return self.process

    def open(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The answer, which is still to be read; a body that is not bytes is sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        request.add_header("Authorization", f"Bearer {self.token}")
        if data is not None:
            request.add_header("Content-Type", "application/json")
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        return urllib.request.urlopen(request, timeout=120)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON of an answer of the API."""
        with self.open(method, "/api/v1" + path, body, **headers) as answer:
            return answer.status, json.load(answer)

    def send(self, script: str, wanted: dict[str, Any], **headers: str) -> tuple[int, Any]:
        """A run whose code is one file, ``train.py``."""
        return self.ask("POST", "/runs", {**wanted, "code": self.put_code(script)}, **headers)

    def put_code(self, script: str) -> str:
        """Code that is one file, ``train.py``; what it is called."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            member = tarfile.TarInfo("train.py")
            member.size = len(script)
            archive.addfile(member, io.BytesIO(script.encode()))
        digest = hashlib.sha256(packed.getvalue()).hexdigest()
        self.ask("PUT", f"/code/{digest}", packed.getvalue())
        return digest
