"""`ImClient`: Infrastructure Manager's REST API, as far as machines are rented with it."""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.providers.im.credentials import ImCredentials
from trainmaster.spec.errors import ProviderError
from trainmaster.spec.plain_json import parsed_json, typed
from trainmaster.transport.http_calls import HttpRefusedError, Send, said_of, send_request, why_unanswered

#: For an answer that IM has at once.
_TIMEOUT_S: Final = 60.0
#: For one that it gives when a cloud has done something: it asks one machine after the other there.
_LONG_S: Final = 900.0
_TEXT: Final = "text/plain"
_JSON: Final = "application/json"


class ImRefusedError(HttpRefusedError):
    """See `HttpRefusedError`; its words are without secrets."""

    place, page = "Infrastructure Manager", "im"


@dataclass(frozen=True, slots=True)
class ImState:
    """Of an infrastructure.

    Attributes:
        state: of all of it, such as ``pending``.
        machines: the number of each machine -> its state. Right after it was made there are none.
    """

    state: str
    machines: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A machine that an addition has begun and not come to the end with.

    Attributes:
        number: in its infrastructure.
        is_listed: it is among those of `ImState`: its cloud has one.
        is_worked_on: the addition goes on; else IM was started anew, and has forgotten it.
    """

    number: str
    is_listed: bool
    is_worked_on: bool


class ImClient:
    """One login to IM. Threads may share it; nothing is kept between calls.

    Args:
        url: of the API.
        credentials: that go with every call.
        send: carries requests.
    """

    def __init__(self, url: str, credentials: ImCredentials, send: Send | None = None) -> None:
        self._url = url.rstrip("/")
        self._credentials = credentials
        self._send = send or send_request

    def version(self) -> str:
        """Its version, which needs no login."""
        return str(_field(self._call("GET", "/version"), "version"))

    def infrastructures(self) -> list[str]:
        """Ids of all that this login has."""
        return _ids(self._call("GET", "/infrastructures"))

    def create(self, radl: str) -> str:
        """Begin to make an infrastructure; its id. It returns before there are machines."""
        answer = self._call("POST", "/infrastructures?async=1", radl)
        return str(_field(answer, "uri")).rstrip("/").rpartition("/")[2]

    def add(self, infrastructure: str, radl: str) -> list[str]:
        """Make further machines in it; their numbers."""
        path = f"/infrastructures/{infrastructure}?context=0"
        return _ids(self._call("POST", path, radl, timeout_s=_LONG_S))

    def state(self, infrastructure: str) -> ImState:
        """How far it is."""
        answer = self._call("GET", f"/infrastructures/{infrastructure}/state")
        try:
            found = typed(dict[str, Any], _field(answer, "state"))
            machines = typed(dict[str, str], found.get("vm_states") or {})
        except ValueError as error:
            raise _strange(str(error)) from None
        return ImState(str(found.get("state", "")), machines)

    def unfinished(self, infrastructure: str) -> list[Unfinished]:
        """Machines of additions that have not ended, or never will."""
        answer = self._call("GET", f"/infrastructures/{infrastructure}/data")
        try:
            told = parsed_json(typed(dict[str, str], parsed_json(answer))["data"])
            machines = typed(list[dict[str, Any]], told["vm_list"])
        except (ValueError, KeyError, TypeError):  # nothing of it is told: keys are in it
            raise _strange(f"no machines in what it has of {infrastructure}") from None
        # What is not configured yet is None there, and False in what was read from IM's database.
        return [
            Unfinished(str(each["im_id"]), not each.get("destroy"), each.get("configured") is not False)
            for each in machines
            if each.get("creating") and "im_id" in each
        ]

    def description(self, infrastructure: str) -> str:
        """The RADL that it stands on."""
        return self._call("GET", f"/infrastructures/{infrastructure}/radl", accept=_TEXT)

    def machine(self, infrastructure: str, number: str) -> str:
        """The RADL of a machine: addresses, user, key."""
        return self._call("GET", f"/infrastructures/{infrastructure}/vms/{number}", accept=_TEXT)

    def message(self, infrastructure: str, number: str = "") -> str:
        """What IM has to say of how it, or one of its machines, was made: why it failed."""
        of = f"/vms/{number}" if number else ""
        return self._call("GET", f"/infrastructures/{infrastructure}{of}/contmsg", accept=_TEXT)

    def remove(self, infrastructure: str, numbers: Sequence[str]) -> None:
        """Give machines back."""
        path = f"/infrastructures/{infrastructure}/vms/{','.join(numbers)}?context=0"
        self._call("DELETE", path, timeout_s=_LONG_S)

    def destroy(self, infrastructure: str, *, wait: bool = False) -> None:
        """Begin to give all of it back, or do so to the end, and hear what is in the way."""
        path = f"/infrastructures/{infrastructure}{'' if wait else '?async=1'}"
        self._call("DELETE", path, timeout_s=_LONG_S if wait else _TIMEOUT_S)

    def estimate(self, radl: str) -> Any:  # noqa: ANN401 - whatever it says
        """What it would make; nothing is made."""
        answer = self._call("POST", "/infrastructures?dry_run=1", radl, timeout_s=_LONG_S)
        return _json(answer)

    def quotas(self, cloud: str) -> dict[str, Any]:
        """What the account may have there: name -> ``used`` and ``limit``."""
        answer = self._call("GET", f"/clouds/{cloud}/quotas", timeout_s=_LONG_S)
        try:
            return typed(dict[str, Any], _field(answer, "quotas"))
        except ValueError as error:
            raise _strange(str(error)) from None

    def _call(
        self,
        method: str,
        path: str,
        body: str | None = None,
        *,
        accept: str = _JSON,
        timeout_s: float = _TIMEOUT_S,
    ) -> str:
        """One call.

        Raises:
            ImRefusedError: IM says no.
            ProviderError: it does not answer, or not as IM does; what was asked may have been done.
        """
        headers = {"Authorization": self._credentials.header, "Accept": accept, "Content-Type": _TEXT}
        data = None if body is None else body.encode()
        try:
            answer = self._send(method, self._url + path, headers, data, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            words = self._credentials.hidden(why_unanswered(error))
            raise ProviderError(
                f"Infrastructure Manager does not answer at {self._url}: {words}",
                "Is it up, and is `url` in im.yaml right?",
            ) from None
        if 200 <= answer.status < 300:
            return answer.text
        raise ImRefusedError(answer.status, self._credentials.hidden(said_of(answer.text)))


def _json(text: str) -> Any:  # noqa: ANN401 - whatever it says
    try:
        return parsed_json(text)
    except ValueError:
        raise _strange(text) from None


def _field(text: str, name: str) -> Any:  # noqa: ANN401 - whatever it is
    found = _json(text)
    if not isinstance(found, dict) or name not in found:
        raise _strange(text)
    return found[name]


def _ids(text: str) -> list[str]:
    """The last parts of a list of addresses."""
    listed = _field(text, "uri-list")
    try:
        uris = [str(typed(dict[str, Any], each)["uri"]) for each in listed]
    except (TypeError, ValueError, KeyError):
        raise _strange(text) from None
    return [uri.rstrip("/").rpartition("/")[2] for uri in uris]


def _strange(text: str) -> ProviderError:
    words = " ".join(text.split())[:200]
    return ProviderError(
        f"what answers at im.yaml's `url` is not Infrastructure Manager 2: {words}", "Correct the address."
    )
