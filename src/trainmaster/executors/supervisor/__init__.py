"""The one process per node and home that starts members and is their parent; it imports little."""
