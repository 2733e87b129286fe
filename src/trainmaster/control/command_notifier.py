"""`CommandNotifier`: a command of the user's own gets the message on its standard input."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress

from trainmaster.control.notifier import Message
from trainmaster.spec.errors import TrainmasterError

_SHOWN_CHARACTERS = 300


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
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**self._environ, "TRAINMASTER_MESSAGE_ID": message.id},
            start_new_session=True,  # Ctrl-C is for the run; and its children end with it
        )
        try:
            _, said = process.communicate(f"{message.json()}\n".encode(), timeout_s)
        except subprocess.TimeoutExpired:
            raise TrainmasterError(f"the command had not ended after {timeout_s:.0f} s") from None
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        if process.returncode:
            last = said.decode(errors="replace").strip()[-_SHOWN_CHARACTERS:]
            raise TrainmasterError(
                f"the command ended with code {process.returncode}" + (f": {last}" if last else "")
            )
