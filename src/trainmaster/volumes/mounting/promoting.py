"""A mount that becomes the kernel's when all of its volume is in the cache."""

import sys
import threading

import numpy as np

from trainmaster.spec.errors import TrainmasterError, one_line
from trainmaster.volumes.errors import NoImageError
from trainmaster.volumes.mounting.kernel import OwnMounts, fits, require_room, show, usable
from trainmaster.volumes.mounting.mounts import detach, mounted_at
from trainmaster.volumes.reading.slot_table import SUSPECT, VALID
from trainmaster.volumes.reading.volume import Volume

_LOOK_AGAIN_S = 0.5
_AFTER_TROUBLE_S = 60.0
# When so much of it was read, the rest is fetched too.
_MOST = 7 / 8


class MountPromotion(threading.Thread):
    """Waits until the chunks are there, then puts the kernel's mount in the place of the server's.

    Files that are open in the old one, and directories that somebody is in, stay as they are.

    Attributes:
        succeeded: whether it has happened.
    """

    def __init__(self, volume: Volume, own: OwnMounts) -> None:
        super().__init__(name="promotion", daemon=True)
        self._volume = volume
        self._own = own
        self._directory = own.directory
        self._fits = usable() and fits(volume)
        self._prefixes = volume.chunk_prefixes() if self._fits else np.empty(0, np.uint64)
        self._ended = threading.Event()
        self._last_note = ""
        self.succeeded = False

    def at_once(self, *, insists: bool) -> bool:
        """Mounts it now if all is there and proved, in an empty place.

        Args:
            insists: fetch what is missing, and say why where it cannot be.

        Raises:
            TrainmasterError: only with ``insists``.
        """
        cache = self._volume.cache
        if not insists and not (self._fits and cache.resident(self._prefixes).all()):
            return False

        def ready(device: str) -> bool:
            self._own.add(device)
            return True

        try:
            if insists:
                require_room(self._volume)
            self.succeeded = show(
                self._volume, self._directory, when_ready=ready, beneath=False, patient=insists
            )
        except OSError as error:
            if insists:
                raise NoImageError(f"the kernel refused it ({error})") from error
            self._give_up(error)
        except TrainmasterError as error:
            if insists:
                raise
            if isinstance(error, NoImageError):
                self._give_up(error)
        return self.succeeded

    def run(self) -> None:
        """Looks again and again."""
        if not self._fits:
            return
        pause_s = _LOOK_AGAIN_S
        served = mounted_at(self._directory)

        def ready(device: str) -> bool:
            # Not in place of what others have mounted there while readers hold this one.
            if self._ended.is_set() or mounted_at(self._directory) != served:
                return False
            self._own.add(device)
            return True

        while not self._ended.wait(pause_s):
            pause_s = _LOOK_AGAIN_S
            if not self._is_nearly_there():
                continue
            try:
                self.succeeded = show(self._volume, self._directory, when_ready=ready, beneath=True)
                if self.succeeded:
                    detach(self._directory)
                return
            except (NoImageError, OSError) as error:
                self._give_up(error)
            except TrainmasterError as error:
                self._note(error)
                pause_s = _AFTER_TROUBLE_S

    def end(self) -> None:
        """Stops looking."""
        self._ended.set()

    def _is_nearly_there(self) -> bool:
        slots = self._volume.cache.slots
        slots.refresh()
        states, prefixes = slots.table.states(), slots.table.prefixes()
        there = prefixes[(states == VALID) | (states == SUSPECT)]
        return bool(np.isin(self._prefixes, there).mean() >= _MOST) if len(self._prefixes) else True

    def _give_up(self, error: Exception) -> None:
        self._note(error)
        self._ended.set()

    def _note(self, error: Exception) -> None:
        """For the log of the mount. The promotion is optional, so its failure is no error."""
        words = one_line(error) if isinstance(error, TrainmasterError) else str(error)
        if words != self._last_note:
            sys.stderr.write(f"note: the kernel does not read this volume itself: {words}\n")
            sys.stderr.flush()
        self._last_note = words
