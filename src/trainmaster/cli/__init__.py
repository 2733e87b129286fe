"""The command line: one file per verb, thin over a `ClientProtocol`.

Verbs import what they need when they run, so that ``--help`` and errors are quick.
"""

from __future__ import annotations

# As little as can be: a Ctrl-C before `main` is Python's to answer, with a traceback.
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Final

__all__ = ["main"]

#: Objects that are made and not dropped before the youngest are looked through; 700 is Python's own. A run on
#: rented machines makes fewer before its first task runs.
_COLLECTED_AFTER: Final = 400_000


def main() -> None:
    """Run the command line and exit with its code."""
    # Until a verb catches it: a KeyboardInterrupt in the middle of an import shows as anything but itself.
    signal.signal(signal.SIGINT, _interrupted)
    import atexit
    import gc

    # Imports make much and drop nothing: looked through so seldom, they are as fast as without collection.
    # It is never off: any verb may take long.
    gc.set_threshold(_COLLECTED_AFTER)
    atexit.register(gc.freeze)  # Python looks through all of it at its end, though that frees nothing sooner
    _fill_closed_streams()
    from trainmaster.cli.app import app
    from trainmaster.spec.errors import TrainmasterError, UsageError

    try:
        try:
            app()
        except RuntimeError as error:
            # Of pathlib, whose error has no type of its own; expanduser says the same, and raises nothing.
            if "home directory" not in str(error) or os.path.expanduser("~") != "~":  # noqa: PTH111
                raise
            raise UsageError(
                f"HOME is not set, and the user {os.getuid()} is not in /etc/passwd",
                "Set HOME to a directory that you can write.",
            ) from error
    except TrainmasterError as error:
        from trainmaster.cli.output import say_error

        say_error(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # `trainmaster logs RUN | head`: the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python complains when it flushes at its end
        sys.exit(0)
    except OSError as error:  # a full disk, a file without permission: nothing that a traceback would explain
        where = f"{error.filename}: " if error.filename else ""
        from trainmaster.spec.redaction import redacted

        sys.stderr.write(redacted(f"error: {where}{error.strerror or error}\n"))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _fill_closed_streams() -> None:
    """``2>&-`` would let the next file that is opened take the place of standard error."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def _interrupted(_signal: int, _frame: FrameType | None) -> None:
    os._exit(130)
