"""The command line: one file per verb, thin over `Service`.

Verbs import what they need when they run, so that ``--help`` and errors are quick.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code."""
    # Imports make much and drop nothing: without collection they are an eighth faster. `drive_to_end`
    # turns it on again for what takes long.
    gc.disable()
    # Until a verb catches it: a KeyboardInterrupt in the middle of an import shows as anything but itself.
    signal.signal(signal.SIGINT, _interrupted)
    from trainmaster.cli.app import app
    from trainmaster.spec.errors import TrainmasterError

    try:
        app()
    except TrainmasterError as error:
        from trainmaster.cli.output import say_error

        say_error(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # `trainmaster logs RUN | head`
        sys.stderr.close()
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)


def _interrupted(_signal: int, _frame: FrameType | None) -> None:
    os._exit(130)
