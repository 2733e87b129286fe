"""`open_client`: whom the verbs ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster.api import ClientProtocol


def open_client(*, runs_here: bool = False, makes: bool = True) -> ClientProtocol:
    """The home that the variables name, embedded in this process.

    Args:
        runs_here: a run will be driven on this machine: what it needs starts meanwhile.
        makes: the home, if it is not there.

    Raises:
        UsageError: its directory cannot be made or written.
    """
    from trainmaster.api import EmbeddedClient

    client = EmbeddedClient(makes=makes)
    if runs_here:
        client.warm_up()
    return client
