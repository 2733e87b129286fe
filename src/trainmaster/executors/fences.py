"""Which driver of a run is the newest: what an earlier one, that slept or was cut off, still says is refused.

Each has a token that is larger than that of all before it (the lease of its run has it). The tokens are on
disk before a driver is answered: a supervisor that is killed must not forget them.
"""

# ruff: noqa: PTH105, PTH123 - pathlib would slow down the supervisor's start
from __future__ import annotations

import json
import os

from trainmaster.executors.wire import PROTOCOL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmaster.executors.wire import Message

#: So many runs are remembered, the latest ones.
_RUNS = 1024
#: Tokens count drivers of a run; none is this large.
_MOST = 1 << 63


class Fences:
    """The largest token of each run.

    Args:
        path: of the file that keeps them.
        note: writes a line into the log of the supervisor.
    """

    def __init__(self, path: str, note: Callable[[str], None]) -> None:
        self._path = path
        self._note = note
        self._tokens = _read(path, note)

    def admit(self, run: str, token: int) -> bool:
        """Whether a client with this token may speak for a run; then no client with a smaller one may.

        Args:
            run: its id.
            token: 0 for clients that drive no run and need none.
        """
        newest = self._tokens.get(run, 0)
        if 0 < token < newest:
            return False
        if token > newest:
            self._tokens.pop(run, None)
            self._tokens[run] = token
            while len(self._tokens) > _RUNS:
                del self._tokens[next(iter(self._tokens))]
            self._write()
        return True

    def welcome(self, message: Message) -> Message:
        """The answer to ``open``; with ``fenced`` if the client may not speak for its run any more."""
        run, token = leased(message)
        found: Message = {"reply": "open", "protocol": PROTOCOL, "pid": os.getpid()}
        if not self.admit(run, token):
            self._note(f"refused an earlier driver of {run}: its token is {token}")
            found["fenced"] = run
        return found

    def _write(self) -> None:
        draft = self._path + ".new"
        try:
            with open(draft, "w", opener=_private) as file:
                json.dump(self._tokens, file)
            os.replace(draft, self._path)
        except OSError as error:  # a full disk: what is in memory holds for as long as we live
            self._note(f"cannot remember which client drives what: {error}")


def leased(message: Message) -> tuple[str, int]:
    """Whose lease a driver has that says ``open``, and its token.

    To a supervisor all gangs of a cluster are those of one run; the driver has the lease of another.
    """
    return message.get("leased") or message["run"], message.get("token", 0)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _read(path: str, note: Callable[[str], None]) -> dict[str, int]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if not all(type(token) is int and 0 < token < _MOST for token in found.values()):
            raise ValueError("it has tokens that are none")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        note(
            f"{path} is damaged ({error}): until its next driver has come, an earlier one may speak for a run"
        )
        return {}
    tokens: dict[str, int] = found
    return tokens
