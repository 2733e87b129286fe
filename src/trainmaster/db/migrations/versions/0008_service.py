"""What a server of several people keeps: each part adds its tables in a function of its own."""

from __future__ import annotations

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Each part in the order in which they refer to each other."""
