"""`messages`: server-sent events of a run, each once, over whatever happens to the connection.

`Listening`: what a server tells, as a `Stream`.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Final

from trainmaster.api.remote.connection import PAUSES_S, RestConnection, is_untrusted, quoted
from trainmaster.dataclass import dataclass


class Listening(Iterator[Any]):
    """To stop listening ends nothing on the server.

    Args:
        told: what it tells.
        interrupt: Ctrl-C; see `Stream.interrupt`.
    """

    def __init__(self, told: Generator[Any], interrupt: Callable[[], int] = lambda: 0) -> None:
        self._told = told
        self.interrupt = interrupt

    def __next__(self) -> Any:  # noqa: ANN401 - whatever is told
        return next(self._told)

    def close(self) -> None:
        """The listener is gone."""
        self._told.close()


#: A server that is away is asked again so often, after the first few times, in seconds.
_AGAIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ServerMessage:
    """One of them: its kind is ``state``, ``point`` or ``log``.

    Ours are ``away``, the connection broke, and ``quiet``, there is no news.
    """

    kind: str
    data: Mapping[str, Any]


def messages(
    connection: RestConnection, run: str, tail_bytes: int | None = None, since: str | None = None
) -> Iterator[ServerMessage]:
    """What happens to a run, from its beginning or near its end on, without an end.

    A server that is away, killed or replaced is asked again, for as long as it takes, from where it was.

    Args:
        connection: to the server.
        run: its id.
        tail_bytes: of logs that are there already at most so much; None for all.
        since: of logs that are there already only what was written in so long, such as ``5m``.

    Raises:
        TrainmasterError: what the server refuses.
    """
    last, tries, is_away = "", 0, False
    while True:
        try:
            headers = {"Last-Event-ID": last} if last else {}
            asks = {"tail": tail_bytes, "since": since}
            with connection.open(f"/runs/{quoted(run)}/stream", asks, headers) as answer:
                for name, message in _events(answer):
                    last, tries, is_away = name or last, 0, False
                    yield message
        except (OSError, http.client.HTTPException) as error:
            if is_untrusted(error):
                raise connection.unreachable(error) from error
            if not is_away:
                is_away = True
                yield ServerMessage("away", {"message": f"{connection.url} is away: {error}; trying again"})
        connection.sleep(PAUSES_S[tries] if tries < len(PAUSES_S) else _AGAIN_S)
        tries += 1


def _events(lines: Iterator[bytes]) -> Iterator[tuple[str, ServerMessage]]:
    """Id and content of each event that came whole."""
    event: dict[str, str] = {}
    for line in lines:
        if not line.endswith(b"\n"):
            return
        name, _, value = line.decode().rstrip("\r\n").partition(":")
        if line.startswith(b":"):
            yield "", ServerMessage("quiet", {})
        elif name:
            event[name] = value.removeprefix(" ")
        elif "data" in event:
            yield event.get("id", ""), ServerMessage(event.get("event", "message"), json.loads(event["data"]))
            event = {}
        else:
            event = {}
