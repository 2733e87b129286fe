"""The first released schema: new databases are created by `metadata.create_all` and stamped."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Nothing to do: this is where history starts."""
