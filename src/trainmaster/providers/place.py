"""`ProviderPlace`: where a provider keeps what it must remember, and whose machines are whose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProviderPlace:
    """The home as providers see it.

    Attributes:
        root: all state (``TRAINMASTER_HOME``).
        identity: a name that no other home has. Machines are tagged with it; others are not touched.
        environ: the caller's variables, for settings and credentials.
        saved: called when something was written that is needed to go on, before it is relied on.
    """

    root: Path
    identity: str
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    saved: Callable[[], None] = field(default=lambda: None, repr=False)

    def directory(self, provider: str) -> Path:
        """Where the provider of that name may write; it is private."""
        path = self.root / "providers" / provider
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path
