"""The schema of 0.2.0, with which revisions begin: new databases are made by `metadata.create_all`.

Builds before it had 0001 to 0010. Those numbers are not given again: a database that has one is refused.
"""

from __future__ import annotations

revision = "0011"
down_revision = None


def upgrade() -> None:
    """Nothing: no older database is upgraded to it."""
