"""Which mounts are whose: at one place there may be several after each other, and the old ones end late."""

import os

from trainmaster.volumes.mounting.mounts import detach, is_dead, mounted_at, mounts_at, recorded_devices


def new_record() -> int:
    """Makes what the guard and the server of a mount share: a file in memory with their mounts; close it."""
    return os.memfd_create("mounts", os.MFD_CLOEXEC)


class OwnMounts:
    """The mounts that one guard and its server have made.

    Each is known by its device, which nothing else has for as long as it can be found, or anybody has a
    file open there. After that the next mount may have it: so its end is noted at once.

    Args:
        directory: where they are.
        record: what :func:`new_record` gave to the process that started these.
    """

    def __init__(self, directory: str, record: int) -> None:
        self.directory = directory
        self.record = record
        self._seen: set[str] = set()
        os.set_inheritable(record, False)

    def add(self, device: str) -> None:
        """Notes a mount, if possible before it is there."""
        os.write(self.record, f"{device}\n".encode())

    def look(self) -> None:
        """Notes which have ended. For the server, whenever something was mounted or taken away."""
        there = {mounted.device for mounted in mounts_at(self.directory)} & self.devices()
        for device in self._seen - there:
            os.write(self.record, f"-{device}\n".encode())
        self._seen = there

    def devices(self) -> set[str]:
        """Those noted so far by either process, and not their ends."""
        return recorded_devices(os.pread(self.record, 1 << 16, 0).decode())

    def are_there(self) -> bool:
        """Whether one of them can still be found."""
        devices = self.devices()
        return any(mounted.device in devices for mounted in mounts_at(self.directory))

    def take_away(self) -> None:
        """Detaches them, as far as nothing of others lies above."""
        devices = self.devices()
        while (there := mounted_at(self.directory)) is not None and there.device in devices:
            if not detach(self.directory):
                break

    def take_away_remains(self) -> None:
        """The same when the server is over: it may have ended before it could note anything."""
        self.take_away()
        if not self.devices() and is_dead(self.directory):
            detach(self.directory)
