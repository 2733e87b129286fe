"""`Notifier`: what tells somebody of an event, and how one is found by its name.

`CommandNotifier`: a command of the user's own gets the message on its standard input.
"""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, Protocol

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.plugins import PluginRegistry
from trainmaster.spec.processes import said_by

_SHOWN_BYTES = 300
_LOOK_S = 0.05


class CommandNotifier:
    """Runs ``to`` as a bash script, with the message as a line of JSON on its standard input.

    Raises:
        TrainmasterError: (`send`) it ended with another code than 0, or not in time.
    """

    def __init__(self, to: str, environ: Mapping[str, str]) -> None:
        self._command = to
        self._environ = {**environ}

    def send(self, message: Message, timeout_s: float) -> None:
        """See `Notifier.send`."""
        with tempfile.TemporaryFile() as told:
            told.write(f"{message.json()}\n".encode())
            told.seek(0)
            process = subprocess.Popen(
                # It ends also if the driver has ended meanwhile; and so do its children: it leads a group.
                ["timeout", "-s", "KILL", str(timeout_s), "bash", "-euo", "pipefail", "-c", self._command],
                stdin=told,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**self._environ, "TRAINMASTER_MESSAGE_ID": message.id},
                start_new_session=True,  # Ctrl-C is for the run
            )
        assert process.stderr is not None
        with process.stderr:
            last = b""
            for _, piece in said_by(process, process.stderr, look_s=_LOOK_S):
                last = (last + piece)[-_SHOWN_BYTES:]
            process.wait()
        said = last.decode(errors="replace").strip()
        if process.returncode == -signal.SIGKILL:
            raise TrainmasterError(f"the command had not ended after {timeout_s:.0f} s")
        if process.returncode:
            raise TrainmasterError(
                f"the command ended with code {process.returncode}" + (f": {said}" if said else "")
            )


@dataclass(frozen=True, slots=True)
class Message:
    """One event, as it is sent to one subscriber.

    Attributes:
        id: the same each time that this message is sent, so that a receiver can leave out what it has had.
        run: id of the run.
        event: id of the event; those of later events are larger.
        at: Unix seconds.
        kind: ``run``, ``experiment``, ``task`` or ``note``.
        before: the state until then; None if it is no change of a state.
        after: the state since then; None if it is no change of a state.
        reason: why it ended; None if it did not end.
        message: for people; may be empty.
        experiment: None if it is about the whole run.
        task: None if it is about no single task.
        attempt: None if it is about no single attempt.
    """

    id: str
    run: str
    event: int
    at: float
    kind: str
    before: str | None = None
    after: str | None = None
    reason: str | None = None
    message: str = ""
    experiment: str | None = None
    task: int | None = None
    attempt: int | None = None

    @classmethod
    def of(cls, row: Mapping[Any, Any]) -> Message:
        """From a row of `Database.messages`."""
        names = ("at", "kind", "before", "after", "reason", "message", "experiment", "task", "attempt")
        message_id = f"{row['run_id']}.{row['event_id']}.{row['subscription']}"
        return cls(message_id, row["run_id"], row["event_id"], **{name: row[name] for name in names})

    def json(self) -> str:
        """One JSON object on one line."""
        return json.dumps(asdict(self))


class Notifier(Protocol):
    """Tells one subscriber. Made with its ``to`` and the driver's environment, for each message again.

    Whatever `send` raises means that the message was not taken: it is sent again, for a day.
    It is sent again, too, when the driver dies before it has written down that it was taken.
    """

    def __init__(self, to: str, environ: Mapping[str, str]) -> None:
        """Look at what the recipe says; nothing is sent.

        Args:
            to: as in the recipe.
            environ: variables of whoever runs or resumes; secrets are there, never in ``to``.

        Raises:
            UsageError: ``to`` can never be right.
        """

    def send(self, message: Message, timeout_s: float) -> None:
        """Send one message; return when it was taken.

        Args:
            message: what happened.
            timeout_s: raise after so many seconds: others wait behind it.
        """


NOTIFIERS: Final = PluginRegistry(
    "notifier", {"command": "trainmaster.control.notes.notifier:CommandNotifier"}
)


def make_notifier(name: str, to: str, environ: Mapping[str, str]) -> Notifier:
    """A notifier by its name.

    Raises:
        UsageError: the name is unknown, or ``to`` is wrong.
        MissingPartError: a plug-in has the name, but cannot be loaded.
    """
    found: Notifier = NOTIFIERS.make(name, to, environ)
    return found
