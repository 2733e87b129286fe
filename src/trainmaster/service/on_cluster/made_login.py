"""`MadeLogin`: the login that was made for the machine that drives a run; it goes when that drives no more.

To remove it may take long, and whoever does that may be killed: until it is gone, the home has a note of it.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainmaster.providers.base import ProviderPlace
from trainmaster.providers.sent_settings import DriverLogin, driver_login
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.private_files import short_digest, write_private

#: In a home: what was to be removed, and may be left.
NOTES: Final = "logins"
#: A process that ends waits so long for what it has found left, in seconds.
_LEAVES_WITHIN_S: Final = 10.0
#: What could not be removed is tried again then: each command would wait for a place that does not answer.
_AGAIN_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class MadeLogin:
    """That of one machine; where its place makes none, there is nothing to do.

    Attributes:
        place: the home.
        provider: of the machine.
        cluster: that it belongs to.
        machine: as its provider calls it.
    """

    place: ProviderPlace
    provider: str
    cluster: str
    machine: str

    def make(self) -> Mapping[str, str]:
        """See `DriverLogin.make`; nothing where the user's own login is sent."""
        self._note.unlink(missing_ok=True)
        login = self._login()
        return {} if login is None else login.make(self.cluster, self.machine)

    def remove(self) -> None:
        """Remove it; if that fails it goes with the machine, too."""
        with suppress(TrainmasterError):
            if login := self._login():
                login.remove(self.cluster, self.machine)
            self._note.unlink(missing_ok=True)

    def note(self) -> None:
        """From now on a later process of the home removes it, if this one does not."""
        with suppress(TrainmasterError):  # what is missing in the settings just now
            if self._login() is None:
                return
        told = (self.place.identity, self.provider, self.cluster, self.machine)
        write_private(self._note, json.dumps(told).encode())
        os.utime(self._note, (0, 0))  # nobody was to do it before

    def remove_meanwhile(self) -> threading.Thread:
        """The same as `remove`, in the background."""
        removing = threading.Thread(target=self.remove, name=f"{self.machine}: removes a login", daemon=True)
        atexit.register(removing.join, _LEAVES_WITHIN_S)
        removing.start()
        return removing

    def _login(self) -> DriverLogin | None:
        return driver_login(self.provider, self.place)

    @property
    def _note(self) -> Path:
        return self.place.root / NOTES / short_digest(f"{self.cluster} {self.machine}")


def remove_left(root: Path, environ: Mapping[str, str]) -> None:
    """What a process of a home was to remove that was killed meanwhile is removed, in the background."""
    for note in (root / NOTES).glob("*"):
        with suppress(OSError, ValueError):  # another process has just removed it
            if abs(time.time() - note.stat().st_mtime) < _AGAIN_S:
                continue
            os.utime(note)
            home, provider, cluster, machine = json.loads(note.read_bytes())
            MadeLogin(ProviderPlace(root, home, environ), provider, cluster, machine).remove_meanwhile()
