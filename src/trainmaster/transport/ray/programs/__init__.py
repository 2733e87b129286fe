"""Programs that run with the Python of a Ray: sent there as text, with the standard library and Ray only."""
