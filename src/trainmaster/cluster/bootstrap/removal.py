"""Taking everything of ours off a host again."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import Final

from trainmaster.cluster.bootstrap.facts import parse_facts, probe_script
from trainmaster.transport.errors import CommandError
from trainmaster.transport.ssh import Ssh
from trainmaster.transport.target import Target

#: A directory that lies no deeper than that was named by mistake.
_SHALLOW: Final = 2


def end_mounts_command(directory: str) -> str:
    """A shell command that ends what is mounted below a directory; whoever reads there still, may finish.

    Without it, removing the directory would go through a whole volume, file by file, in vain.
    """
    return (
        # The kernel's table knows no links.
        f"below=$(cd -- {shlex.quote(directory)} 2>/dev/null && pwd -P) && "
        'while read -r _ _ _ _ at _; do case $at in "$below"/*) '
        'umount -l -- "$at" 2>/dev/null || fusermount3 -u -z -q -- "$at" 2>/dev/null || '
        'fusermount -u -z -q -- "$at" ;; '
        "esac; done < /proc/self/mountinfo"
    )


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
        command = f"{end_mounts_command(root)}; exec rm -rf -- {shlex.quote(root)}"
        connection.check(command, timeout_s=300.0)
