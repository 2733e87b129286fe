"""The header that lets the command line in; by itself, as the client needs nothing else of the server."""

from __future__ import annotations

from typing import Final

TOKEN_HEADER: Final = "X-Lab-Token"  # noqa: S105
