"""`Target`: where to connect to, and as whom."""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Target:
    """A machine with an SSH server.

    Attributes:
        name: in messages.
        address, port, user: where to, and as whom; an empty user is the caller.
        key: private key file; None for the user's agent and usual keys.
        host_key: ``type base64``; empty for what was pinned.
        pin_as: what its host key is pinned as; ``[address]:port`` by default. Rented machines are pinned by
            id, as addresses come back with other machines behind them.
        private_address: where other machines reach it.
        jump: to go through; None for none.
        python, directory: see ``docs/hosts.md``.
    """

    name: str
    address: str
    port: int = 22
    user: str = ""
    key: Path | None = None
    host_key: str = ""
    pin_as: str = ""
    private_address: str = ""
    jump: Target | None = None
    python: str = ""
    directory: str = ""

    @property
    def login(self) -> str:
        """The user to log in as."""
        return self.user or getpass.getuser()

    @property
    def shown(self) -> str:
        """Name and address, as far as they differ.

        >>> Target("gpu1", "10.0.0.5", 2222).shown, Target("10.0.0.5", "10.0.0.5").shown
        ('gpu1 (10.0.0.5:2222)', '10.0.0.5')
        """
        address = self.address if self.port == 22 else f"{self.address}:{self.port}"
        return self.name if address == self.name else f"{self.name} ({address})"

    @property
    def pin(self) -> str:
        """As OpenSSH names it in ``known_hosts``.

        >>> Target("a", "10.0.0.5").pin, Target("a", "10.0.0.5", 2222).pin
        ('10.0.0.5', '[10.0.0.5]:2222')
        """
        return self.pin_as or (self.address if self.port == 22 else f"[{self.address}]:{self.port}")
