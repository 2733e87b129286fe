"""What runs in bundles of a Ray: a process that speaks with it, and commands through its actors."""
