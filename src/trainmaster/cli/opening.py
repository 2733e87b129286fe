"""`open_client`: what the verbs ask that read runs, or ask for their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster.api import ClientProtocol


def open_client() -> ClientProtocol:
    """The home that the variables name, embedded in this process.

    Raises:
        UsageError: its directory cannot be made or written.
    """
    from trainmaster.api import Client

    return Client()
