"""`NodePaths`: where things of this machine lie on nodes. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainmaster.control.task.layout import Home

_DIGEST_CHARACTERS: Final = 20


@dataclass(frozen=True, slots=True)
class NodePaths:
    """Maps paths of this machine to paths of nodes, the same on all of them.

    Attributes:
        home: here.
        run: whose directory is meant.
        root: on the nodes.
    """

    home: Home
    run: str
    root: str

    def there(self, here: Path) -> str:
        """The place on nodes of the run's own directory, of environments, or of data of the user.

        >>> home = Home(Path("/home/me/.tm"), Path("/home/me/.cache"), "", "")
        >>> NodePaths(home, "r1", "/var/tmp/tm").there(Path("/home/me/.tm/runs/r1/code"))
        '/var/tmp/tm/runs/r1/code'
        """
        for base, below in (
            (self.home.run_directory(self.run), f"runs/{self.run}"),
            (self.home.cache / "environments", "environments"),
        ):
            if here.is_relative_to(base):
                return str(Path(self.root, below, here.relative_to(base)))
        digest = hashlib.sha256(str(here).encode("utf-8", "surrogateescape")).hexdigest()[:_DIGEST_CHARACTERS]
        return f"{self.root}/data/{digest}/{here.name or 'data'}"

    def here(self, there: str) -> Path:
        """The place here of something in the run's directory of a node.

        Raises:
            ValueError: it lies somewhere else.
        """
        return self.home.run_directory(self.run) / Path(there).relative_to(f"{self.root}/runs/{self.run}")
