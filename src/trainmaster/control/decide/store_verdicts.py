"""What trouble with a store or a web server that data come from means for a run: pure.

What is to be *saved* waits whatever is wrong with its store; see `saving.is_lasting`.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from trainmaster.objects.errors import StoreTrouble


class NoticedAt(Enum):
    """When it is noticed."""

    CHECK = auto()  #: Data are looked for, before anything is started.
    FIRST = auto()  #: An attempt is staged here, and nothing has worked yet.
    LATER = auto()  #: An attempt is staged here, and others have been before it.
    NODE = auto()  #: A node gets files or data.


class StoreVerdict(Enum):
    """What follows."""

    WAIT = auto()  #: It is asked again later, and costs the script none of its retries.
    GIVE_UP = auto()  #: The attempt fails; what fails on a node is tried again a few times before.
    USER_ERROR = auto()  #: Only the user can do something about it.


_USUAL: Final = {
    NoticedAt.CHECK: StoreVerdict.USER_ERROR,
    NoticedAt.FIRST: StoreVerdict.GIVE_UP,
    NoticedAt.LATER: StoreVerdict.GIVE_UP,
    NoticedAt.NODE: StoreVerdict.GIVE_UP,
}
#: What only the user can mend: keys that are wrong or have expired, permissions, a bucket that is not there.
#: On a node the keys may be ours, lent for a while, so it asks a few times; what it is told last comes here.
_USERS: Final = (StoreTrouble.REFUSED, StoreTrouble.MISSING)
#: Where nothing has worked yet, an address that does not answer is more likely a wrong one. Whoever sees to
#: this machine can make room on its disk; on a node whose disk is full it would fail in the same way again.
_ELSE: Final = {
    **{
        (moment, trouble): StoreVerdict.USER_ERROR
        for moment in (NoticedAt.FIRST, NoticedAt.LATER)
        for trouble in _USERS
    },
    (NoticedAt.CHECK, StoreTrouble.UNREACHABLE): StoreVerdict.WAIT,
    (NoticedAt.FIRST, StoreTrouble.FULL): StoreVerdict.WAIT,
    (NoticedAt.LATER, StoreTrouble.UNREACHABLE): StoreVerdict.WAIT,
    (NoticedAt.LATER, StoreTrouble.FULL): StoreVerdict.WAIT,
    (NoticedAt.NODE, StoreTrouble.UNREACHABLE): StoreVerdict.WAIT,
    (NoticedAt.NODE, StoreTrouble.FULL): StoreVerdict.USER_ERROR,
}


def verdict(moment: NoticedAt, trouble: StoreTrouble) -> StoreVerdict:
    """What trouble means at a moment.

    >>> verdict(NoticedAt.LATER, StoreTrouble.UNREACHABLE)
    <StoreVerdict.WAIT: 1>
    """
    return _ELSE.get((moment, trouble), _USUAL[moment])
