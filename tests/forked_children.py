"""Children that a test forks. None of them goes on as a second pytest, or waits for ever."""

import faulthandler
import os
import signal
import traceback
from collections.abc import Callable

LIMIT_S = 20


def forked(work: Callable[[], object]) -> int:
    """Forks a child that does ``work`` and ends; gives its process id.

    One that raises has the exit status 1. One that hangs tells where, and is ended by a signal.
    """
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest's own would raise here
        signal.alarm(LIMIT_S)
        faulthandler.dump_traceback_later(LIMIT_S // 2, file=2)
        work()
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it is, it ends here
        traceback.print_exc()
    finally:
        os._exit(status)


def exit_code(child: int) -> int:
    """Waits for a child; negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
