"""The recipe's ``setup`` on nodes: a virtual environment on each, made once."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.cluster.bootstrap.guest_calls import ask_guest, guest_words
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmaster.cluster.node_access import NodeAccess

#: It may build things. Another attempt's is waited for as long.
_TIMEOUT_S: Final = 6 * 3600
_LOG: Final = "@@log "


def set_up_node(
    access: NodeAccess, path: str, script: str, cwd: str, variables: Mapping[str, str], log: Path
) -> None:
    """Make a virtual environment with the node's own Python and run a ``setup`` in it, unless it is there.

    Args:
        access: the node.
        path: of the environment, there.
        script: the recipe's.
        cwd: the working copy of the code, there.
        variables: the recipe's ``env`` and secrets; they travel in the connection only.
        log: here; what was said goes there, beside the node's name.

    Raises:
        UsageError: it failed; its log is named.
    """
    plan = access.result.plan
    assert plan is not None
    python = plan.host_python
    order = {
        "path": path,
        "python": python.path,
        "identity": f"{python.path} {python.version}",
        "minor": ".".join(map(str, python.minor)),
        "script": script,
        "cwd": cwd,
        "env": dict(variables),
        "wait_s": _TIMEOUT_S,
    }
    # A connection of its own: it may last for hours.
    with access.connect() as connection:
        result = ask_guest(connection, python.path, "setup.py", order, 2 * _TIMEOUT_S)
    place = log.with_name(f"{log.stem}-{re.sub(r'[^A-Za-z0-9.-]', '_', access.target.name)}.log")
    for line in result.out.splitlines():
        if line.startswith(_LOG):
            with contextlib.suppress(OSError, ValueError):  # the error matters more
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(base64.b64decode(line.removeprefix(_LOG)))
    said = guest_words(result)
    if said in ("done", "have"):
        return
    code, _, words = said.removeprefix("setup ").partition(" ")
    if said.startswith("setup "):
        said = f"setup failed with exit code {code}: {words}"
    raise UsageError(f"{access.target.shown}: {said}", f"Its whole output: {place}" if place.exists() else "")
