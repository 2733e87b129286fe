"""`LabPlace`: where a lab's files lie, and the names that mark what belongs to it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from trainmaster.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LabPlace:
    """The lab of one home.

    Everything a lab leaves in the kernel bears `mark`, or is mounted below `directory`: that is how it is
    found again after a crash, and how the labs of other homes are left alone.

    Attributes:
        directory: the lab's state (``$TRAINMASTER_HOME/lab``).
        cache: images and layers (``$TRAINMASTER_CACHE/lab``).
        identity: eight hexadecimal digits that no other home has.
    """

    directory: Path
    cache: Path
    identity: str

    @classmethod
    def of_home(cls, root: Path, cache: Path, home_identity: str) -> LabPlace:
        """The lab of the home at ``root``."""
        digest = hashlib.sha256(home_identity.encode()).hexdigest()
        return cls((root / "lab").absolute(), (cache / "lab").absolute(), digest[:8])

    @property
    def mark(self) -> str:
        """What the lab's cgroups are called."""
        return f"tmlab-{self.identity}"

    @property
    def root_link(self) -> str:
        """The one interface that a lab puts into the machine's own network."""
        return f"tml{self.identity}"

    @property
    def namespaces(self) -> Path:
        """Network namespaces, one file each."""
        return self.directory / "net"

    @property
    def region_namespace(self) -> Path:
        """The namespace of the bridge between the hosts."""
        return self.namespaces / "region"

    @property
    def hosts(self) -> Path:
        """A directory per host."""
        return self.directory / "hosts"

    @property
    def images(self) -> Path:
        """A directory per image that was made of a host: what it has beside the system."""
        return self.hosts / "images"  # where disks can lie

    @property
    def lock(self) -> Path:
        """Held while a lab is put up or taken down."""
        return self.directory / "lock"

    @property
    def daemon_file(self) -> Path:
        """Process id, start time, endpoint and control token of the daemon."""
        return self.directory / "daemon.json"

    @property
    def settings_file(self) -> Path:
        """What the daemon was started with."""
        return self.directory / "settings.json"

    @property
    def log(self) -> Path:
        """What the daemon has to say."""
        return self.directory / "daemon.log"

    @property
    def access_file(self) -> Path:
        """What a provider needs to rent here: endpoint, keys, region, image, key pair."""
        return self.directory / "lab.json"

    @property
    def private_key(self) -> Path:
        """Of the key pair that the lab brings."""
        return self.directory / "key"

    @property
    def known_hosts(self) -> Path:
        """The hosts' own keys, for ssh."""
        return self.directory / "known_hosts"

    @property
    def prices(self) -> Path:
        """The price list, as a catalogue of our own layout."""
        return self.directory / "prices.csv"

    @property
    def hosts_file(self) -> Path:
        """The hosts that ``lab up --hosts`` booted, for the provider ``hosts``."""
        return self.directory / "hosts.yaml"

    def namespace(self, instance: str) -> Path:
        """The network namespace of a host."""
        return self.namespaces / instance

    def host(self, instance: str) -> Path:
        """The directory of a host: disk, console, seed."""
        return self.hosts / instance
