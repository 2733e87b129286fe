"""`LabClient`: the command line's side of a lab that runs."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any, Final

from trainmaster.lab.api_token import TOKEN_HEADER
from trainmaster.lab.errors import LabError
from trainmaster.lab.place import LabPlace
from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.spec.processes import is_alive

_TIMEOUT_S: Final = 60.0


class LabClient:
    """Asks a lab's daemon.

    Args:
        endpoint: of the daemon.
        token: that lets in.
        pid: of the daemon.
    """

    def __init__(self, endpoint: str, token: str, pid: int) -> None:
        self.endpoint = endpoint
        self.pid = pid
        self._token = token

    @classmethod
    def attach(cls, place: LabPlace) -> LabClient | None:
        """To the lab of this place; None if none is up.

        Raises:
            UsageError: this user may not.
        """
        try:
            values = json.loads(place.daemon_file.read_text())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        except PermissionError:
            raise UsageError(
                f"the lab in {place.directory.parent} is somebody else's", "Run it as root."
            ) from None
        if not is_alive(values["pid"], values["start_time"]):
            return None
        return cls(values["endpoint"], values["token"], values["pid"])

    @classmethod
    def require(cls, place: LabPlace) -> LabClient:
        """To the lab of this place.

        Raises:
            UsageError: none is up.
        """
        found = cls.attach(place)
        if found is None:
            raise UsageError(f"no lab is up in {place.directory.parent}", "Put one up: `trainmaster lab up`.")
        return found

    def do(self, verb: str, timeout_s: float = _TIMEOUT_S, **arguments: Any) -> dict[str, Any]:
        """Have the daemon do something.

        Raises:
            NotFoundError: there is no such host.
            UsageError: that cannot be asked for.
            LabError: it went wrong.
        """
        request = urllib.request.Request(  # noqa: S310 - our own endpoint
            f"{self.endpoint}/lab/{verb}",
            data=json.dumps(arguments).encode(),
            headers={TOKEN_HEADER: self._token, "Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout_s) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            with error:
                said = json.loads(error.read() or b"{}")
            kind = {404: NotFoundError, 400: UsageError}.get(error.code, LabError)
            raise kind(said.get("error", f"HTTP {error.code}"), said.get("hint", "")) from None
        except OSError as error:
            raise LabError(
                f"the lab's daemon (process {self.pid}) does not answer: {error}", "See daemon.log."
            ) from None
