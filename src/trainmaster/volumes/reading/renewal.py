"""What a forked child has to make again before it goes on.

Only the thread that forked is there. What the parent's other threads held is held for ever: a lock is
never given back, and a chunk that one of them was fetching never comes. So everything that has locks or
threads, and that a child may use, is renewed. ``DataLoader`` forks its workers in the middle of an epoch.
"""

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """Something that a forked child uses, too."""

    def after_fork(self) -> None:
        """In a forked child: locks of its own, and nothing that only a thread of the parent would end."""


_all: "weakref.WeakSet[Renewable]" = weakref.WeakSet()


def renew_after_fork(one: Renewable) -> None:
    """Has ``one.after_fork()`` called in every forked child, in no order."""
    _all.add(one)


def _renew_all() -> None:
    failed: Exception | None = None
    for one in list(_all):
        try:
            one.after_fork()
        except Exception as error:  # noqa: BLE001 - the others must not keep the parent's locks for that
            failed = error
    if failed is not None:
        raise failed  # Python prints it: no caller is left to catch it


os.register_at_fork(after_in_child=_renew_all)
