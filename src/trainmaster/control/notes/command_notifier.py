"""`CommandNotifier`: a command of the user's own gets the message on its standard input."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping

from trainmaster.control.notes.notifier import Message
from trainmaster.spec.errors import TrainmasterError

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
            said = _last_words(process, process.stderr.fileno())
        if process.returncode == -signal.SIGKILL:
            raise TrainmasterError(f"the command had not ended after {timeout_s:.0f} s")
        if process.returncode:
            raise TrainmasterError(
                f"the command ended with code {process.returncode}" + (f": {said}" if said else "")
            )


def _last_words(process: subprocess.Popen[bytes], descriptor: int) -> str:
    """Wait for its end; what it said last. What it left in the background may hold its stderr for ever."""
    said, is_open = b"", True
    poll = select.poll()  # a driver of many runs has descriptors that `select` does not take
    poll.register(descriptor, select.POLLIN)
    while True:
        has_ended = process.poll() is not None  # read before it is looked
        if is_open and poll.poll(0 if has_ended else _LOOK_S * 1000):
            piece = os.read(descriptor, 1 << 16)  # all that a pipe holds
            is_open = bool(piece)
            said = (said + piece)[-_SHOWN_BYTES:]
        if has_ended:
            return said.decode(errors="replace").strip()
        if not is_open:
            process.wait()
