"""`KnownCallers`: what tokens and sessions allowed a moment ago, for requests that only read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trainmaster.db import Database
    from trainmaster.service.users.caller import Caller, Credential

#: So long what another server or a command has ended may go on to read here, in seconds.
KEPT_S: Final = 2.0
_MOST: Final = 10_000


@dataclass
class KnownCallers:
    """Callers by what they showed. What this process changes of any rights, it forgets all of them at once.

    Args:
        database: of the home.
        clock: monotonic seconds.
    """

    database: Database
    clock: Callable[[], float] = time.monotonic
    _known: dict[Credential, tuple[Caller, float, object]] = field(default_factory=dict, init=False)

    def of(self, credential: Credential, ask: Callable[[], Caller]) -> Caller:
        """What a credential allows.

        Args:
            credential: a token or session.
            ask: looks it up.

        Raises:
            UnknownCallerError, NotFoundError: as `ask` does; that is not kept.
        """
        # Both are from before the look: what changes meanwhile makes it too old.
        now, rights = self.clock(), self.database.rights
        caller, at, then = self._known.get(credential, (None, 0.0, None))
        is_new = then is rights and now - at < KEPT_S
        if caller is not None and is_new and caller.expires_at > self.database.clock_s():
            return caller
        caller = ask()
        if len(self._known) >= _MOST:
            self._known = {}
        self._known[credential] = (caller, now, rights)
        return caller
