"""`Turns`: what a thread of a server does again and again goes on, whatever goes wrong once."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from trainmaster.spec.errors import TrainmasterError, one_line

#: What is over as soon as there is room, memory, a free descriptor or a disk that answers.
_PASSING: Final = (
    errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN
)  # fmt: skip

log = logging.getLogger(__name__)


def is_passing(error: BaseException) -> bool:
    """Whether this machine lacked something for a moment, so that the same may work later."""
    return isinstance(error, OSError) and error.errno in _PASSING


class Turns:
    """Turns of one loop: what goes wrong is logged, once as long as it is the same, and the next one comes.

    Args:
        name: of what the loop does, for the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._said = ""

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One turn: nothing that it raises gets out. The loop waits by itself before the next one."""
        try:
            yield
        except (TrainmasterError, OSError) as error:  # a database or store that is away, a full disk, ...
            self._say(f"{type(error).__name__}: {one_line(error)}")
        except Exception as error:
            if self._say(f"{type(error).__name__}: {error}"):
                log.exception("%s: internal error", self._name)
        else:
            if self._said:
                log.info("%s: goes on", self._name)
            self._said = ""

    def _say(self, what: str) -> bool:
        is_new, self._said = what != self._said, what
        if is_new:
            log.warning("%s: %s; tried again", self._name, what)
        return is_new
