"""The first released schema. Revisions of their own change it later: see docs/development/database.md.

No database is older: nothing is upgraded to it, and new ones are made by `metadata.create_all`.
"""

from __future__ import annotations

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Nothing."""
