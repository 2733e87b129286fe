"""Replays measured and simulated jobs: fit to some rows, predict the others, keep score."""
