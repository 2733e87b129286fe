"""Taking everything of ours off a host again."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import Final

from trainmaster.remote.connection import Ssh
from trainmaster.remote.errors import CommandError
from trainmaster.remote.facts import parse_facts, probe_script
from trainmaster.remote.target import Target

#: A directory that lies no deeper than that was named by mistake.
_SHALLOW: Final = 2


def remove_runtime(ssh: Ssh, target: Target) -> None:
    """Take everything of ours off a host: runtimes, code, keys of clusters.

    Raises:
        CommandError: it cannot be removed.
    """
    with ssh.connect(target) as connection:
        facts = parse_facts(connection.shell(probe_script(target.directory, target.python)).out, 0.0, 0.0)
        root = facts.root if facts else ""
        if len(PurePosixPath(root).parts) <= _SHALLOW:
            raise CommandError(
                f"{target.shown}: '{root}' is not removed: it is not ours alone", "Remove it by hand."
            )
        connection.check(f"exec rm -rf {shlex.quote(root)}", timeout_s=300.0)
